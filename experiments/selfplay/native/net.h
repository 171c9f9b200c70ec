// A small int8 network on rows: hidden layers with ReLU, a policy and a value; the bits of the
// engine.
//
// linear: floor(W x / (16 floor(sqrt K))) within +-127; then plus the bias, within +-127; ReLU.
// Inputs and what comes out of a ReLU are 0 to 127, so that products are of unsigned and signed
// bytes. net_<name>.cpp includes it for an instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace selfplay {

constexpr int kLane = 16, kWide = 32;  // outputs side by side, in int32 and in int16
constexpr int kMostInputs = 4096;
constexpr int kOneBits = 6;  // an input plane's 1 is 64

// A layer: weights as [N / 16][K / 4][16][4], zero beyond K and N, of one output [K]; bias in whole
// kWide. columns int16 [K][N in whole kWide], of the first layer where every sum of a column's
// weights is within int16, else NULL.
struct Layer {
  int32_t inputs, outputs;  // K, N
  int32_t root;             // floor(sqrt K)
  int32_t relu;
  const int8_t* weights;
  const int8_t* bias;
  const int16_t* columns;

  int32_t divisor() const { return 16 * root; }
  int32_t quads() const { return (inputs + 3) / 4; }
  int32_t groups() const { return (outputs + kLane - 1) / kLane; }
};

// Layers on an instruction set; pitches are multiples of kWide and hold K and N.
struct Kernels {
  // y int8 [rows, pitch_y] = layer(x uint8 [rows, pitch_x]); x is zero beyond K, and 64 bytes can
  // be read from the last four of a row on.
  void (*layer)(const Layer& layer, int32_t rows, const uint8_t* x, int32_t pitch_x, int8_t* y,
                int32_t pitch_y);
  // The same of the first layer with columns; planes int8 [rows, K] of 0 and 1.
  void (*planes)(const Layer& layer, int32_t rows, const int8_t* planes, int8_t* y,
                 int32_t pitch_y);
};

const Kernels* kernels_of(int32_t set);  // 0 generic, 1 AVX-512 VNNI; or NULL

#ifdef SELFPLAY_NET

namespace {

typedef int32_t Sums __attribute__((vector_size(4 * kLane)));
typedef float Reals __attribute__((vector_size(4 * kLane)));
typedef int8_t Bytes __attribute__((vector_size(kLane)));
typedef int16_t Halves __attribute__((vector_size(2 * kWide)));
typedef uint16_t Words __attribute__((vector_size(2 * kWide)));
typedef int8_t WideBytes __attribute__((vector_size(kWide)));

template <class Vector>
inline Vector within(Vector x, int32_t least, int32_t most) {
  typedef std::remove_reference_t<decltype(x[0])> Lane;
  const Vector low = Vector{} + static_cast<Lane>(least), high = Vector{} + static_cast<Lane>(most);
  x = x < low ? low : x;
  return x > high ? high : x;
}

// A quotient of 256 at most, and half a step from where truncation jumps: n / d and (n + 1/2) / d
// truncate to the same, and the second is at least 1 / 2048 away from a whole number, float32's
// errors being 2^-15.
inline void finish(const Layer& layer, Sums sums, int32_t group, int8_t* y) {
  const int32_t d = layer.divisor();
  const Sums shifted = within(sums, -128 * d, 127 * d) + 128 * d;
  const Reals quotients = (__builtin_convertvector(shifted, Reals) + 0.5f) * (1.0f / d);
  Sums v = within(__builtin_convertvector(quotients, Sums) - 128, -127, 127);
  Bytes bytes;
  std::memcpy(&bytes, layer.bias + group * kLane, kLane);
  v = within(v + __builtin_convertvector(bytes, Sums), layer.relu ? 0 : -127, 127);
  bytes = __builtin_convertvector(v, Bytes);
  std::memcpy(y + group * kLane, &bytes, kLane);
}

// Inputs that are zero in all rows are left out four by four.
template <int kRows>
inline void run_rows(const Layer& layer, const uint8_t* x, int32_t pitch_x, int8_t* y,
                     int32_t pitch_y) {
  const int32_t quads = layer.quads(), groups = layer.groups();
  int32_t used[kMostInputs / 4], count = 0;
  for (int32_t first = 0; first < quads; first += kLane) {
    Sums any = {}, four;
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(&four, x + int64_t{r} * pitch_x + 4 * first, sizeof four);
      any |= four;
    }
    for (int32_t i = 0; i < kLane && first + i < quads; ++i) {
      used[count] = 4 * (first + i);
      count += any[i] != 0;
    }
  }
  for (int32_t g = 0; g < groups; ++g) {
    Sums sums[kRows] = {};
    const int8_t* w = layer.weights + int64_t{g} * quads * 4 * kLane;
    for (int32_t i = 0; i < count; ++i)
      for (int r = 0; r < kRows; ++r)
        sums[r] = dot(sums[r], x + int64_t{r} * pitch_x + used[i], w + int64_t{kLane} * used[i]);
    for (int r = 0; r < kRows; ++r) finish(layer, sums[r], g, y + int64_t{r} * pitch_y);
  }
}

inline int8_t run_single(const Layer& layer, const uint8_t* x) {
  int32_t sum = 0;
  for (int32_t k = 0; k < layer.inputs; ++k) sum += x[k] * layer.weights[k];
  const int32_t d = layer.divisor(), least = layer.relu ? 0 : -127;
  auto clip = [](int32_t v, int32_t low, int32_t high) {
    return v < low ? low : v > high ? high : v;
  };
  const int32_t v = clip(((clip(sum, -128 * d, 127 * d) + 128 * d) / d) - 128, -127, 127);
  return static_cast<int8_t>(clip(v + layer.bias[0], least, 127));
}

void run(const Layer& layer, int32_t rows, const uint8_t* x, int32_t pitch_x, int8_t* y,
         int32_t pitch_y) {
  int32_t r = 0;
  if (layer.outputs == 1)
    for (; r < rows; ++r) y[int64_t{r} * pitch_y] = run_single(layer, x + int64_t{r} * pitch_x);
  for (; r + 8 <= rows; r += 8)
    run_rows<8>(layer, x + int64_t{r} * pitch_x, pitch_x, y + int64_t{r} * pitch_y, pitch_y);
  for (; r < rows; ++r)
    run_rows<1>(layer, x + int64_t{r} * pitch_x, pitch_x, y + int64_t{r} * pitch_y, pitch_y);
}

// ---- the first layer by differences ----------------------------------------------------------

// Rows of inputs whose sums are known: the one that is nearest to a new row, with the columns of
// what it has more and less, gives that row's sums. Children of a position differ from each other
// by a stone or two, and are of a few kinds: whose turn it is, in which phase. A far one takes the
// place that was not asked for longest.
constexpr int kKept = 4;
constexpr int32_t kNear = 8;  // inputs

struct Kept {
  uint64_t bits[kMostInputs / 64];
  int16_t sums[kMostInputs];
};

// floor(64 s / (16 root)) = floor(4 s / root), then as `finish` does. floor(v / root) for v below
// 256 root is the high half of v m, shifted: m = floor(2^(16 + shift) / root) + 1 is at most root /
// 2^(16 + shift) too large, and v root < 2^(16 + shift) where 2^shift >= root / 2 and root <= 128.
struct Reciprocal {
  uint16_t m, shift = 0;

  explicit Reciprocal(int32_t root) {
    while (2 << shift < root) ++shift;
    m = static_cast<uint16_t>((uint32_t{1} << (16 + shift)) / root + 1);
  }
};

inline void finish_first(const Layer& layer, Reciprocal r, Halves sums, int32_t first, int8_t* y) {
  const int16_t most = static_cast<int16_t>(32 * layer.root);
  const Halves shifted = (within(sums, -most, most - 1) + most) << (kOneBits - 4);
  const Words quotients = high_half(reinterpret_cast<Words>(shifted), r.m) >> r.shift;
  WideBytes bytes;
  std::memcpy(&bytes, layer.bias + first, kWide);
  Halves v = within(reinterpret_cast<Halves>(quotients) - int16_t{128}, -127, 127);
  v = within(v + __builtin_convertvector(bytes, Halves), layer.relu ? 0 : -127, 127);
  bytes = __builtin_convertvector(v, WideBytes);
  std::memcpy(y + first, &bytes, kWide);
}

// Places of the bits that are in a and not in b.
inline int32_t beyond(const uint64_t* a, const uint64_t* b, int32_t words, int16_t* places) {
  int32_t count = 0;
  for (int32_t w = 0; w < words; ++w)
    for (uint64_t left = a[w] & ~b[w]; left; left &= left - 1)
      places[count++] = static_cast<int16_t>(64 * w + __builtin_ctzll(left));
  return count;
}

void run_planes(const Layer& layer, int32_t rows, const int8_t* planes, int8_t* y,
                int32_t pitch_y) {
  const int32_t K = layer.inputs, words = (K + 63) / 64;
  const int32_t width = (layer.outputs + kWide - 1) / kWide * kWide;
  const Reciprocal reciprocal(layer.root);
  Kept kept[kKept + 1];  // the last stays as it is, without any input
  for (Kept& k : kept) {
    std::memset(k.bits, 0, sizeof(uint64_t) * words);
    std::memset(k.sums, 0, sizeof(int16_t) * width);
  }
  int order[kKept + 1];  // the one asked for last comes first
  for (int i = 0; i <= kKept; ++i) order[i] = i;
  for (int32_t r = 0; r < rows; ++r) {
    uint64_t seen[kMostInputs / 64];
    for (int32_t w = 0; w < words; ++w)
      seen[w] = bits_of(planes + int64_t{r} * K + 64 * w, K - 64 * w < 64 ? K - 64 * w : 64);
    int nearest = 0;
    int32_t least = K + 1;
    for (int i = 0; i <= kKept && least > kNear; ++i) {
      int32_t apart = 0;
      for (int32_t w = 0; w < words; ++w)
        apart += __builtin_popcountll(seen[w] ^ kept[order[i]].bits[w]);
      if (apart < least) least = apart, nearest = i;
    }
    const int place = least > kNear || nearest == kKept ? kKept - 1 : nearest;
    const Kept& from = kept[order[nearest]];
    Kept& to = kept[order[place]];
    int16_t more[kMostInputs], less[kMostInputs];
    const int32_t added = beyond(seen, from.bits, words, more);
    const int32_t removed = beyond(from.bits, seen, words, less);
    for (int32_t first = 0; first < width; first += kWide) {
      Halves sums, column;
      std::memcpy(&sums, from.sums + first, sizeof sums);
      const int16_t* columns = layer.columns + first;
      for (int32_t i = 0; i < added; ++i) {
        std::memcpy(&column, columns + int64_t{more[i]} * width, sizeof column);
        sums += column;
      }
      for (int32_t i = 0; i < removed; ++i) {
        std::memcpy(&column, columns + int64_t{less[i]} * width, sizeof column);
        sums -= column;
      }
      std::memcpy(to.sums + first, &sums, sizeof sums);
      finish_first(layer, reciprocal, sums, first, y + int64_t{r} * pitch_y);
    }
    std::memcpy(to.bits, seen, sizeof(uint64_t) * words);
    const int taken = order[place];
    for (int i = place; i > 0; --i) order[i] = order[i - 1];
    order[0] = taken;
  }
}

constexpr Kernels own_kernels{run, run_planes};

}  // namespace

#endif

}  // namespace selfplay
