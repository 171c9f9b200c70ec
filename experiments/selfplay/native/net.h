// A small int8 network on rows: hidden layers with ReLU, a policy and a value; the bits of the
// engine.
//
// linear: floor(W x / (16 floor(sqrt K))) within +-127; then plus the bias, within +-127; ReLU.
// Inputs and what comes out of a ReLU are 0 to 127, so that products are of unsigned and signed
// bytes. net_<name>.cpp includes it for an instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace selfplay {

constexpr int kLane = 16;  // outputs side by side
constexpr int kMostInputs = 4096;

// A layer: weights as [N / 16][K / 4][16][4], zero beyond K and N; bias [N].
struct Layer {
  int32_t inputs, outputs;  // K, N
  int32_t divisor;
  int32_t relu;
  const int8_t* weights;
  const int8_t* bias;

  int32_t quads() const { return (inputs + 3) / 4; }
  int32_t groups() const { return (outputs + kLane - 1) / kLane; }
};

// y int8 [rows, pitch_y] = layer(x uint8 [rows, pitch_x]); pitches are multiples of 4 and hold K
// and whole lanes of N; x is zero beyond K.
using RunLayer = void (*)(const Layer& layer, int32_t rows, const uint8_t* x, int32_t pitch_x,
                          int8_t* y, int32_t pitch_y);

RunLayer run_layer_of(int32_t set);  // 0 generic, 1 AVX-512 VNNI; or NULL

#ifdef SELFPLAY_DOT

namespace {

typedef int32_t Sums __attribute__((vector_size(4 * kLane)));
typedef float Reals __attribute__((vector_size(4 * kLane)));
typedef int8_t Bytes __attribute__((vector_size(kLane)));

inline Sums within(Sums x, int32_t least, int32_t most) {
  x = x < least ? Sums{} + least : x;
  return x > most ? Sums{} + most : x;
}

// A quotient of 256 at most is exact in float32 where truncation is: it is a whole number or at
// least 1 / divisor away from one.
inline void finish(const Layer& layer, Sums sums, int32_t group, int8_t* y) {
  const int32_t d = layer.divisor;
  const Sums shifted = within(sums, -128 * d, 127 * d) + 128 * d;
  const Reals quotients = __builtin_convertvector(shifted, Reals) / static_cast<float>(d);
  Sums v = within(__builtin_convertvector(quotients, Sums) - 128, -127, 127);
  Bytes bytes;
  std::memcpy(&bytes, layer.bias + group * kLane, kLane);
  v = within(v + __builtin_convertvector(bytes, Sums), layer.relu ? 0 : -127, 127);
  bytes = __builtin_convertvector(v, Bytes);
  std::memcpy(y + group * kLane, &bytes, kLane);
}

// Inputs that are zero in all rows, as most planes are, are left out four by four.
template <int kRows>
inline void run_rows(const Layer& layer, const uint8_t* x, int32_t pitch_x, int8_t* y,
                     int32_t pitch_y) {
  const int32_t quads = layer.quads(), groups = layer.groups();
  int32_t used[kMostInputs / 4], count = 0;
  for (int32_t k = 0; k < quads; ++k) {
    uint32_t any = 0;
    for (int r = 0; r < kRows; ++r) {
      uint32_t four;
      std::memcpy(&four, x + int64_t{r} * pitch_x + 4 * k, 4);
      any |= four;
    }
    used[count] = 4 * k;
    count += any != 0;
  }
  for (int32_t g = 0; g < groups; ++g) {
    Sums sums[kRows] = {};
    const int8_t* w = layer.weights + int64_t{g} * quads * 4 * kLane;
    for (int32_t i = 0; i < count; ++i)
      for (int r = 0; r < kRows; ++r)
        sums[r] =
            SELFPLAY_DOT(sums[r], x + int64_t{r} * pitch_x + used[i], w + int64_t{kLane} * used[i]);
    for (int r = 0; r < kRows; ++r) finish(layer, sums[r], g, y + int64_t{r} * pitch_y);
  }
}

void run(const Layer& layer, int32_t rows, const uint8_t* x, int32_t pitch_x, int8_t* y,
         int32_t pitch_y) {
  int32_t r = 0;
  for (; r + 8 <= rows; r += 8)
    run_rows<8>(layer, x + int64_t{r} * pitch_x, pitch_x, y + int64_t{r} * pitch_y, pitch_y);
  for (; r < rows; ++r)
    run_rows<1>(layer, x + int64_t{r} * pitch_x, pitch_x, y + int64_t{r} * pitch_y, pitch_y);
}

}  // namespace

#endif

}  // namespace selfplay
