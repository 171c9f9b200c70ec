// The parts that all units of NEON share: a vector, and primitives.

#include "portable.h"

// The vector that epilogue.h takes: four values of 32 bits.
struct V128 {
  static constexpr int kWidth = 4;         // lanes
  static constexpr bool kTurns16 = false;  // see PortableIsa::kPairsOfNodes
  int32x4_t v;

  static V128 of(int16x8_t x) { return {vreinterpretq_s32_s16(x)}; }
  static V128 of(uint16x8_t x) { return {vreinterpretq_s32_u16(x)}; }
  static V128 of(uint32x4_t x) { return {vreinterpretq_s32_u32(x)}; }
  static V128 of(int8x16_t x) { return {vreinterpretq_s32_s8(x)}; }
  uint32x4_t u32() const { return vreinterpretq_u32_s32(v); }
  int16x8_t s16() const { return vreinterpretq_s16_s32(v); }
  uint16x8_t u16() const { return vreinterpretq_u16_s32(v); }
  int8x16_t s8() const { return vreinterpretq_s8_s32(v); }

  static V128 load(const int32_t* p) { return {vld1q_s32(p)}; }
  static V128 loadu(const void* p) { return of(vld1q_s8(static_cast<const int8_t*>(p))); }
  static V128 widened(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return {vmovl_s16(vget_low_s16(vmovl_s8(bytes)))};
  }
  void store(uint32_t* p) const { vst1q_u32(p, u32()); }

  static V128 all32(int32_t x) { return {vdupq_n_s32(x)}; }
  static V128 all16(int x) { return of(vdupq_n_s16(static_cast<int16_t>(x))); }
  static V128 all8(int x) { return of(vdupq_n_s8(static_cast<int8_t>(x))); }
  // Sums wrap: gcc's intrinsics for signed numbers are its own signed arithmetic.
  V128 add32(V128 b) const { return of(vaddq_u32(u32(), b.u32())); }
  V128 sub32(V128 b) const { return of(vsubq_u32(u32(), b.u32())); }
  V128 mul32(V128 b) const { return of(vmulq_u32(u32(), b.u32())); }
  // Operators, as the compiler knows which shifts are constant, and of which it can make a sum.
  V128 sra32(int by) const { return {v >> by}; }
  V128 sra16(int by) const { return of(static_cast<int16x8_t>(s16() >> static_cast<int16_t>(by))); }
  V128 srl16(int by) const {
    return of(static_cast<uint16x8_t>(u16() >> static_cast<uint16_t>(by)));
  }
  V128 sll32(int by) const {
    return of(static_cast<uint32x4_t>(u32() << static_cast<uint32_t>(by)));
  }
  V128 adds16(V128 b) const { return of(vqaddq_s16(s16(), b.s16())); }
  V128 sub16(V128 b) const { return of(vsubq_u16(u16(), b.u16())); }
  V128 min_u16(V128 b) const { return of(vminq_u16(u16(), b.u16())); }
  V128 low16(V128 b) const { return of(vzip1q_s16(s16(), b.s16())); }
  V128 high16(V128 b) const { return of(vzip2q_s16(s16(), b.s16())); }
  // Twice the high half's worth, halved again: exact, as nobody multiplies -2^15 by itself.
  V128 mulhi16(V128 b) const { return of(vshrq_n_s16(vqdmulhq_s16(s16(), b.s16()), 1)); }
  V128 mulhi_u16(V128 b) const {
    const uint32x4_t low = vmull_u16(vget_low_u16(u16()), vget_low_u16(b.u16()));
    const uint32x4_t high = vmull_high_u16(u16(), b.u16());
    return of(vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high)));
  }
  V128 either(V128 b) const { return {vorrq_s32(v, b.v)}; }
  V128 flipped(V128 b) const { return {veorq_s32(v, b.v)}; }
  V128 both(V128 b) const { return {vandq_s32(v, b.v)}; }
  // Both halves of a word times the other's, whose products fit 16 bits, added up.
  V128 dot16(V128 a, V128 b) const { return {vpadalq_s16(v, vmulq_s16(a.s16(), b.s16()))}; }
  V128 packs32(V128 b) const { return of(vqmovn_high_s32(vqmovn_s32(v), b.v)); }
  V128 packus32(V128 b) const { return of(vqmovun_high_s32(vqmovun_s32(v), b.v)); }
  V128 packs16(V128 b) const { return of(vqmovn_high_s16(vqmovn_s16(s16()), b.s16())); }
  V128 max8(V128 b) const { return of(vmaxq_s8(s8(), b.s8())); }
  V128 turned() const {  // bytes 4 j + i to 4 i + j
    static constexpr uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return of(vqtbl1q_s8(s8(), vld1q_u8(kOrder)));
  }
};

// The compiler turns the rest of PortableIsa into NEON by itself; these it leaves as loops over
// single bytes. Products are each unit's own.
struct NeonIsa : PortableIsa {
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

  // One round interleaves rows i and i + 8; after four rounds rows have become columns.
  static void transpose(const int8_t* const* src, int8_t* dst) {
    int8x16_t a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = vld1q_s8(src[i]);
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 8; ++i) {
        b[2 * i] = vzip1q_s8(a[i], a[i + 8]);
        b[2 * i + 1] = vzip2q_s8(a[i], a[i + 8]);
      }
      for (int i = 0; i < 16; ++i) a[i] = b[i];
    }
    for (int i = 0; i < 16; ++i) vst1q_s8(dst + 16 * i, a[i]);
  }

  // dst[w * stride + p] = the w-th word of row src[p], for p = 0..15 and w < words.
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    int w = 0, whole = words & ~3;
    for (; w < whole; w += 4, dst += 4 * stride)
      for (int p = 0; p < kPairs; p += 4) {
        uint32x4_t r[4];
        for (int i = 0; i < 4; ++i) r[i] = load_words(src[p + i] + 4 * w);
        uint32x4_t a = vzip1q_u32(r[0], r[2]), b = vzip2q_u32(r[0], r[2]);
        uint32x4_t c = vzip1q_u32(r[1], r[3]), d = vzip2q_u32(r[1], r[3]);
        vst1q_u32(dst + p, vzip1q_u32(a, c));
        vst1q_u32(dst + stride + p, vzip2q_u32(a, c));
        vst1q_u32(dst + 2 * stride + p, vzip1q_u32(b, d));
        vst1q_u32(dst + 3 * stride + p, vzip2q_u32(b, d));
      }
    for (; w < words; ++w, dst += stride)
      for (int p = 0; p < kPairs; ++p) __builtin_memcpy(dst + p, src[p] + 4 * w, 4);
  }

  // EXP2[u] = mantissa[u % 16] >> (15 - u / 16), the sixteen mantissas in the four registers of one
  // table. With u = byte ^ 128: u % 16 is the byte's low nibble, 15 - u / 16 its high nibble ^ 7.
  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    uint8x16x4_t mantissa;
    for (int i = 0; i < 4; ++i)
      mantissa.val[i] = vreinterpretq_u8_u32(vld1q_u32(plan.exp2_mantissa + 4 * i));
    const uint32x4_t nibble = vdupq_n_u32(15), seven = vdupq_n_u32(7);
    for (int m = 0; m < kLanes; m += 4) {
      uint32x4_t total = vld1q_u32(sum + m);
      for (int o = 0; o < count; ++o) {
        uint32x4_t byte = vshlq_u32(vld1q_u32(words[o / 4] + m), vdupq_n_s32(-8 * (o % 4)));
        uint32x4_t high = veorq_u32(vandq_u32(vshrq_n_u32(byte, 4), nibble), seven);
        // The four byte positions of a mantissa in the table.
        uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), vandq_u32(byte, nibble), 0x04040404);
        uint32x4_t value = vreinterpretq_u32_u8(vqtbl4q_u8(mantissa, vreinterpretq_u8_u32(at)));
        total = vaddq_u32(total, vshlq_u32(value, vnegq_s32(vreinterpretq_s32_u32(high))));
      }
      vst1q_u32(sum + m, total);
    }
  }
};
