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
constexpr int kMostWords = kMostInputs / 32;  // of bits: a plane has at least one input
constexpr int kOneBits = 6;                   // an input plane's 1 is 64

// A layer: weights as [N / 16][K / 4][16][4], zero beyond K and N, of one output [K]; bias in whole
// kWide. columns int16 [K + planes][N in whole kWide], of the first layer where every sum of an
// output's weights is within int16, else NULL: those of an input, then the sums of all of a plane.
struct Layer {
  int32_t inputs, outputs;  // K, N
  int32_t root;             // floor(sqrt K)
  int32_t relu;
  const int8_t* weights;
  const int16_t* bias;
  const int16_t* columns;
  int32_t planes;

  int32_t divisor() const { return 16 * root; }
  int32_t quads() const { return (inputs + 3) / 4; }
  int32_t words() const { return (inputs + planes + 63) / 64; }
  int32_t groups() const { return (outputs + kLane - 1) / kLane; }
};

// Layers on an instruction set; pitches are multiples of kWide and hold K and N.
struct Kernels {
  // y int8 [rows, pitch_y] = layer(x uint8 [rows, pitch_x]); x is zero beyond K, and 64 bytes can
  // be read from the last four of a row on. sparse: most of x is zero.
  void (*layer)(const Layer& layer, bool sparse, int32_t rows, const uint8_t* x, int32_t pitch_x,
                int8_t* y, int32_t pitch_y);
  // The same of the first layer with columns; its inputs, of 0 and 1, are bits uint64 [rows,
  // words].
  void (*first)(const Layer& layer, int32_t rows, const uint64_t* bits, int8_t* y, int32_t pitch_y);
  // Planes int8 [rows, K] of 0 and 1 as bits uint64 [rows, words].
  void (*pack)(int32_t K, int32_t words, int32_t rows, const int8_t* planes, uint64_t* bits);
};

const Kernels* kernels_of(int32_t set);  // 0 generic, 1 AVX-512 VNNI; or NULL

#ifdef SELFPLAY_NET

namespace {

typedef int32_t Sums __attribute__((vector_size(4 * kLane)));
typedef float Reals __attribute__((vector_size(4 * kLane)));
typedef int8_t Bytes __attribute__((vector_size(kLane)));
typedef int16_t Lanes __attribute__((vector_size(2 * kLane)));
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

// The divisor of a layer, and where its values begin.
struct Scale {
  int32_t d, least;
  float reciprocal;

  explicit Scale(const Layer& layer)
      : d(layer.divisor()), least(layer.relu ? 0 : -127), reciprocal(1.0f / d) {}
};

// A quotient of 256 at most, and half a step from where truncation jumps: n / d and (n + 1/2) / d
// truncate to the same, and the second is at least 1 / 2048 away from a whole number, float32's
// errors being 2^-15.
inline void finish(const Scale& scale, Sums bias, Sums sums, int8_t* y) {
  const int32_t d = scale.d;
  const Sums shifted = within(sums, -128 * d, 127 * d) + 128 * d;
  const Reals quotients = (__builtin_convertvector(shifted, Reals) + 0.5f) * scale.reciprocal;
  const Sums v = within(__builtin_convertvector(quotients, Sums) - 128, -127, 127) + bias;
  const Bytes bytes = __builtin_convertvector(within(v, scale.least, 127), Bytes);
  std::memcpy(y, &bytes, kLane);
}

// kSparse: inputs that are zero in all rows are left out four by four.
template <int kRows, bool kSparse>
inline void run_rows(const Layer& layer, const uint8_t* x, int32_t pitch_x, int8_t* y,
                     int32_t pitch_y) {
  const int32_t quads = layer.quads(), groups = layer.groups();
  int32_t used[kMostInputs / 4], count = 0;
  for (int32_t first = 0; kSparse && first < quads; first += kLane) {
    Sums any = {}, four;
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(&four, x + int64_t{r} * pitch_x + 4 * first, sizeof four);
      any |= four;
    }
    int32_t each[kLane];
    std::memcpy(each, &any, sizeof any);
    for (int32_t i = 0; i < kLane && first + i < quads; ++i) {
      used[count] = 4 * (first + i);
      count += each[i] != 0;
    }
  }
  if (!kSparse) count = quads;
  const Scale scale(layer);
  for (int32_t g = 0; g < groups; ++g) {
    Sums sums[kRows] = {};
    const int8_t* w = layer.weights + int64_t{g} * quads * 4 * kLane;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t at = kSparse ? used[i] : 4 * i;
      for (int r = 0; r < kRows; ++r)
        sums[r] = dot(sums[r], x + int64_t{r} * pitch_x + at, w + int64_t{kLane} * at);
    }
    Lanes bias;
    std::memcpy(&bias, layer.bias + g * kLane, sizeof bias);
    const Sums wide = __builtin_convertvector(bias, Sums);
    for (int r = 0; r < kRows; ++r)
      finish(scale, wide, sums[r], y + int64_t{r} * pitch_y + g * kLane);
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

template <bool kSparse>
void run_layer(const Layer& layer, int32_t rows, const uint8_t* x, int32_t pitch_x, int8_t* y,
               int32_t pitch_y) {
  auto some = [&]<int kRows>(int32_t r) {
    run_rows<kRows, kSparse>(layer, x + int64_t{r} * pitch_x, pitch_x, y + int64_t{r} * pitch_y,
                             pitch_y);
  };
  int32_t r = 0;
  for (; r + 8 <= rows; r += 8) some.template operator()<8>(r);
  if (r < rows && rows >= 8)
    some.template operator()<8>(rows - 8), r = rows;  // a few of them again
  for (; r < rows; ++r) some.template operator()<1>(r);
}

void run(const Layer& layer, bool sparse, int32_t rows, const uint8_t* x, int32_t pitch_x,
         int8_t* y, int32_t pitch_y) {
  if (layer.outputs == 1)
    for (int32_t r = 0; r < rows; ++r)
      y[int64_t{r} * pitch_y] = run_single(layer, x + int64_t{r} * pitch_x);
  else
    (sparse ? run_layer<true> : run_layer<false>)(layer, rows, x, pitch_x, y, pitch_y);
}

// ---- the first layer by differences ----------------------------------------------------------

// Rows of inputs whose sums are known: the one that is nearest to a new row, with the columns of
// what it has more and less, gives that row's sums. Children of a position differ from each other
// by a stone or two, and are of a few kinds: whose turn it is, in which phase. A far one takes the
// place that was not asked for longest.
constexpr int kKept = 4;
constexpr int32_t kNear = 8;  // inputs

struct Kept {
  uint64_t bits[kMostWords];
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
  Halves bias;
  std::memcpy(&bias, layer.bias + first, sizeof bias);
  const Halves v = within(reinterpret_cast<Halves>(quotients) - int16_t{128}, -127, 127) + bias;
  const WideBytes bytes = __builtin_convertvector(within(v, layer.relu ? 0 : -127, 127), WideBytes);
  std::memcpy(y + first, &bytes, kWide);
}

// An input that a row has more, sign 0, or less than another, sign -1.
struct Change {
  int16_t input, sign;
};

// kBlocks times kWide outputs: the sums of `from` with some changes are those of `to`.
template <int kBlocks>
inline void change_sums(const Layer& layer, int32_t width, int32_t first, const Change* changes,
                        int32_t count, const int16_t* from, int16_t* to) {
  Halves sums[kBlocks], column;
  std::memcpy(sums, from + first, sizeof sums);
  for (int32_t i = 0; i < count; ++i) {
    const int16_t* at = layer.columns + int64_t{changes[i].input} * width + first;
    const Halves sign = Halves{} + changes[i].sign;
    for (int b = 0; b < kBlocks; ++b) {
      std::memcpy(&column, at + b * kWide, sizeof column);
      sums[b] += (column ^ sign) - sign;
    }
  }
  std::memcpy(to + first, sums, sizeof sums);
}

void run_first(const Layer& layer, int32_t rows, const uint64_t* bits, int8_t* y, int32_t pitch_y) {
  const int32_t words = layer.words();
  const int32_t width = (layer.outputs + kWide - 1) / kWide * kWide;
  const Reciprocal reciprocal(layer.root);
  Kept kept[kKept + 1];  // the last stays as it is, without any input
  for (Kept& k : kept) {
    std::memset(k.bits, 0, sizeof(uint64_t) * words);
    std::memset(k.sums, 0, sizeof(int16_t) * width);
  }
  int order[kKept + 1];  // the one asked for last comes first
  for (int i = 0; i <= kKept; ++i) order[i] = i;
  for (int32_t r = 0; r < rows; ++r, bits += words, y += pitch_y) {
    int nearest = 0;
    int32_t least = 64 * words + 1;
    for (int i = 0; i <= kKept && least > kNear; ++i) {
      int32_t apart = 0;
      for (int32_t w = 0; w < words; ++w)
        apart += __builtin_popcountll(bits[w] ^ kept[order[i]].bits[w]);
      if (apart < least) least = apart, nearest = i;
    }
    const int place = least > kNear || nearest == kKept ? kKept - 1 : nearest;
    const int to = order[place];
    const Kept& from = kept[order[nearest]];
    Change changes[64 * kMostWords];
    int32_t count = 0;
    for (int32_t w = 0; w < words; ++w) {
      const uint64_t seen = bits[w];
      for (uint64_t left = seen ^ from.bits[w]; left; left &= left - 1) {
        const int at = __builtin_ctzll(left);
        changes[count++] = {static_cast<int16_t>(64 * w + at),
                            static_cast<int16_t>((seen >> at & 1) - 1)};
      }
      kept[to].bits[w] = seen;
    }
    int32_t first = 0;
    for (; first + 4 * kWide <= width; first += 4 * kWide)
      change_sums<4>(layer, width, first, changes, count, from.sums, kept[to].sums);
    for (; first < width; first += kWide)
      change_sums<1>(layer, width, first, changes, count, from.sums, kept[to].sums);
    for (first = 0; first < width; first += kWide) {
      Halves sums;
      std::memcpy(&sums, kept[to].sums + first, sizeof sums);
      finish_first(layer, reciprocal, sums, first, y);
    }
    for (int i = place; i > 0; --i) order[i] = order[i - 1];
    order[0] = to;
  }
}

void pack(int32_t K, int32_t words, int32_t rows, const int8_t* planes, uint64_t* bits) {
  for (int32_t r = 0; r < rows; ++r, planes += K)
    for (int32_t w = 0; w < words; ++w) {
      const int32_t left = K - 64 * w;
      *bits++ = left > 0 ? bits_of(planes + 64 * w, left < 64 ? left : 64) : 0;
    }
}

constexpr Kernels own_kernels{run, run_first, pack};

}  // namespace

#endif

}  // namespace selfplay
