// AVX2: products of unsigned and signed bytes (vpmaddubsw), added up in 16 bits where they fit; see
// avx2_pairs.h.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avx2 {
#include "x86.h"

struct Isa : Avx2Elements<PortableIsa> {
  using Prepared = int32_t;  // [K/4][32] of u8 = x + 128
  using Noise = uint32_t;    // [K/4][16]

  static constexpr bool kPairsOfOutputs = true;

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(words) * kPairs; }

  static void prepare(const uint32_t* x, int words, Prepared* out) {
    Avx2Pairs::flip(x, words * kLanes, out);
  }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    __builtin_memcpy(out, raw, noise_size(words) * sizeof(Noise));
  }
  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_sse2(src, dst); }
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    transpose_words_sse2(src, words, dst, stride);
  }
  static void interleave(const int8_t* const* src, int at, uint32_t negative, uint32_t* first,
                         uint32_t* second) {
    interleave_sse2(src, at, negative, first, second);
  }

  // Tiles with the lists of their words.
  static size_t tile_bytes(int words) { return Avx2Pairs::tile_bytes(words); }
  static size_t weight_bytes(int rows, int cols) {
    return static_cast<size_t>(tiles_of(rows)) * tile_bytes(words_of(cols));
  }
  static void pack(const int8_t* src, int rows, int cols, int8_t* to) {
    const size_t stride = tile_bytes(words_of(cols));
    pack_tiles(src, rows, cols, stride, to);
    for (int i = 0; i < tiles_of(rows); ++i, to += stride)
      Avx2Pairs::close_tile(to, words_of(cols));
  }

  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    Avx2Pairs::count(tile, x, words, acc);
  }

  template <bool>
  static void tile(const int8_t* w, const Prepared* x, int words, const LowRank& noise,
                   const Scale& by, uint32_t (*out)[kLanes]) {
    tile_by<Isa, Epilogue<V256>>(w, x, words, noise, by, out);
  }

  static int64_t peak(int64_t rounds) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i sum[8], x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(-5);
    for (__m256i& s : sum) s = _mm256_setzero_si256();
    for (int64_t i = 0; i < rounds; ++i) {
      for (__m256i& s : sum) {
        __m256i first = _mm256_maddubs_epi16(x, w);
        asm volatile("" : "+x"(x), "+x"(w));  // or the compiler would multiply once
        __m256i two = _mm256_add_epi16(first, _mm256_maddubs_epi16(x, w));
        s = _mm256_add_epi32(s, _mm256_madd_epi16(two, one));
        asm volatile("" : "+x"(x), "+x"(w));
      }
    }
    for (__m256i& s : sum) asm volatile("" : : "x"(s));
    return rounds * 8 * 64;
  }

  // Noise of any size: |x| times it with the sign of x, of which two products fit 16 bits.
  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    const __m256i flip = _mm256_set1_epi8(-128), one = _mm256_set1_epi16(1);
    for (int m = 0; m < kLanes; m += 8) {
      __m256i sum = _mm256_setzero_si256();
      for (int k = 0; k < words; ++k) {
        __m256i v = _mm256_xor_si256(Avx2Pairs::load(x + k * kLanes + m), flip);
        __m256i n = Avx2Pairs::load(b + k * kPairs + m % kPairs);
        n = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(n, v));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(n, one));
      }
      Avx2Pairs::store(out + m, sum);
    }
  }
};

using Matrix = TileMatrix<Isa>;
using LearnIsa = X86Learn<V256>;
using Products = Avx2Products;
using Adam = X86Adam<V256>;

#include "unit.h"
extern const Kernels kernels = kernels_of("avx2");
}  // namespace eggroll::avx2
