// The primitives of AVX512-VNNI, see x86_vnni.h. Included by units of AVX-512 inside their own
// namespaces, after x86_vnni.h.
#include "avx512_elements.h"
//
#include "avx512_credit.h"
//
#include "x86_vector.h"
//
#include "avx512_vector.h"
//
#include "epilogue.h"
//
#include "avx512_transpose.h"

struct Avx512Isa : Avx512Credit {
  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_avx512(src, dst); }
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    transpose_words_avx512(src, words, dst, stride);
  }
  static inline __attribute__((always_inline)) void interleave(const int8_t* const* src, int at,
                                                               uint32_t negative, uint32_t* first,
                                                               uint32_t* second) {
    interleave_avx512(src, at, negative, first, second);
  }

  static constexpr bool kPairsOfOutputs = true, kPairsOfNodes = V512::kTurns16;
  static constexpr int kOffered = 2;

  // See portable_isa.h.
  static void pair_outputs(const int8_t* a, int outputs, int up, bool grouped, uint32_t* to) {
    const __m128i by = _mm_cvtsi32_si128(up);
    for (int o = 0; o < outputs; o += 2, to += kPairs) {
      const __m128i first = _mm_load_si128(reinterpret_cast<const __m128i*>(a + o * kPairs));
      const __m128i second = _mm_load_si128(reinterpret_cast<const __m128i*>(a + (o + 1) * kPairs));
      const __m256i bytes = grouped ? _mm256_set_m128i(_mm_unpackhi_epi32(first, second),
                                                       _mm_unpacklo_epi32(first, second))
                                    : _mm256_set_m128i(_mm_unpackhi_epi8(first, second),
                                                       _mm_unpacklo_epi8(first, second));
      _mm512_store_si512(to, _mm512_sll_epi16(_mm512_cvtepi8_epi16(bytes), by));
    }
  }

  static bool twice(const int32_t* x, int by, const Scale& scale, uint32_t* to) {
    if (by < 0) return false;
    __mmask16 fit = 0xFFFF;
    const __m512i limit = _mm512_set1_epi32(scale.largest >> by);
    for (int m = 0; m < kLanes; m += kPairs) {
      const __m512i v = _mm512_loadu_si512(x + m), w = _mm512_sll_epi32(v, _mm_cvtsi32_si128(by));
      fit &= _mm512_cmple_epu32_mask(_mm512_abs_epi32(v), limit);
      _mm512_store_si512(
          to + m, scale.grouped ? _mm512_packs_epi32(w, w)
                                : _mm512_mask_blend_epi16(0xAAAAAAAA, w, _mm512_slli_epi32(w, 16)));
    }
    return fit == 0xFFFF;
  }

  // Eight outputs x 32 lanes in sixteen accumulators, a: members 2i, b: members 2i + 1. The loop is
  // assembly because gcc spills accumulators of the same loop written with intrinsics.
  static inline __attribute__((always_inline)) void multiply(const int8_t* tile, const Prepared* x,
                                                             int words, __m512i* a, __m512i* b) {
    // Both ends are addressed by one counter, up to zero: other counting would take the ports of
    // the products.
    // Weights are asked for 32 rounds before they are multiplied: where a part has more of them
    // than the first cache holds, products would wait for the second.
    const int8_t* w = tile + kTile * sizeof(int32_t) + words * 4l * kTile;
    const Prepared* end = x + words * long{kLanes};
    long n = words * -4l * kTile;
    register __m512i a0 asm("zmm0");
    register __m512i b0 asm("zmm8");
    register __m512i a1 asm("zmm1");
    register __m512i b1 asm("zmm9");
    register __m512i a2 asm("zmm2");
    register __m512i b2 asm("zmm10");
    register __m512i a3 asm("zmm3");
    register __m512i b3 asm("zmm11");
    register __m512i a4 asm("zmm4");
    register __m512i b4 asm("zmm12");
    register __m512i a5 asm("zmm5");
    register __m512i b5 asm("zmm13");
    register __m512i a6 asm("zmm6");
    register __m512i b6 asm("zmm14");
    register __m512i a7 asm("zmm7");
    register __m512i b7 asm("zmm15");
    asm volatile(
        "vpbroadcastd 0(%[s]), %%zmm0\n\t"
        "vpbroadcastd 4(%[s]), %%zmm1\n\t"
        "vpbroadcastd 8(%[s]), %%zmm2\n\t"
        "vpbroadcastd 12(%[s]), %%zmm3\n\t"
        "vpbroadcastd 16(%[s]), %%zmm4\n\t"
        "vpbroadcastd 20(%[s]), %%zmm5\n\t"
        "vpbroadcastd 24(%[s]), %%zmm6\n\t"
        "vpbroadcastd 28(%[s]), %%zmm7\n\t"
        "vmovdqa64 %%zmm0, %%zmm8\n\t"
        "vmovdqa64 %%zmm1, %%zmm9\n\t"
        "vmovdqa64 %%zmm2, %%zmm10\n\t"
        "vmovdqa64 %%zmm3, %%zmm11\n\t"
        "vmovdqa64 %%zmm4, %%zmm12\n\t"
        "vmovdqa64 %%zmm5, %%zmm13\n\t"
        "vmovdqa64 %%zmm6, %%zmm14\n\t"
        "vmovdqa64 %%zmm7, %%zmm15\n\t"
        "1:\n\t"
        "vmovdqu32 (%[x],%[n],4), %%zmm16\n\t"
        "vmovdqu32 64(%[x],%[n],4), %%zmm17\n\t"
        "vpbroadcastd (%[w],%[n]), %%zmm18\n\t"
        "vpbroadcastd 4(%[w],%[n]), %%zmm19\n\t"
        "vpbroadcastd 8(%[w],%[n]), %%zmm20\n\t"
        "vpbroadcastd 12(%[w],%[n]), %%zmm21\n\t"
        "prefetcht0 1024(%[w],%[n])\n\t"
        "vpdpbusd %%zmm18, %%zmm16, %%zmm0\n\t"
        "vpdpbusd %%zmm18, %%zmm17, %%zmm8\n\t"
        "vpdpbusd %%zmm19, %%zmm16, %%zmm1\n\t"
        "vpdpbusd %%zmm19, %%zmm17, %%zmm9\n\t"
        "vpdpbusd %%zmm20, %%zmm16, %%zmm2\n\t"
        "vpdpbusd %%zmm20, %%zmm17, %%zmm10\n\t"
        "vpdpbusd %%zmm21, %%zmm16, %%zmm3\n\t"
        "vpdpbusd %%zmm21, %%zmm17, %%zmm11\n\t"
        "vpbroadcastd 16(%[w],%[n]), %%zmm22\n\t"
        "vpbroadcastd 20(%[w],%[n]), %%zmm23\n\t"
        "vpbroadcastd 24(%[w],%[n]), %%zmm24\n\t"
        "vpbroadcastd 28(%[w],%[n]), %%zmm25\n\t"
        "vpdpbusd %%zmm22, %%zmm16, %%zmm4\n\t"
        "vpdpbusd %%zmm22, %%zmm17, %%zmm12\n\t"
        "vpdpbusd %%zmm23, %%zmm16, %%zmm5\n\t"
        "vpdpbusd %%zmm23, %%zmm17, %%zmm13\n\t"
        "vpdpbusd %%zmm24, %%zmm16, %%zmm6\n\t"
        "vpdpbusd %%zmm24, %%zmm17, %%zmm14\n\t"
        "vpdpbusd %%zmm25, %%zmm16, %%zmm7\n\t"
        "vpdpbusd %%zmm25, %%zmm17, %%zmm15\n\t"
        "add $32, %[n]\n\t"
        "jnz 1b\n\t"
        : [n] "+r"(n), "=v"(a0), "=v"(b0), "=v"(a1), "=v"(b1), "=v"(a2), "=v"(b2), "=v"(a3),
          "=v"(b3), "=v"(a4), "=v"(b4), "=v"(a5), "=v"(b5), "=v"(a6), "=v"(b6), "=v"(a7), "=v"(b7)
        : [s] "r"(tile), [x] "r"(end), [w] "r"(w)
        : "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm24", "zmm25",
          "cc", "memory");
    a[0] = a0;
    b[0] = b0;
    a[1] = a1;
    b[1] = b1;
    a[2] = a2;
    b[2] = b2;
    a[3] = a3;
    b[3] = b3;
    a[4] = a4;
    b[4] = b4;
    a[5] = a5;
    b[5] = b5;
    a[6] = a6;
    b[6] = b6;
    a[7] = a7;
    b[7] = b7;
  }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    __m512i a[kTile], b[kTile];
    multiply(tile, x, words, a, b);
    for (int o = 0; o < kTile; ++o) {
      _mm512_store_si512(acc[o], a[o]);
      _mm512_store_si512(acc[o] + kPairs, b[o]);
    }
  }

  static int64_t peak(int64_t rounds) {
    int64_t n = rounds;
    asm volatile(
        "1:\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm0\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm1\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm2\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm3\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm4\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm5\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm6\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm7\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm8\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm9\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm10\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm11\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm12\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm13\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm14\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm15\n\t"
        "dec %[n]\n\t"
        "jnz 1b\n\t"
        : [n] "+r"(n)
        :
        : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10",
          "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "cc");
    return rounds * 16 * 64;
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    // Two sums a lane, as one would wait for itself.
    __m512i plus[2] = {_mm512_load_si512(b), _mm512_setzero_si512()};
    __m512i minus[2] = {plus[0], plus[1]};
    auto step = [&](int i) {
      const __m512i n = _mm512_load_si512(b += kPairs);
      plus[i] = _mm512_dpbusd_epi32(plus[i], _mm512_load_si512(x), n);
      minus[i] = _mm512_dpbusd_epi32(minus[i], _mm512_load_si512(x + kPairs), n);
      x += kLanes;
    };
    for (int k = 0; k < words / 2; ++k) step(0), step(1);
    if (words % 2) step(0);
    _mm512_storeu_si512(out, _mm512_add_epi32(plus[0], plus[1]));
    _mm512_storeu_si512(out + kPairs, _mm512_add_epi32(minus[0], minus[1]));
  }

  // Product, low-rank term, division and clip of one tile, all in registers.
  template <bool flip>
  static inline __attribute__((always_inline)) void tile(const int8_t* w, const Prepared* x,
                                                         int words, const LowRank& noise,
                                                         const Scale& by, uint32_t (*out)[kLanes]) {
    if (noise.rank > 1) return tile_of_ranks<flip>(w, x, words, noise, by, out);
    using Finish = Epilogue<V512>;
    __m512i a[kTile], b[kTile];
    multiply(w, x, words, a, b);
    V512 v[2 * kTile];
    for (int o = 0; o < kTile; ++o) v[o].v = a[o], v[kTile + o].v = b[o];
    if (noise.fits && by.grouped)
      return by.power ? finish_grouped<true, flip>(v, noise, by, out)
                      : finish_grouped<false, flip>(v, noise, by, out);
    for (int i = 0; noise.fits && i < 2 * kTile; i += 4)
      Finish::perturb_pairs(v + i, noise, i % kTile, i / kTile * kPairs);
    for (int i = 0; noise.rank && !noise.fits && i < 2 * kTile; i += 4)
      Finish::perturb_wide(v + i, noise, by, i % kTile, i / kTile * kPairs);
    for (int i = 0; noise.node && i < 2 * kTile; i += 4)
      Finish::perturb_nodes(v + i, noise, i % kTile, i / kTile * kPairs);
    for (int i = 0; !noise.rank && noise.pairs && i < 2 * kTile; i += 4)
      Finish::perturb_turned(v + i, noise, i % kTile, i / kTile * kPairs);
    // Not by `divided`: what a lambda refers to goes through memory.
    if (by.power && by.shift >= 8)
      by.early ? finish_high<true, flip>(v, by, out) : finish_high<false, flip>(v, by, out);
    else if (by.early)
      by.power ? finish<true, true, flip>(v, by, out) : finish<false, true, flip>(v, by, out);
    else
      by.power ? finish<true, false, flip>(v, by, out) : finish<false, false, flip>(v, by, out);
  }

  // Each for four outputs of 16 lanes after another.
  template <bool power, bool flip>
  static inline __attribute__((always_inline)) void finish_grouped(const V512* v,
                                                                   const LowRank& noise,
                                                                   const Scale& by,
                                                                   uint32_t (*out)[kLanes]) {
    for (int i = 0; i < 2 * kTile; i += 4)
      put<flip>(Epilogue<V512>::grouped<power>(v + i, noise, i % kTile, i / kTile * kPairs, by), i,
                out);
  }

  template <bool power, bool early, bool flip>
  static inline __attribute__((always_inline)) void finish(const V512* v, const Scale& by,
                                                           uint32_t (*out)[kLanes]) {
    for (int i = 0; i < 2 * kTile; i += 4)
      put<flip>(Epilogue<V512>::word<power, early>(v + i, by), i, out);
  }

  template <bool early, bool flip>
  static inline __attribute__((always_inline)) void finish_high(const V512* v, const Scale& by,
                                                                uint32_t (*out)[kLanes]) {
    for (int i = 0; i < 2 * kTile; i += 4)
      put<flip>(Epilogue<V512>::high_bytes<early>(v + i, by), i, out);
  }

  template <bool flip>
  static inline __attribute__((always_inline)) void put(V512 word, int i, uint32_t (*out)[kLanes]) {
    _mm512_store_si512(out[i % kTile / 4] + i / kTile * kPairs,
                       _mm512_xor_si512(word.v, flipped(flip)));
  }

  // Apart, because here the accumulators go through memory.
  template <bool flip>
  static __attribute__((noinline)) void tile_of_ranks(const int8_t* w, const Prepared* x, int words,
                                                      const LowRank& noise, const Scale& by,
                                                      uint32_t (*out)[kLanes]) {
    tile_by<Avx512Isa, Epilogue<V512>>(w, x, words, noise, by, out);
    for (int i = 0; flip && i < 2 * kTile; i += 4)
      put<flip>(V512::loadu(out[i % kTile / 4] + i / kTile * kPairs), i, out);
  }

  static void embed_noise(const int32_t (*xb)[kLanes], const uint32_t* raw, int rank, int words,
                          int shift, uint32_t* y) {
    if (rank > 1)
      PortableIsa::embed_noise(xb, raw, rank, words, shift, y);
    else if (shift < 8)
      add_products<true>(xb[0], raw, words, shift, y);
    else
      add_products<false>(xb[0], raw, words, shift, y);
  }

  // y += (a b) >> shift, the high half of a product with b times 256. wide: it can be more than a
  // byte.
  template <bool wide>
  static void add_products(const int32_t* a, const uint32_t* raw, int words, int shift,
                           uint32_t* y) {
    const __m128i up = _mm_cvtsi32_si128(wide ? 8 - shift : 0);
    const __m128i down = _mm_cvtsi32_si128(wide ? 0 : shift - 8);
    const __m512i lane = _mm512_load_si512(kUnpacked.lane);
    __m512i by[2][2];  // of members 2i and 2i + 1, for the bytes of each unpacked half
    for (int half = 0; half < 2; ++half) {
      const __m512i v = _mm512_load_si512(a + half * kPairs);
      const __m512i narrow = _mm512_sll_epi16(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(v)), up);
      by[half][0] = _mm512_permutexvar_epi16(lane, narrow);
      by[half][1] = _mm512_permutexvar_epi16(_mm512_add_epi16(lane, _mm512_set1_epi16(2)), narrow);
    }
    for (int w = 0; w < words; ++w, raw += kPairs) {
      const __m512i b = _mm512_loadu_si512(raw);
      const __m512i low = low_bytes(b), high = high_bytes(b);
      for (int half = 0; half < 2; ++half, y += kPairs) {
        const __m512i old = _mm512_load_si512(y);
        const __m512i first = _mm512_sra_epi16(_mm512_mulhi_epi16(low, by[half][0]), down);
        const __m512i last = _mm512_sra_epi16(_mm512_mulhi_epi16(high, by[half][1]), down);
        int8_t* to = reinterpret_cast<int8_t*>(y);
        if (wide)
          store16(to, _mm512_add_epi16(_mm512_srai_epi16(low_bytes(old), 8), first),
                  _mm512_add_epi16(_mm512_srai_epi16(high_bytes(old), 8), last));
        else
          _mm512_store_si512(to,
                             _mm512_max_epi8(_mm512_adds_epi8(old, _mm512_packs_epi16(first, last)),
                                             _mm512_set1_epi8(-127)));
      }
    }
  }
};
