// The transpositions of x86_transpose.h with AVX-512. Included by units of AVX-512 inside their own
// namespaces, after avx512_vector.h.

// Columns of four rows to words, column by_column(w) to word w.
template <typename Column>
static inline __m512i columns(__m512i rows, const Column& by_column) {
  alignas(64) int8_t order[64];
  for (int w = 0; w < 16; ++w)
    for (int i = 0; i < 4; ++i) order[4 * w + i] = static_cast<int8_t>(16 * i + by_column(w));
  return _mm512_permutexvar_epi8(_mm512_load_si512(order), rows);
}

// Rows 4 g .. 4 g + 3 become words of each column, four such words a column; what turn_words takes
// to vector i and 128 bits l is to be column 4 i + l.
static inline void transpose_avx512(const int8_t* const* src, int8_t* dst) {
  __m512i v[4];
  for (int g = 0; g < 4; ++g)
    v[g] = columns(four_rows(src[4 * g], src[4 * g + 1], src[4 * g + 2], src[4 * g + 3]),
                   [](int w) { return w % 4 * 4 + w / 4; });
  turn_words(v);
  for (int i = 0; i < 4; ++i) _mm512_storeu_si512(dst + 64 * i, v[i]);
}

// Vector i has rows i, i + 4, i + 8 and i + 12, so that rows are in order once turned.
static inline void transpose_words_avx512(const int8_t* const* src, int words, uint32_t* dst,
                                          int stride) {
  int w = 0, whole = words & ~3;
  for (; w < whole; w += 4, dst += 4 * stride) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i)
      v[i] = four_rows(src[i] + 4 * w, src[i + 4] + 4 * w, src[i + 8] + 4 * w, src[i + 12] + 4 * w);
    turn_words(v);
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(dst + i * stride, v[i]);
  }
  for (; w < words; ++w, dst += stride)
    for (int p = 0; p < 16; ++p) __builtin_memcpy(dst + p, src[p] + 4 * w, 4);
}

// See portable_isa.h.
static inline __attribute__((always_inline)) void interleave_avx512(const int8_t* const* src,
                                                                    int at, uint32_t negative,
                                                                    uint32_t* first,
                                                                    uint32_t* second) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(negative));
  const __m512i rows = four_rows(src[0] + at, src[1] + at, src[2] + at, src[3] + at);
  const __m512i v = columns(rows, [](int w) { return w; });
  const __m512i out = _mm512_sub_epi8(_mm512_xor_si512(v, mask), mask);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(first), _mm512_castsi512_si256(out));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(second), _mm512_extracti64x4_epi64(out, 1));
}
