// The parts of all units of x86, in the order in which they use each other.

// clang-format off
#include "portable.h"
#include "x86_vector.h"
#include "x86_rows.h"
#include "x86_learn.h"
#include "x86_adam.h"
#include "avx2_elements.h"
#include "avx2_pairs.h"
// clang-format on

// ---- transpositions with SSE2, which every x86-64 has ------------------------------------------

// One round interleaves rows i and i + 8; after four rounds rows have become columns.
static inline void transpose_sse2(const int8_t* const* src, int8_t* dst) {
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src[i]));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
      b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
    }
    for (int i = 0; i < 16; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 16 * i), a[i]);
}

// dst[w * stride + p] = the w-th word of row src[p], for p = 0..15 and w < words.
static inline void transpose_words_sse2(const int8_t* const* src, int words, uint32_t* dst,
                                        int stride) {
  int w = 0, whole = words & ~3;
  for (; w < whole; w += 4, dst += 4 * stride)
    for (int p = 0; p < 16; p += 4) {
      __m128i r[4];
      for (int i = 0; i < 4; ++i)
        r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src[p + i] + 4 * w));
      __m128i a = _mm_unpacklo_epi32(r[0], r[1]), b = _mm_unpacklo_epi32(r[2], r[3]);
      __m128i c = _mm_unpackhi_epi32(r[0], r[1]), d = _mm_unpackhi_epi32(r[2], r[3]);
      __m128i out[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b),
                        _mm_unpacklo_epi64(c, d), _mm_unpackhi_epi64(c, d)};
      for (int i = 0; i < 4; ++i)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i * stride + p), out[i]);
    }
  for (; w < words; ++w, dst += stride)
    for (int p = 0; p < 16; ++p) __builtin_memcpy(dst + p, src[p] + 4 * w, 4);
}

// See portable_isa.h.
static inline void interleave_sse2(const int8_t* const* src, int at, uint32_t negative,
                                   uint32_t* first, uint32_t* second) {
  __m128i r[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src[i] + at));
  __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpacklo_epi8(r[2], r[3]);
  __m128i c = _mm_unpackhi_epi8(r[0], r[1]), d = _mm_unpackhi_epi8(r[2], r[3]);
  __m128i v[4] = {_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(c, d),
                  _mm_unpackhi_epi16(c, d)};
  const __m128i mask = _mm_set1_epi32(static_cast<int>(negative));
  for (int i = 0; i < 4; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>((i < 2 ? first : second) + 4 * (i % 2)),
                     _mm_sub_epi8(_mm_xor_si128(v[i], mask), mask));
}

// ---- primitives of the VNNI units --------------------------------------------------------------

// Activations are biased to u8 = x + 128, so sum w u = sum w x + 128 sum w: accumulators begin at
// the bias -128 sum w that each packed tile carries. No step saturates.
struct VnniIsa : PortableIsa {
  using Prepared = uint32_t;  // [K/4][32] of u8
  using Noise = uint32_t;     // [16] biases, int32 -128 * sum b, then [K/4][16] of s8

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(1 + words) * kPairs; }

  static void prepare(const uint32_t* x, int words, Prepared* out) {
    for (int i = 0; i < words * kLanes; ++i) out[i] = x[i] ^ 0x80808080u;
  }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    __builtin_memcpy(out + kPairs, raw, static_cast<size_t>(words) * kPairs * sizeof(Noise));
    for (int p = 0; p < kPairs; p += kTile) biases(raw + p, words, kPairs, out + p);
  }
  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_sse2(src, dst); }
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    transpose_words_sse2(src, words, dst, stride);
  }
  static void interleave(const int8_t* const* src, int at, uint32_t negative, uint32_t* first,
                         uint32_t* second) {
    interleave_sse2(src, at, negative, first, second);
  }

  // -128 times the sum of each of the eight outputs' bytes.
  static void bias(int8_t* tile, int words) {
    uint32_t* to = reinterpret_cast<uint32_t*>(tile);
    biases(to + kTile, words, kTile, to);
  }

  // The same of eight words' bytes, in rows that lie `stride` words apart.
  static void biases(const uint32_t* w, int words, int stride, uint32_t* out) {
    const __m256i one = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
    for (int k = 0; k < words; ++k, w += stride) {
      __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
      __m256i two = _mm256_maddubs_epi16(one, v);  // at most 2 * 127
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(-128)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), sum);
  }
};
