// NEON as every arm64 processor has it: products of bytes in 16 bits (smull, smlal), added in pairs
// to 32 bits (sadalp). Two products of values in +-127 fit 16 bits exactly; a third would not.
#include <arm_neon.h>

#include "plan.h"

namespace eggroll::neon {
#include "neon.h"

struct Isa : NeonIsa {
  using Prepared = uint16_t;  // [K/2][32] pairs of neighbouring bytes
  using Noise = uint16_t;     // [K/2][16]

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * 2 * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(words) * 2 * kPairs; }

  // Bytes 0, 1 and bytes 2, 3 of every word as two rows of pairs.
  template <int lanes>
  static void halve(const uint32_t* x, int words, uint16_t* out) {
    for (int w = 0; w < words; ++w, x += lanes, out += 2 * lanes)
      for (int m = 0; m < lanes; m += 8) {
        uint16x8_t a = vreinterpretq_u16_u32(vld1q_u32(x + m));
        uint16x8_t b = vreinterpretq_u16_u32(vld1q_u32(x + m + 4));
        vst1q_u16(out + m, vuzp1q_u16(a, b));
        vst1q_u16(out + lanes + m, vuzp2q_u16(a, b));
      }
  }

  static void prepare(const uint32_t* x, int words, Prepared* out) { halve<kLanes>(x, words, out); }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    halve<kPairs>(raw, words, out);
  }

  // Four lanes' sums of two pairs each: a[0..3] += x . w + y . v, then the same for a[4..7].
  static void accumulate(int32x4_t* a, int8x16_t x, int8x16_t w, int8x16_t y, int8x16_t v) {
    int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w));
    int16x8_t high = vmull_high_s8(x, w);
    a[0] = vpadalq_s16(a[0], vmlal_s8(low, vget_low_s8(y), vget_low_s8(v)));
    a[1] = vpadalq_s16(a[1], vmlal_high_s8(high, y, v));
  }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 16) four(w + 4 * o, x + m, words, acc + o, m);
  }

  // One output's next four inputs on 16 lanes: the pairs 2o and 2o + 1 of v by x and y.
  template <int o>
  static void output(int32x4_t* s, int16x8_t v, int8x16_t* x, int8x16_t* y) {
    int8x16_t w0 = vreinterpretq_s8_s16(vdupq_laneq_s16(v, 2 * o));
    int8x16_t w1 = vreinterpretq_s8_s16(vdupq_laneq_s16(v, 2 * o + 1));
    accumulate(s, x[0], w0, y[0], w1);
    accumulate(s + 2, x[1], w0, y[1], w1);
    // Keeps gcc from taking all outputs' products first, for which there are no registers.
    asm volatile("" : "+w"(x[0]), "+w"(x[1]), "+w"(y[0]), "+w"(y[1]));
  }

  // Four outputs x 16 lanes in sixteen accumulators.
  static void four(const int8_t* w, const uint16_t* x, int words, int32_t (*acc)[kLanes], int m) {
    int32x4_t s[4][4];
    for (auto& row : s)
      for (int32x4_t& v : row) v = vdupq_n_s32(0);
    for (int k = 0; k < words; ++k, w += 4 * kTile, x += 2 * kLanes) {
      int16x8_t v = vreinterpretq_s16_s8(load(w));
      int8x16_t first[2] = {load(x), load(x + 8)};
      int8x16_t second[2] = {load(x + kLanes), load(x + kLanes + 8)};
      output<0>(s[0], v, first, second);
      output<1>(s[1], v, first, second);
      output<2>(s[2], v, first, second);
      output<3>(s[3], v, first, second);
    }
    for (int o = 0; o < 4; ++o)
      for (int i = 0; i < 4; ++i) vst1q_s32(acc[o] + m + 4 * i, s[o][i]);
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    for (int m = 0; m < kLanes; m += 8) {
      int32x4_t sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
      const uint16_t *from = x + m, *noise = b + m % kPairs;
      for (int k = 0; k < words; ++k, from += 2 * kLanes, noise += 2 * kPairs)
        accumulate(sum, load(from), load(noise), load(from + kLanes), load(noise + kPairs));
      vst1q_s32(out + m, sum[0]);
      vst1q_s32(out + m + 4, sum[1]);
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
    for (int64_t i = 0; i < rounds; ++i)
      for (int j = 0; j < 16; j += 2) {
        accumulate(s + j, x, w, w, x);
        asm volatile("" : "+w"(x), "+w"(w));  // or the compiler would multiply once
      }
    for (int32x4_t& v : s) asm volatile("" : : "w"(v));
    return rounds * 8 * 32;
  }
};

using Matrix = TileMatrix<Isa>;
using LearnIsa = PortableLearn;
using Products = PortableProducts<Isa>;
using Adam = PortableAdam;

#include "unit.h"
extern const Kernels kernels = kernels_of("neon");
}  // namespace eggroll::neon
