// AVX-VNNI: unsigned x signed dot products of four bytes in 256 bits, for processors without
// AVX-512. See x86_vnni.h for the bias.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avxvnni {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"
#include "x86_vnni.h"
//
#include "x86_vector.h"
//
#include "epilogue.h"

// The same instruction in AVX-512's encoding runs where the tests have AVX-512 only.
#ifdef __AVXVNNI__
#define EGG_DPBUSD _mm256_dpbusd_avx_epi32
#else
#define EGG_DPBUSD _mm256_dpbusd_epi32
#endif

struct Isa : VnniIsa {
  static constexpr bool kPairsOfOutputs = true;

  static __m256i load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  static void store(int32_t* p, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int32_t* bias = reinterpret_cast<const int32_t*>(tile);
    const int8_t* w = tile + kTile * sizeof(int32_t);
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 16) four(w + 4 * o, bias + o, x + m, words, acc + o, m);
  }

  // Four outputs x 16 lanes in eight accumulators.
  static void four(const int8_t* w, const int32_t* bias, const uint32_t* x, int words,
                   int32_t (*acc)[kLanes], int m) {
    __m256i a[4], b[4];
    for (int o = 0; o < 4; ++o) a[o] = b[o] = _mm256_set1_epi32(bias[o]);
    for (int k = 0; k < words; ++k, w += 4 * kTile, x += kLanes) {
      __m256i x0 = load(x), x1 = load(x + 8);
      for (int o = 0; o < 4; ++o) {
        int32_t word;
        __builtin_memcpy(&word, w + 4 * o, 4);
        __m256i v = _mm256_set1_epi32(word);
        a[o] = EGG_DPBUSD(a[o], x0, v);
        b[o] = EGG_DPBUSD(b[o], x1, v);
      }
    }
    for (int o = 0; o < 4; ++o) store(acc[o] + m, a[o]), store(acc[o] + m + 8, b[o]);
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    for (int m = 0; m < kLanes; m += 8) {
      const uint32_t* n = b + m % kPairs;
      __m256i sum = load(n);
      for (int k = 0; k < words; ++k)
        sum = EGG_DPBUSD(sum, load(x + static_cast<size_t>(k) * kLanes + m), load(n += kPairs));
      store(out + m, sum);
    }
  }

  static void tile(const int8_t* w, const Prepared* x, int words, const LowRank& noise,
                   const Scale& by, uint32_t (*out)[kLanes]) {
    alignas(64) int32_t acc[kTile][kLanes];
    dot(w, x, words, acc);
    Epilogue<V256>::finish(acc, noise, by, out);
  }

  static int64_t peak(int64_t rounds) {
    __m256i sum[8], x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(-5);
    for (__m256i& s : sum) s = _mm256_setzero_si256();
    for (int64_t i = 0; i < rounds; ++i) {
      for (__m256i& s : sum) s = EGG_DPBUSD(s, x, w);
      asm volatile("" : "+x"(x), "+x"(w));  // or the compiler would multiply once
    }
    for (__m256i& s : sum) asm volatile("" : : "x"(s));
    return rounds * 8 * 32;
  }
};

#include "matrix.h"
using Matrix = TileMatrix;
using Tiled = Isa;
//
#include "block.h"
//
#include "learn_isa.h"
#include "learn_products.h"
//
#include "x86_learn.h"
using LearnIsa = X86Learn<V256>;
using Products = PortableProducts;
//
#include "unit.h"
//
#include "x86_adam.h"
extern const Kernels kernels = kernels_of("avxvnni", X86Adam<V256>::part);
}  // namespace eggroll::avxvnni
