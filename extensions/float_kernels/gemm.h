// Blocked single-precision products. B is copied into panels of kPanel columns, each
// [depth][kPanel] and small enough for the first cache, when its first rows of C are computed; a
// panel then serves all rows. A is read in place, or copied where it is transposed. A tile of C
// stays in registers.
#pragma once

#include "scratch.h"
#include "vec.h"

namespace float_kernels_impl {

// What follows a product: bias, ReLU, bits of the ReLU's mask. Rows of bits are `words` apart.
struct Tail {
  const float* bias = nullptr;
  uint32_t* bits = nullptr;
  int words = 0;
  bool relu = false;
};

struct Left {  // A: element (i, k) at p[i * row + k] or, transposed, p[i + k * row]
  const float* p;
  ptrdiff_t row;
  bool transposed;
};

struct Right {  // B: element (k, j) at p[k * row + j] or, transposed, p[k + j * row]; or packed
  const float* p;
  ptrdiff_t row;
  bool transposed, packed;
};

struct Product {
  int m, n, k;
  Left a;
  Right b;
  float* c;
  ptrdiff_t ldc;
  bool accumulate;
  Tail tail;
};

template <class Isa>
struct Gemm : Vec<Isa> {
  using V = Vec<Isa>;
  using F = typename V::F;
  static constexpr int N = V::N;
  static constexpr int kRows = Isa::kRows, kVectors = Isa::kVectors, kPanel = kVectors * N;
  static constexpr int kDepth = Isa::kDepth;
  static constexpr int kMostRows = 144, kMostColumns = 1024;  // of a block: A's part, B's part

  // Depth of the blocks that k is divided into.
  static int depth_of(int k) {
    int blocks = (k + kDepth - 1) / kDepth;
    return blocks > 1 ? (k + blocks - 1) / blocks : k;
  }
  static int panels_of(int n) { return (n + kPanel - 1) / kPanel; }

  // --- Panels of B ---------------------------------------------------------------------------
  static void pack_panel(const Right& b, int k0, int depth, int j0, int columns, float* to) {
    if (b.transposed)
      pack_turned(b.p + k0 + j0 * b.row, b.row, depth, columns, to);
    else
      pack_rows(b.p + k0 * b.row + j0, b.row, depth, columns, to);
  }

  static void pack_rows(const float* p, ptrdiff_t row, int depth, int columns, float* to) {
    for (int k = 0; k < depth; ++k, p += row, to += kPanel)
      for (int j = 0; j < kPanel; j += N) {
        int left = columns - j;
        V::store(to + j, left >= N ? V::load(p + j) : left > 0 ? V::load(p + j, left) : F{});
      }
  }

  static void pack_turned(const float* p, ptrdiff_t row, int depth, int columns, float* to) {
    int whole = depth / N * N;
    for (int j = 0; j < kPanel; j += N) {
      const float* from = p + j * row;
      if (columns - j >= N) {
        for (int k = 0; k < whole; k += N) V::transpose(from + k, row, to + k * kPanel + j, kPanel);
        pack_scalars(from, row, whole, depth, N, to + j);
      } else {
        pack_scalars(from, row, 0, depth, columns > j ? columns - j : 0, to + j);
      }
    }
  }

  static void pack_scalars(const float* p, ptrdiff_t row, int k, int depth, int columns,
                           float* to) {
    for (; k < depth; ++k)
      for (int j = 0; j < N; ++j) to[k * kPanel + j] = j < columns ? p[j * row + k] : 0.0f;
  }

  static size_t packed_floats(int k, int n) {
    return k > 0 && n > 0 ? static_cast<size_t>(k) * panels_of(n) * kPanel : 0;
  }
  static float* panel_of(float* packed, int n, int k0, int depth, int panel) {
    return packed + static_cast<size_t>(k0) * panels_of(n) * kPanel +
           static_cast<size_t>(panel) * depth * kPanel;
  }

  static void pack(int k, int n, const Right& b, float* packed) {
    int most = depth_of(k);
    for (int k0 = 0; k0 < k; k0 += most) {
      int depth = k - k0 < most ? k - k0 : most;
      for (int p = 0; p < panels_of(n); ++p)
        pack_panel(b, k0, depth, p * kPanel, n - p * kPanel, panel_of(packed, n, k0, depth, p));
    }
  }

  // --- A tile of C ---------------------------------------------------------------------------
  struct Tile {
    const float* a;
    ptrdiff_t row;  // of A in place
    const float* b;
    int depth;
    float* c;
    ptrdiff_t ldc;
    int columns;
    bool add, last;
    Tail tail;  // at the tile's first row and column
    int shift;  // of its bits within a word
  };

  // In place: rows of A `row` apart. Copied: [depth][rows].
  template <int rows, bool copied>
  static void tile(const Tile& t) {
    F acc[rows][kVectors] = {};
    const float *a = t.a, *b = t.b;
    for (int k = 0; k < t.depth; ++k, a += copied ? rows : 1, b += kPanel) {
      F v[kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) v[j] = V::load(b + j * N);
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        F x = V::all(copied ? a[i] : a[i * t.row]);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) acc[i][j] += x * v[j];
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) finish(t, i, acc[i]);
  }

  static FK_INLINE void finish(const Tile& t, int i, F* acc) {
    float* c = t.c + i * t.ldc;
    uint32_t bits = 0;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      int left = t.columns - j * N;
      if (left <= 0) break;
      F v = acc[j];
      if (t.add) v += left >= N ? V::load(c + j * N) : V::load(c + j * N, left);
      if (t.last) {
        const float* bias = t.tail.bias;
        if (bias) v += left >= N ? V::load(bias + j * N) : V::load(bias + j * N, left);
        if (t.tail.relu) v = V::relu(v);
        if (t.tail.bits) {
          uint32_t some = V::bits(v > F{});
          bits |= (left >= N ? some : some & ((1u << left) - 1)) << (j * N);
        }
      }
      left >= N ? V::store(c + j * N, v) : V::store(c + j * N, v, left);
    }
    if (t.last && t.tail.bits) {
      uint32_t& word = t.tail.bits[i * static_cast<ptrdiff_t>(t.tail.words)];
      word = (t.shift ? word : 0) | bits << t.shift;
    }
  }

  using TileFunction = void (*)(const Tile&);
  template <bool copied, size_t... i>
  static TileFunction tile_of(int rows, std::index_sequence<i...>) {
    static constexpr TileFunction all[] = {&tile<i + 1, copied>...};
    return all[rows - 1];
  }
  static TileFunction tile_of(int rows, bool copied) {
    using Rows = std::make_index_sequence<kRows>;
    return copied ? tile_of<true>(rows, Rows()) : tile_of<false>(rows, Rows());
  }

  // --- Blocks --------------------------------------------------------------------------------
  static void copy_left(const Left& a, int i0, int rows, int k0, int depth, float* to) {
    const float* p = a.p + i0 + k0 * a.row;
    for (int k = 0; k < depth; ++k, p += a.row, to += rows)
      for (int i = 0; i < rows; ++i) to[i] = p[i];
  }

  // The rows of A in tiles of nearly one height.
  struct Heights {
    int count, low, higher;  // the first `higher` tiles have a row more than `low`
    explicit Heights(int m) : count((m + kRows - 1) / kRows), low(m / count), higher(m % count) {}
    int rows(int i) const { return low + (i < higher); }
  };

  static void multiply(const Product& p) {
    if (p.m < 1 || p.n < 1) return;
    int most = depth_of(p.k);
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += most) {
      int depth = p.k - k0 < most ? (p.k > k0 ? p.k - k0 : 0) : most;
      for (int j0 = 0; j0 < p.n; j0 += kMostColumns) {
        int columns = p.n - j0 < kMostColumns ? p.n - j0 : kMostColumns;
        for (int i0 = 0; i0 < p.m; i0 += kMostRows) {
          int rows = p.m - i0 < kMostRows ? p.m - i0 : kMostRows;
          block(p, k0, depth, j0, columns, i0, rows);
        }
      }
      if (most < 1) break;
    }
  }

  static void block(const Product& p, int k0, int depth, int j0, int columns, int i0, int rows) {
    float* panels = p.b.packed ? nullptr : scratch(0, size_t{kMostColumns} * kDepth);
    float* lefts = p.a.transposed ? scratch(1, size_t{kMostRows} * kDepth) : nullptr;
    Heights heights(rows);
    for (int j = 0; j < columns; j += kPanel) {
      float* panel = p.b.packed
                         ? panel_of(const_cast<float*>(p.b.p), p.n, k0, depth, (j0 + j) / kPanel)
                         : panels + static_cast<size_t>(j) * depth;
      int wide = columns - j < kPanel ? columns - j : kPanel;
      if (!p.b.packed && i0 == 0) pack_panel(p.b, k0, depth, j0 + j, wide, panel);
      for (int t = 0, i = i0; t < heights.count; i += heights.rows(t++)) {
        float* left = lefts + static_cast<size_t>(i - i0) * depth;
        if (lefts && j == 0) copy_left(p.a, i, heights.rows(t), k0, depth, left);
        run_tile(p, k0, depth, j0 + j, wide, i, heights.rows(t), lefts ? left : nullptr, panel);
      }
    }
  }

  static void run_tile(const Product& p, int k0, int depth, int j, int wide, int i, int rows,
                       const float* left, const float* panel) {
    Tile t;
    t.a = left ? left : p.a.p + i * p.a.row + k0;
    t.row = p.a.row;
    t.b = panel, t.depth = depth, t.columns = wide;
    t.c = p.c + i * p.ldc + j, t.ldc = p.ldc;
    t.add = p.accumulate || k0 > 0;
    t.last = k0 + depth >= p.k;
    t.tail = p.tail, t.shift = j % 32;
    if (t.tail.bias) t.tail.bias += j;
    if (t.tail.bits) t.tail.bits += static_cast<ptrdiff_t>(i) * t.tail.words + j / 32;
    tile_of(rows, left != nullptr)(t);
  }
};

}  // namespace float_kernels_impl
