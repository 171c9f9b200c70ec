// NEON with the int8 matrix extension: 2 x 8 by 8 x 2 products of signed bytes (smmla), twice the
// multiply-adds of a dot product. Apple's chips from M2 on and arm64 servers since 2021 have it.
#include <arm_neon.h>

#include "plan.h"

namespace eggroll::neon_i8mm {
#include "neon.h"

struct Isa : NeonIsa {
  using Prepared = uint32_t;  // [K/8][32][2]: eight bytes of a lane together, zero beyond K
  using Noise = uint32_t;     // [K/8][16][2]

  static size_t even(int words) { return (static_cast<size_t>(words) + 1) & ~size_t{1}; }
  static size_t prepared_size(int words) { return even(words) * kLanes; }
  static size_t noise_size(int words) { return even(words) * kPairs; }

  template <int lanes>
  static void join(const uint32_t* x, int words, uint32_t* out) {
    for (int k = 0; k < words; k += 2, x += 2 * lanes, out += 2 * lanes)
      for (int m = 0; m < lanes; m += 4) {
        uint32x4_t a = vld1q_u32(x + m);
        uint32x4_t b = k + 1 < words ? vld1q_u32(x + lanes + m) : vdupq_n_u32(0);
        vst1q_u32(out + 2 * m, vzip1q_u32(a, b));
        vst1q_u32(out + 2 * m + 4, vzip2q_u32(a, b));
      }
  }

  static void prepare(const uint32_t* x, int words, Prepared* out) { join<kLanes>(x, words, out); }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    join<kPairs>(raw, words, out);
  }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 16) four(w + 4 * o, x + 2 * m, words, acc + o, m);
  }

  // Two outputs x two lanes to an accumulator: s[0] outputs 0 and 1, s[1] outputs 2 and 3.
  static void step(int32x4_t (*s)[8], uint32x4_t a, uint32x4_t b, const uint32_t* x) {
    int8x16_t w0 = vreinterpretq_s8_u32(vzip1q_u32(a, b));
    int8x16_t w1 = vreinterpretq_s8_u32(vzip2q_u32(a, b));
    for (int i = 0; i < 8; ++i) {
      int8x16_t lanes = load(x + 4 * i);
      s[0][i] = vmmlaq_s32(s[0][i], w0, lanes);
      s[1][i] = vmmlaq_s32(s[1][i], w1, lanes);
    }
  }

  // Four outputs x 16 lanes in sixteen accumulators.
  static void four(const int8_t* w, const uint32_t* x, int words, int32_t (*acc)[kLanes], int m) {
    int32x4_t s[2][8];
    for (auto& row : s)
      for (int32x4_t& v : row) v = vdupq_n_s32(0);
    for (int k = 0; k + 2 <= words; k += 2, w += 8 * kTile, x += 2 * kLanes)
      step(s, load_words(w), load_words(w + 4 * kTile), x);
    if (words % 2) step(s, load_words(w), vdupq_n_u32(0), x);
    for (int o = 0; o < 4; o += 2)
      for (int i = 0; i < 8; i += 2) {
        int64x2_t a = vreinterpretq_s64_s32(s[o / 2][i]),
                  b = vreinterpretq_s64_s32(s[o / 2][i + 1]);
        vst1q_s32(acc[o] + m + 2 * i, vreinterpretq_s32_s64(vzip1q_s64(a, b)));
        vst1q_s32(acc[o + 1] + m + 2 * i, vreinterpretq_s32_s64(vzip2q_s64(a, b)));
      }
  }

  // Two sums per lane, of the first and the second four bytes of its eight.
  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    for (int m = 0; m < kLanes; m += 4) {
      int32x4_t low = vdupq_n_s32(0), high = low;
      const uint32_t *from = x + 2 * m, *noise = b + 2 * (m % kPairs);
      for (int k = 0; k < words; k += 2, from += 2 * kLanes, noise += 2 * kPairs) {
        low = vdotq_s32(low, load(from), load(noise));
        high = vdotq_s32(high, load(from + 4), load(noise + 4));
      }
      vst1q_s32(out + m, vpaddq_s32(low, high));
    }
  }

  template <bool>
  static void tile(const int8_t* w, const Prepared* x, int words, const LowRank& noise,
                   const Scale& by, uint32_t (*out)[kLanes]) {
    tile_by<Isa, Epilogue<V128>>(w, x, words, noise, by, out);
  }

  static int64_t peak(int64_t rounds) {
    int32x4_t s[16];
    for (int32x4_t& v : s) v = vdupq_n_s32(0);
    int8x16_t x = vdupq_n_s8(3), w = vdupq_n_s8(-5);
    for (int64_t i = 0; i < rounds; ++i) {
      for (int32x4_t& v : s) v = vmmlaq_s32(v, x, w);
      asm volatile("" : "+w"(x), "+w"(w));  // or the compiler would multiply once
    }
    for (int32x4_t& v : s) asm volatile("" : : "w"(v));
    return rounds * 16 * 32;
  }
};

using Matrix = TileMatrix<Isa>;
using LearnIsa = PortableLearn;
using Products = PortableProducts<Isa>;
using Adam = PortableAdam;

#include "unit.h"
extern const Kernels kernels = kernels_of("neon_i8mm");
}  // namespace eggroll::neon_i8mm
