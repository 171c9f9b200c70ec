// Blocked single-precision products. B is copied into panels of kPanel columns, each
// [depth][kPanel]: before they are used or, of a small B, by the tile that computes a panel's first
// rows of C and reads B in place. A panel then serves all other rows. A is read in place, or copied
// where it is transposed and serves many panels. A tile of C stays in registers.
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
  static constexpr int kMostRows = 144 / kRows * kRows, kMostColumns = 1024;  // of a block
  static_assert(kMostColumns % kPanel == 0);

  // Depth of the blocks that k is divided into, at least 1; of several whole vectors, as columns
  // are turned.
  static int depth_of(int k) {
    if (k <= kDepth) return k > 1 ? k : 1;
    const int blocks = (k + kDepth - 1) / kDepth, depth = (k + blocks - 1) / blocks;
    return (depth + N - 1) / N * N;
  }
  static int panels_of(int n) { return (n + kPanel - 1) / kPanel; }

  // --- Panels of B ---------------------------------------------------------------------------
  // Copies of panels, and of A's tiles, are a cache line longer than they need be, so that those of
  // one block do not begin in the same set of the first cache.
  static constexpr int kLine = 16, kGroup = 4;  // panels that are copied at a time
  static constexpr ptrdiff_t kNear = 1 << 16;   // floats of B that a tile may read where they lie
  static constexpr int kInPlace = 4 * kPanel;   // columns up to which A is not worth a copy
  static ptrdiff_t panel_stride(int depth) { return ptrdiff_t{depth} * kPanel + kLine; }

  static void pack_panels(const Right& b, int k0, int depth, int j0, int columns, float* to) {
    if (b.transposed)
      for (int j = 0; j < columns; j += kPanel, to += panel_stride(depth))
        pack_turned(b.p + k0 + (j0 + j) * b.row, b.row, depth, columns - j, to);
    else
      pack_rows(b.p + k0 * b.row + j0, b.row, depth, columns, to);
  }

  // Row by row over all the panels, as a row is contiguous and a column of rows is not.
  static void pack_rows(const float* p, ptrdiff_t row, int depth, int columns, float* to) {
    const ptrdiff_t stride = panel_stride(depth);
    const int whole = columns / kPanel;
    for (int k = 0; k < depth; ++k, p += row, to += kPanel) {
      for (int i = 0; i < whole; ++i)
        for (int j = 0; j < kPanel; j += N)
          V::store(to + i * stride + j, V::load(p + i * kPanel + j));
      if (columns > whole * kPanel)
        for (int j = 0; j < kPanel; j += N)
          V::store(to + whole * stride + j,
                   load_at(p + whole * kPanel + j, columns - whole * kPanel - j));
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
    if (k < 1 || n < 1) return 0;
    int blocks = (k + depth_of(k) - 1) / depth_of(k);
    return static_cast<size_t>(panels_of(n)) * (size_t{kPanel} * k + size_t{kLine} * blocks);
  }
  // Where a panel of the block of k that begins at k0 begins.
  static ptrdiff_t panel_at(int k, int n, int k0, int depth, int panel) {
    ptrdiff_t before = k0 / depth_of(k) * kLine + ptrdiff_t{k0} * kPanel;
    return before * panels_of(n) + panel * panel_stride(depth);
  }

  static void pack(int k, int n, const Right& b, float* packed) {
    int most = depth_of(k);
    for (int k0 = 0; k0 < k; k0 += most) {
      int depth = least(k - k0, most);
      pack_panels(b, k0, depth, 0, n, packed);
      packed += panels_of(n) * panel_stride(depth);
    }
  }

  // --- A tile of C ---------------------------------------------------------------------------
  // kPanel columns wide. What follows the product comes with the last block of k alone.
  struct Tile {
    const float* a;  // element (i, k) at a[i * row + k * step]
    ptrdiff_t row, step;
    const float* b;  // rows b_row apart
    ptrdiff_t b_row;
    float* panel;  // what a packing tile fills
    int depth;
    float* c;
    ptrdiff_t ldc;
    bool add;
    Tail tail;  // at the tile's first row and column
    int shift;  // of its bits within a word
  };

  template <int rows, int vectors, bool packs>
  static void tile(const Tile& t) {
    F acc[rows][vectors] = {};
    const float *a = t.a, *b = t.b;
    float* panel = t.panel;
    const ptrdiff_t b_row = packs ? t.b_row : kPanel;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) __builtin_prefetch(t.c + i * t.ldc, 1);
    for (int k = 0; k < t.depth; ++k, a += t.step, b += b_row) {
      F v[vectors];
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) v[j] = V::load(b + j * N);
      if (packs) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; ++j) V::store(panel + j * N, v[j]);
        panel += kPanel;
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        F x = V::all(a[i * t.row]);
#pragma GCC unroll 8
        for (int j = 0; j < vectors; ++j) acc[i][j] += x * v[j];
      }
    }
    if (t.add)
      each(acc, [&](F& v, int i, int j) FK_LAMBDA { v += V::load(t.c + i * t.ldc + j * N); });
    if (t.tail.bias)
      each(acc, [&](F& v, int, int j) FK_LAMBDA { v += V::load(t.tail.bias + j * N); });
    if (t.tail.relu) each(acc, [&](F& v, int, int) FK_LAMBDA { v = V::relu(v); });
    each(acc, [&](F& v, int i, int j) FK_LAMBDA { V::store(t.c + i * t.ldc + j * N, v); });
    if (t.tail.bits) store_bits(t, acc);
  }

  template <int rows, int vectors, class Function>
  static FK_INLINE void each(F (&acc)[rows][vectors], Function f) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) f(acc[i][j], i, j);
  }

  template <int rows, int vectors>
  static FK_INLINE void store_bits(const Tile& t, const F (&acc)[rows][vectors]) {
    uint32_t* word = t.tail.bits;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i, word += t.tail.words) {
      uint32_t bits = 0;
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) bits |= V::bits(acc[i][j] > F{}) << (j * N);
      *word = (t.shift ? *word : 0) | bits << t.shift;
    }
  }

  // A tile that is less wide is computed in a copy, where its other columns are 0, as their bits
  // are.
  static void narrow_tile(Tile t, int rows, int wide) {
    float local[kRows * kPanel], bias[kPanel], *c = t.c;
    ptrdiff_t ldc = t.ldc;
    if (t.add) copy(rows, wide, c, ldc, local, kPanel);
    if (t.tail.bias) copy(1, wide, t.tail.bias, 0, bias, 0), t.tail.bias = bias;
    t.c = local, t.ldc = kPanel;
    tile_of(rows, wide <= N ? 1 : kVectors)(t);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < wide; j += N)
        store_at(c + i * ldc + j, V::load(local + i * kPanel + j), wide - j);
  }
  // Columns past the last become 0.
  static void copy(int rows, int columns, const float* from, ptrdiff_t row, float* to,
                   ptrdiff_t to_row) {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < kPanel; j += N)
        V::store(to + i * to_row + j, load_at(from + i * row + j, columns - j));
  }
  static FK_INLINE F load_at(const float* p, int left) {
    return left >= N ? V::load(p) : left > 0 ? V::load(p, left) : F{};
  }
  static FK_INLINE void store_at(float* p, F v, int left) {
    left >= N ? V::store(p, v) : V::store(p, v, left);
  }

  using TileFunction = void (*)(const Tile&);
  template <int vectors, bool packs, size_t... i>
  static TileFunction tile_of(int rows, std::index_sequence<i...>) {
    static constexpr TileFunction all[] = {&tile<i + 1, vectors, packs>...};
    return all[rows - 1];
  }
  static TileFunction tile_of(int rows, int vectors, bool packs = false) {
    using Rows = std::make_index_sequence<kRows>;
    if (packs) return tile_of<kVectors, true>(rows, Rows());
    return vectors == 1 ? tile_of<1, false>(rows, Rows()) : tile_of<kVectors, false>(rows, Rows());
  }

  // --- Blocks --------------------------------------------------------------------------------
  // The rows of A in tiles of nearly one height.
  struct Heights {
    int count, low, higher;  // the first `higher` tiles have a row more than `low`
    explicit Heights(int m) : count((m + kRows - 1) / kRows), low(m / count), higher(m % count) {}
    int rows(int i) const { return low + (i < higher); }
  };

  // Tiles of A that lies in columns, each as [depth][rows].
  static ptrdiff_t left_stride(int depth) { return ptrdiff_t{depth} * kRows + kLine; }
  template <int low>
  static void copy_left(const float* p, ptrdiff_t row, int depth, const Heights& h, float* to) {
    const ptrdiff_t stride = left_stride(depth);
    for (int k = 0; k < depth; ++k, p += row) {
      const float* from = p;
      float* tile = to + k * (low + 1);
      for (int t = 0; t < h.higher; ++t, from += low + 1, tile += stride)
        __builtin_memcpy(tile, from, sizeof(float) * (low + 1));
      tile -= k;
      for (int t = h.higher; t < h.count; ++t, from += low, tile += stride)
        __builtin_memcpy(tile, from, sizeof(float) * low);
    }
  }
  using CopyFunction = void (*)(const float*, ptrdiff_t, int, const Heights&, float*);
  template <size_t... i>
  static CopyFunction copy_of(int low, std::index_sequence<i...>) {
    static constexpr CopyFunction all[] = {&copy_left<i + 1>...};
    return all[low - 1];
  }

  static void multiply(const Product& p) {
    if (p.m < 1 || p.n < 1) return;
    const int most = depth_of(p.k);
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += most) {
      int depth = least(p.k > 0 ? p.k - k0 : 0, most);
      for (int j0 = 0; j0 < p.n; j0 += kMostColumns)
        for (int i0 = 0; i0 < p.m; i0 += kMostRows)
          block(p, k0, depth, j0, least(p.n - j0, kMostColumns), i0, least(p.m - i0, kMostRows));
    }
  }
  static int least(int a, int b) { return a < b ? a : b; }

  static constexpr size_t kPanelFloats =
      size_t{(kMostColumns + kPanel - 1) / kPanel} * (kDepth * kPanel + kLine);
  static constexpr size_t kLeftFloats =
      size_t{(kMostRows + kRows - 1) / kRows} * (kDepth * kRows + kLine);

  static void block(const Product& p, int k0, int depth, int j0, int columns, int i0, int rows) {
    const Heights heights(rows);
    const float* lefts = nullptr;
    if (p.a.transposed && columns > kInPlace) {
      float* copies = scratch(1, kLeftFloats);
      copy_of(heights.low, std::make_index_sequence<kRows>())(p.a.p + i0 + k0 * p.a.row, p.a.row,
                                                              depth, heights, copies);
      lefts = copies;
    }
    const float* panel = p.b.p;
    float* copies = nullptr;
    if (p.b.packed)
      panel += panel_at(p.k, p.n, k0, depth, j0 / kPanel);
    else
      panel = copies = scratch(0, kPanelFloats);
    const bool early =
        copies && i0 == 0 && !p.b.transposed && depth * p.b.row <= kNear && p.m > kRows;
    const int group = (p.b.transposed ? 1 : kGroup) * kPanel;
    for (int j = 0; j < columns; j += kPanel, panel += panel_stride(depth)) {
      const int wide = least(columns - j, kPanel);
      const bool packs = early && wide == kPanel;
      if (copies && i0 == 0 && !packs && (early || j % group == 0))
        pack_panels(p.b, k0, depth, j0 + j, least(columns - j, group),
                    copies + j / kPanel * panel_stride(depth));
      column(p, heights, lefts, panel, packs, k0, depth, j0 + j, wide, i0);
    }
  }

  // The tiles of one panel, which the first fills where it packs: rows from i0 on, columns from j.
  static void column(const Product& p, const Heights& heights, const float* lefts,
                     const float* panel, bool packs, int k0, int depth, int j, int wide, int i0) {
    Tile t;
    t.a = lefts ? lefts : p.a.transposed ? p.a.p + k0 * p.a.row + i0 : p.a.p + i0 * p.a.row + k0;
    t.b = packs ? p.b.p + k0 * p.b.row + j : panel, t.b_row = p.b.row;
    t.panel = const_cast<float*>(panel), t.depth = depth;
    t.c = p.c + i0 * p.ldc + j, t.ldc = p.ldc;
    t.add = p.accumulate || k0 > 0;
    t.tail = k0 + depth >= p.k ? p.tail : Tail{};
    t.shift = j % 32;
    if (t.tail.bias) t.tail.bias += j;
    if (t.tail.bits) t.tail.bits += static_cast<ptrdiff_t>(i0) * t.tail.words + j / 32;
    packs = run(p, t, heights.low + 1, heights.higher, wide, packs, lefts);
    run(p, t, heights.low, heights.count - heights.higher, wide, packs, lefts);
  }

  // `count` tiles of one height, one below the other; t goes on to the next. Returns whether the
  // panel is still to be filled.
  static bool run(const Product& p, Tile& t, int rows, int count, int wide, bool packs,
                  bool copied) {
    if (count < 1) return packs;
    t.row = copied || p.a.transposed ? 1 : p.a.row;
    t.step = copied ? rows : p.a.transposed ? p.a.row : 1;
    const ptrdiff_t next = copied ? left_stride(t.depth) : rows * t.row;
    const TileFunction whole = tile_of(rows, kVectors);
    for (int i = 0; i < count; ++i) {
      if (packs)
        tile_of(rows, kVectors, true)(t), t.b = t.panel, packs = false;
      else
        wide < kPanel ? narrow_tile(t, rows, wide) : whole(t);
      t.a += next, t.c += rows * t.ldc;
      if (t.tail.bits) t.tail.bits += ptrdiff_t{rows} * t.tail.words;
    }
    return false;
  }
};

}  // namespace float_kernels_impl
