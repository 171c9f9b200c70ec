// NEON without products: norm, noise of an embedding, and operations element by element. Included
// inside each unit's namespace, after portable_isa.h.

#include "means.h"

struct NeonElements : PortableIsa {
  static constexpr bool kPairsOfOutputs = true;

  static int8x16_t load(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }
  static uint32x4_t load_words(const void* p) { return vreinterpretq_u32_s8(load(p)); }

  // Clipped to +-127.
  static void store16(int8_t* y, int16x8_t low, int16x8_t high) {
    vst1q_s8(y, vmaxq_s8(vqmovn_high_s16(vqmovn_s16(low), high), vdupq_n_s8(-127)));
  }

  static void add(const int8_t* a, const int8_t* b, int count, int8_t* y) {
    for (int i = 0; i < count; i += 16)
      vst1q_s8(y + i, vmaxq_s8(vqaddq_s8(load(a + i), load(b + i)), vdupq_n_s8(-127)));
  }

  static void add_bias(const int8_t* a, const int8_t* b, const int8_t* w, int count, int8_t* y) {
    for (int i = 0; i < count; i += 16) {
      const int8x16_t u = load(a + i), v = load(b + i), x = load(w + i);
      const int16x8_t low = vaddl_s8(vget_low_s8(u), vget_low_s8(v));
      store16(y + i, vaddw_s8(low, vget_low_s8(x)), vaddw_high_s8(vaddl_high_s8(u, v), x));
    }
  }

  // (f + 127) s >> 8, at most 127 * 254 before the shift.
  static void forget(const int8_t* f, const int8_t* s, int count, int8_t* y, bool) {
    const int8x16_t all = vdupq_n_s8(127);
    for (int i = 0; i < count; i += 16) {
      const int8x16_t gate = load(f + i), old = load(s + i);
      const int8x8_t half = vget_low_s8(old);
      const int16x8_t low = vmlal_s8(vmull_s8(half, vget_low_s8(gate)), half, vget_low_s8(all));
      const int16x8_t high = vmlal_high_s8(vmull_high_s8(old, gate), old, all);
      vst1q_s8(y + i, vshrn_high_n_s16(vshrn_n_s16(low, 8), high, 8));
    }
  }

  // (gate d) >> 8 with d = h - s of nine bits, as the high half of 2 (128 gate) d. What is added to
  // s can have nine bits, their sum cannot.
  static void mix(const int8_t* f, const int8_t* h, const int8_t* s, int count, int8_t* y,
                  int8_t*) {
    for (int i = 0; i < count; i += 16) {
      const int8x16_t next = load(h + i), old = load(s + i);
      const uint8x16_t gate = vaddq_u8(vreinterpretq_u8_s8(load(f + i)), vdupq_n_u8(127));
      auto part = [](uint16x8_t by, int16x8_t d) {
        return vreinterpretq_s8_s16(vqdmulhq_s16(vreinterpretq_s16_u16(by), d));
      };
      const int8x16_t low =
          part(vshll_n_u8(vget_low_u8(gate), 7), vsubl_s8(vget_low_s8(next), vget_low_s8(old)));
      const int8x16_t high = part(vshll_high_n_u8(gate, 7), vsubl_high_s8(next, old));
      const uint8x16_t step = vreinterpretq_u8_s8(vuzp1q_s8(low, high));
      vst1q_s8(y + i, vreinterpretq_s8_u8(vaddq_u8(vreinterpretq_u8_s8(old), step)));
    }
  }

  // By the means of each lane's |x|, as Means divides: its shift, and the bit that twice the high
  // half has too many.
  static void norm(const uint32_t* x, const int8_t* w, int n, int8_t* y, bool) {
    alignas(64) int32_t sum[kLanes];
    abs_sum(x, n, sum);
    alignas(64) int16_t factor[4 * kLanes], shift[4 * kLanes];
    for (int m = 0; m < kLanes; ++m) {
      const int mean = mean_of(sum[m], n);
      vst1_s16(factor + 4 * m, vdup_n_s16(static_cast<int16_t>(kMeans.factor[mean])));
      vst1_s16(shift + 4 * m, vdup_n_s16(static_cast<int16_t>(-1 - kMeans.shift[mean])));
    }
    const int8_t* bytes = reinterpret_cast<const int8_t*>(x);
    auto quotients = [](int16x8_t v, const int16_t* by, const int16_t* bits) {
      const int16x8_t odd = vorrq_s16(vaddq_s16(v, v), vdupq_n_s16(1));
      return vshlq_s16(vqdmulhq_s16(odd, vld1q_s16(by)), vld1q_s16(bits));
    };
    for (int k = 0; k < words_of(n); ++k, bytes += 4 * kLanes, w += 4 * kLanes, y += 4 * kLanes)
      for (int i = 0; i < 4 * kLanes; i += 16) {
        const int8x16_t v = load(bytes + i), u = load(w + i);
        const int16x8_t low = vmull_s8(vget_low_s8(v), vget_low_s8(u));
        store16(y + i, quotients(low, factor + i, shift + i),
                quotients(vmull_high_s8(v, u), factor + i + 8, shift + i + 8));
      }
  }

  static void abs_sum(const uint32_t* x, int n, int32_t* sum) {
    for (int m = 0; m < kLanes; m += 4) {
      uint32x4_t total = vdupq_n_u32(0);
      const int words = words_of(n);
      auto step = [&](uint32x4_t word) {
        const int8x16_t size = vabsq_s8(vreinterpretq_s8_u32(word));
        total = vpadalq_u16(total, vpaddlq_u8(vreinterpretq_u8_s8(size)));
      };
      for (int k = 0; k + 1 < words; ++k) step(vld1q_u32(x + k * kLanes + m));
      step(vandq_u32(vld1q_u32(x + (words - 1) * kLanes + m), vdupq_n_u32(last_word(n))));
      vst1q_s32(sum + m, vreinterpretq_s32_u32(total));
    }
  }

  // y = clip(y + (a b >> shift)), the products of 15 bits.
  static void embed_noise(const int32_t (*xb)[kLanes], const uint32_t* raw, int rank, int words,
                          int shift, uint32_t* y) {
    if (rank > 1) return PortableIsa::embed_noise(xb, raw, rank, words, shift, y);
    const int16x8_t down = vdupq_n_s16(static_cast<int16_t>(shift < 15 ? -shift : -15));
    alignas(64) int8_t a[4 * kLanes];
    for (int m = 0; m < kLanes; ++m) __builtin_memset(a + 4 * m, static_cast<int8_t>(xb[0][m]), 4);
    for (int w = 0; w < words; ++w, raw += kPairs, y += kLanes)
      for (int m = 0; m < kLanes; m += 4) {
        int8_t* to = reinterpret_cast<int8_t*>(y + m);
        const int8x16_t b = load(raw + m % kPairs), by = load(a + 4 * m), old = load(to);
        const int16x8_t low = vshlq_s16(vmull_s8(vget_low_s8(b), vget_low_s8(by)), down);
        const int16x8_t high = vshlq_s16(vmull_high_s8(b, by), down);
        store16(to, vaddw_s8(low, vget_low_s8(old)), vaddw_high_s8(high, old));
      }
  }
};
