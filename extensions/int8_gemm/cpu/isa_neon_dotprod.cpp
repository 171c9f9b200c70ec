// NEON with the dot-product extension: signed x signed sums of four bytes (sdot), so activations
// stay as they are. Every Apple chip and most arm64 servers since 2018 have it.
#include <arm_neon.h>

#include "plan.h"

namespace eggroll::neon_dotprod {
#include "neon.h"

struct Isa : NeonIsa {
  using Prepared = uint32_t;  // [K/4][32], as the registers are
  using Noise = uint32_t;     // [K/4][16]

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(words) * kPairs; }
  static void prepare(const uint32_t* x, int words, Prepared* out) {
    __builtin_memcpy(out, x, prepared_size(words) * sizeof(Prepared));
  }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    __builtin_memcpy(out, raw, noise_size(words) * sizeof(Noise));
  }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 16) four(w + 4 * o, x + m, words, acc + o, m);
  }

  // Four outputs x 16 lanes in sixteen accumulators; one load of weights serves four outputs.
  static void four(const int8_t* w, const uint32_t* x, int words, int32_t (*acc)[kLanes], int m) {
    int32x4_t s[4][4];
    for (auto& row : s)
      for (int32x4_t& v : row) v = vdupq_n_s32(0);
    for (int k = 0; k < words; ++k, w += 4 * kTile, x += kLanes) {
      int8x16_t v = vld1q_s8(w);
      for (int i = 0; i < 4; ++i) {
        int8x16_t lanes = load(x + 4 * i);
        s[0][i] = vdotq_laneq_s32(s[0][i], lanes, v, 0);
        s[1][i] = vdotq_laneq_s32(s[1][i], lanes, v, 1);
        s[2][i] = vdotq_laneq_s32(s[2][i], lanes, v, 2);
        s[3][i] = vdotq_laneq_s32(s[3][i], lanes, v, 3);
      }
    }
    for (int o = 0; o < 4; ++o)
      for (int i = 0; i < 4; ++i) vst1q_s32(acc[o] + m + 4 * i, s[o][i]);
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    for (int m = 0; m < kLanes; m += 4) {
      int32x4_t sum = vdupq_n_s32(0);
      for (int k = 0; k < words; ++k)
        sum = vdotq_s32(sum, load(x + static_cast<size_t>(k) * kLanes + m),
                        load(b + static_cast<size_t>(k) * kPairs + m % kPairs));
      vst1q_s32(out + m, sum);
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
      for (int32x4_t& v : s) v = vdotq_s32(v, x, w);
      asm volatile("" : "+w"(x), "+w"(w));  // or the compiler would multiply once
    }
    for (int32x4_t& v : s) asm volatile("" : : "w"(v));
    return rounds * 16 * 16;
  }
};

using Matrix = TileMatrix<Isa>;
using LearnIsa = PortableLearn;
using Products = PortableProducts<Isa>;
using Adam = PortableAdam;

#include "unit.h"
extern const Kernels kernels = kernels_of("neon_dotprod");
}  // namespace eggroll::neon_dotprod
