// The parts of the units of AVX-512, in the order in which they use each other, and the primitives
// of AVX512-VNNI.

// clang-format off
#include "x86.h"
#include "avx512_vector.h"
#include "avx512_elements.h"
#include "avx512_credit.h"
// clang-format on

// The loop of products is assembly because gcc spills accumulators of the same loop written with
// intrinsics. Its lines come first.

// clang-format off
#define EGG_FIRST(at, a, b) \
  "vpbroadcastd " #at "(%[s]), %%zmm" #a "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #b "\n\t"
#define EGG_WEIGHT(at, to) "vpbroadcastd " #at "(%[w],%[n]), %%zmm" #to "\n\t"
#define EGG_PRODUCTS(w, a, b)                      \
  "vpdpbusd %%zmm" #w ", %%zmm16, %%zmm" #a "\n\t" \
  "vpdpbusd %%zmm" #w ", %%zmm17, %%zmm" #b "\n\t"

// x.B of the lanes: its biases, a word of every lane, and where the sums go.
#define EGG_DOTS_BEGIN "vmovdqu32 (%[biases]), %%zmm26\n\tvmovdqa64 %%zmm26, %%zmm27\n\t"
#define EGG_DOTS "vmovdqu32 (%[b],%[n],2), %%zmm28\n\t" EGG_PRODUCTS(28, 26, 27)
#define EGG_DOTS_END "vmovdqu32 %%zmm26, (%[dots])\n\tvmovdqu32 %%zmm27, 64(%[dots])\n\t"

// Products of a tile at s, whose weights end at w, with inputs that end at x; n counts up to zero
// and addresses both: other counting would take the ports of the products. Weights are asked for
// 32 rounds ahead: where a part has more of them than the first cache holds, products would wait
// for the second. `begin`, `round` and `end` are what is done beside them, whose operands follow.
#define EGG_LOOP(begin, round, end, ...)                                                          \
  asm volatile(                                                                                   \
      EGG_FIRST(0, 0, 8) EGG_FIRST(4, 1, 9) EGG_FIRST(8, 2, 10) EGG_FIRST(12, 3, 11)              \
      EGG_FIRST(16, 4, 12) EGG_FIRST(20, 5, 13) EGG_FIRST(24, 6, 14) EGG_FIRST(28, 7, 15) begin   \
      "1:\n\t"                                                                                    \
      "vmovdqu32 (%[x],%[n],4), %%zmm16\n\t"                                                      \
      "vmovdqu32 64(%[x],%[n],4), %%zmm17\n\t"                                                    \
      EGG_WEIGHT(0, 18) EGG_WEIGHT(4, 19) EGG_WEIGHT(8, 20) EGG_WEIGHT(12, 21)                    \
      "prefetcht0 1024(%[w],%[n])\n\t"                                                            \
      EGG_PRODUCTS(18, 0, 8) EGG_PRODUCTS(19, 1, 9) EGG_PRODUCTS(20, 2, 10)                       \
      EGG_PRODUCTS(21, 3, 11)                                                                     \
      EGG_WEIGHT(16, 22) EGG_WEIGHT(20, 23) EGG_WEIGHT(24, 24) EGG_WEIGHT(28, 25)                 \
      EGG_PRODUCTS(22, 4, 12) EGG_PRODUCTS(23, 5, 13) EGG_PRODUCTS(24, 6, 14)                     \
      EGG_PRODUCTS(25, 7, 15) round                                                               \
      "add $32, %[n]\n\t"                                                                         \
      "jnz 1b\n\t" end                                                                            \
      : [n] "+r"(n), "=v"(a0), "=v"(b0), "=v"(a1), "=v"(b1), "=v"(a2), "=v"(b2), "=v"(a3),        \
        "=v"(b3), "=v"(a4), "=v"(b4), "=v"(a5), "=v"(b5), "=v"(a6), "=v"(b6), "=v"(a7), "=v"(b7)  \
      : [s] "r"(tile), [x] "r"(x + words * long{kLanes}),                                         \
        [w] "r"(tile + kTile * sizeof(int32_t) + words * 4l * kTile) __VA_OPT__(, ) __VA_ARGS__   \
      : "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", \
        "zmm26", "zmm27", "zmm28", "cc", "memory")
// clang-format on

// Inputs are biased, see VnniIsa.
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
  static constexpr bool kDotsFirst = true;
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

  static bool twice(const LowRank& noise, const Scale& scale) {
    const int32_t* x = noise.xb[0];
    uint32_t* to = noise.twice;
    const int by = 16 - noise.shift - up_of(noise.shift);
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

  // Eight outputs x 32 lanes in sixteen accumulators, a: members 2i, b: members 2i + 1. If `first`,
  // the lanes' x.B too, of noise `of`, to `dots`.
  template <bool first>
  static inline __attribute__((always_inline)) void multiply(const int8_t* tile, const Prepared* x,
                                                             int words, __m512i* a, __m512i* b,
                                                             const Noise* of = nullptr,
                                                             int32_t* dots = nullptr) {
    register __m512i a0 asm("zmm0"), a1 asm("zmm1"), a2 asm("zmm2"), a3 asm("zmm3");
    register __m512i a4 asm("zmm4"), a5 asm("zmm5"), a6 asm("zmm6"), a7 asm("zmm7");
    register __m512i b0 asm("zmm8"), b1 asm("zmm9"), b2 asm("zmm10"), b3 asm("zmm11");
    register __m512i b4 asm("zmm12"), b5 asm("zmm13"), b6 asm("zmm14"), b7 asm("zmm15");
    long n = words * -4l * kTile;
    if constexpr (first)
      EGG_LOOP(EGG_DOTS_BEGIN, EGG_DOTS, EGG_DOTS_END, [biases] "r"(of),
               [b] "r"(of + (1 + words) * long{kPairs}), [dots] "r"(dots));
    else
      EGG_LOOP("", "", "");
    a[0] = a0, a[1] = a1, a[2] = a2, a[3] = a3, a[4] = a4, a[5] = a5, a[6] = a6, a[7] = a7;
    b[0] = b0, b[1] = b1, b[2] = b2, b[3] = b3, b[4] = b4, b[5] = b5, b[6] = b6, b[7] = b7;
  }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    __m512i a[kTile], b[kTile];
    multiply<false>(tile, x, words, a, b);
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
                                                         int words, LowRank& noise, const Scale& by,
                                                         uint32_t (*out)[kLanes]) {
    if (noise.rank > 1) return tile_of_ranks<flip>(w, x, words, noise, by, out);
    if (noise.b) return first_tile<flip>(w, x, words, noise, by, out);
    __m512i a[kTile], b[kTile];
    multiply<false>(w, x, words, a, b);
    finish_tile<flip>(a, b, noise, by, out);
  }

  // The same of a product whose x.B is not known yet.
  template <bool flip>
  static __attribute__((noinline)) void first_tile(const int8_t* w, const Prepared* x, int words,
                                                   LowRank& noise, const Scale& by,
                                                   uint32_t (*out)[kLanes]) {
    __m512i a[kTile], b[kTile];
    multiply<true>(w, x, words, a, b, static_cast<const Noise*>(noise.b), noise.xb[0]);
    noise.b = nullptr;
    noise.found(0);
    noise.fits = twice(noise, by);
    finish_tile<flip>(a, b, noise, by, out);
  }

  // What follows a tile's sums a (members 2i) and b (2i + 1): noise, division, clip.
  template <bool flip>
  static inline __attribute__((always_inline)) void finish_tile(const __m512i* a, const __m512i* b,
                                                                const LowRank& noise,
                                                                const Scale& by,
                                                                uint32_t (*out)[kLanes]) {
    using Finish = Epilogue<V512>;
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

// What AmxIsa takes: tiles multiply inputs as they are.
struct Avx512Signed : Avx512Isa {
  static void diagonal(const int32_t (*sums)[kPairs], int32_t* out) {
    const __m512i at = _mm512_setr_epi32(0, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204,
                                         221, 238, 255);  // row m, column m
    _mm512_storeu_si512(out, _mm512_i32gather_epi32(at, sums, sizeof(int32_t)));
  }

  // Four outputs from o on and 16 lanes from m on, with noise of such a kind.
  template <Way way, Noisy kind>
  static inline __attribute__((always_inline)) void piece(const int32_t (*acc)[kLanes],
                                                          const LowRank& noise, int o, int m,
                                                          const Scale& by, uint32_t* out) {
    using Finish = Epilogue<V512>;
    V512 v[4];
    for (int i = 0; i < 4; ++i) v[i] = V512::load(acc[i] + m);
    // Where noise of rank 1 lies as `grouped` says: powers below 16 are, roots from 13 on are not.
    static_assert(kGroupedRoot >= 8 && kGroupedRoot < 13);
    if constexpr (way.early && !way.high && kind == Noisy::pairs)
      if (way.power || by.grouped) return Finish::grouped<way.power>(v, noise, o, m, by).store(out);
    if constexpr (kind == Noisy::pairs)
      Finish::perturb_pairs(v, noise, o, m);
    else if constexpr (kind == Noisy::nodes)
      Finish::perturb_turned(v, noise, o, m);
    else if constexpr (kind == Noisy::other)
      Finish::add_noise(v, noise, o, m, by);
    if constexpr (way.high)
      Finish::high_bytes<way.early>(v, by).store(out);
    else
      Finish::word<way.power, way.early>(v, by).store(out);
  }

  static void credit(const uint32_t* x, int words, const int8_t (*c)[kPairs], int tokens,
                     int32_t (*sum)[4][kPairs]) {
    credit_of<true>(x, words, c, tokens, sum);
  }
};

// Votes are added up from registers.
struct Avx512Products : PortableProducts<Avx512Isa> {
  static void add(const int8_t* tile, const Panel* inputs, int words, int32_t* votes,
                  int64_t stride) {
    __m512i a[kTile], b[kTile];
    Avx512Isa::multiply<false>(tile, inputs, words, a, b);
    for (int o = 0; o < kTile; ++o, votes += stride) {
      const __m512i first = _mm512_loadu_si512(votes), last = _mm512_loadu_si512(votes + kPairs);
      _mm512_storeu_si512(votes, _mm512_add_epi32(first, a[o]));
      _mm512_storeu_si512(votes + kPairs, _mm512_add_epi32(last, b[o]));
    }
  }
};
