// AVX2: products of int16 pairs, summed to int32 (vpmaddwd). Nothing saturates: unlike vpmaddubsw,
// whose int16 sums of unsigned x signed products would.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avx2 {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"

struct Isa : PortableIsa {
  using Prepared = int32_t;  // [K/2][32] pairs of int16
  using Noise = int32_t;     // [K/2][16]

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * 2 * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(words) * 2 * kPairs; }

  // Bytes 0, 1 and bytes 2, 3 of every word as two rows of int16 pairs.
  template <int lanes>
  static void widen(const uint32_t* x, int words, int32_t* out) {
    for (int w = 0; w < words; ++w, x += lanes, out += 2 * lanes)
      for (int m = 0; m < lanes; m += 8) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + m));
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);  // bytes 0 and 2
        __m256i odd = _mm256_srai_epi16(v, 8);                         // bytes 1 and 3
        __m256i low = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
        __m256i high = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + m), low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + lanes + m), high);
      }
  }

  static void prepare(const uint32_t* x, int words, Prepared* out) { widen<kLanes>(x, words, out); }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    widen<kPairs>(raw, words, out);
  }
  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_sse2(src, dst); }
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    transpose_words_sse2(src, words, dst, stride);
  }
  static void interleave(const int8_t* const* src, uint32_t negative, uint32_t* out) {
    interleave_sse2(src, negative, out);
  }

  static __m256i load(const int32_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store(int32_t* p, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }

  // The tile's weights are widened a section at a time, so that the copy stays in the first cache.
  static constexpr int kSection = 128;  // words

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    alignas(32) int32_t wide[kSection * 2 * kTile];  // [K/2][8] pairs of int16
    const int8_t* w = tile + kTile * sizeof(int32_t);
    for (int first = 0; first < words; first += kSection) {
      int count = words - first < kSection ? words - first : kSection;
      for (int k = 0; k < count; ++k, w += 4 * kTile) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
        __m256i odd = _mm256_srai_epi16(v, 8);
        store(wide + 2 * kTile * k, _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA));
        store(wide + 2 * kTile * k + kTile,
              _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA));
      }
      const Prepared* from = x + static_cast<size_t>(first) * 2 * kLanes;
      for (int o = 0; o < kTile; o += 4)
        for (int m = 0; m < kLanes; m += 16)
          four(wide + o, from + m, 2 * count, first == 0, acc + o, m);
    }
  }

  // Four outputs x 16 lanes in eight accumulators.
  static void four(const int32_t* w, const int32_t* x, int pairs, bool start,
                   int32_t (*acc)[kLanes], int m) {
    __m256i a[4], b[4];
    for (int o = 0; o < 4; ++o) {
      a[o] = start ? _mm256_setzero_si256() : load(acc[o] + m);
      b[o] = start ? _mm256_setzero_si256() : load(acc[o] + m + 8);
    }
    for (int k = 0; k < pairs; ++k, w += kTile, x += kLanes) {
      __m256i x0 = load(x), x1 = load(x + 8);
      for (int o = 0; o < 4; ++o) {
        __m256i v = _mm256_set1_epi32(w[o]);
        a[o] = _mm256_add_epi32(a[o], _mm256_madd_epi16(x0, v));
        b[o] = _mm256_add_epi32(b[o], _mm256_madd_epi16(x1, v));
      }
    }
    for (int o = 0; o < 4; ++o) store(acc[o] + m, a[o]), store(acc[o] + m + 8, b[o]);
  }

  static void tile(const int8_t* w, const Prepared* x, int words, const LowRank& noise,
                   const Scale& by, uint32_t (*out)[kLanes]) {
    tile_by<Isa>(w, x, words, noise, by, out);
  }

  static int64_t peak(int64_t rounds) {
    __m256i sum[8], x = _mm256_set1_epi16(3), w = _mm256_set1_epi16(-5);
    for (__m256i& s : sum) s = _mm256_setzero_si256();
    for (int64_t i = 0; i < rounds; ++i) {
      for (__m256i& s : sum) {
        s = _mm256_add_epi32(s, _mm256_madd_epi16(x, w));
        asm volatile("" : "+x"(x), "+x"(w));  // or the compiler would multiply once
      }
    }
    for (__m256i& s : sum) asm volatile("" : : "x"(s));
    return rounds * 8 * 16;
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    for (int m = 0; m < kLanes; m += 8) {
      __m256i sum = _mm256_setzero_si256();
      for (int k = 0; k < 2 * words; ++k)
        sum = _mm256_add_epi32(
            sum, _mm256_madd_epi16(load(x + k * kLanes + m), load(b + k * kPairs + m % kPairs)));
      store(out + m, sum);
    }
  }
};

#include "block.h"
#include "votes.h"
//
#include "learn_isa.h"
#include "learn_products.h"
//
#include "x86_learn.h"
//
#include "avx2_products.h"
using LearnIsa = X86Learn;
using LearnProducts = Avx2Products;
//
#include "learn.h"
//
#include "adam_isa.h"
#include "x86_adam.h"
extern const Kernels kernels = {"avx2", Isa::peak,   block_bytes, block,        vote_bytes,
                                vote,   learn_bytes, learn,       X86Adam::part};
}  // namespace eggroll::avx2
