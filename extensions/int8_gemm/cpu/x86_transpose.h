// Transpositions with SSE2, which every x86-64 has. Included inside each unit's namespace.

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
