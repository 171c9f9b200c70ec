// The transpositions of x86_transpose.h with AVX-512. Included by units of AVX-512 inside their own
// namespaces.

// 16 bytes of four rows that lie `apart` places from each other, after `at` bytes.
static inline __m512i four_rows(const int8_t* const* src, int apart, int at) {
  auto row = [&](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src[i * apart] + at));
  };
  __m512i v = _mm512_castsi128_si512(row(0));
  v = _mm512_inserti32x4(v, row(1), 1);
  v = _mm512_inserti32x4(v, row(2), 2);
  return _mm512_inserti32x4(v, row(3), 3);
}

// Words [4][4] of every 128 bits of four vectors, turned: vector i gets the i-th words.
static inline void turn_words(__m512i* v) {
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm512_unpacklo_epi64(a, b), v[1] = _mm512_unpackhi_epi64(a, b);
  v[2] = _mm512_unpacklo_epi64(c, d), v[3] = _mm512_unpackhi_epi64(c, d);
}

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
    v[g] = columns(four_rows(src + 4 * g, 1, 0), [](int w) { return w % 4 * 4 + w / 4; });
  turn_words(v);
  for (int i = 0; i < 4; ++i) _mm512_storeu_si512(dst + 64 * i, v[i]);
}

// Vector i has rows i, i + 4, i + 8 and i + 12, so that rows are in order once turned.
static inline void transpose_words_avx512(const int8_t* const* src, int words, uint32_t* dst,
                                          int stride) {
  int w = 0, whole = words & ~3;
  for (; w < whole; w += 4, dst += 4 * stride) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i) v[i] = four_rows(src + i, 4, 4 * w);
    turn_words(v);
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(dst + i * stride, v[i]);
  }
  for (; w < words; ++w, dst += stride)
    for (int p = 0; p < 16; ++p) __builtin_memcpy(dst + p, src[p] + 4 * w, 4);
}

static inline void interleave_avx512(const int8_t* const* src, uint32_t negative, uint32_t* out) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(negative));
  const __m512i v = columns(four_rows(src, 1, 0), [](int w) { return w; });
  _mm512_storeu_si512(out, _mm512_sub_epi8(_mm512_xor_si512(v, mask), mask));
}
