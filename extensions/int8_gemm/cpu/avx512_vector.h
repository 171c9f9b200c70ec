// The vectors of x86_vector.h with AVX-512: sixteen values of 32 bits, and eight of 64 bits; and
// transpositions.

struct Real512 {  // eight doubles
  __m512d v;

  static Real512 all(double x) { return {_mm512_set1_pd(x)}; }
  static Real512 of(__m256i x) { return {_mm512_cvtepi32_pd(x)}; }
  Real512 add(Real512 b) const { return {_mm512_add_pd(v, b.v)}; }
  Real512 sub(Real512 b) const { return {_mm512_sub_pd(v, b.v)}; }
  Real512 mul(Real512 b) const { return {_mm512_mul_pd(v, b.v)}; }
  Real512 div(Real512 b) const { return {_mm512_div_pd(v, b.v)}; }
  Real512 sqrt() const { return {_mm512_sqrt_pd(v)}; }
  Real512 at_least_one() const { return {_mm512_max_pd(v, _mm512_set1_pd(1))}; }
  Real512 cut() const {  // toward zero
    return {_mm512_roundscale_pd(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)};
  }
  Real512 bounded(double by) const {
    return {_mm512_min_pd(_mm512_max_pd(v, _mm512_set1_pd(-by)), _mm512_set1_pd(by))};
  }
  __m256i narrowed() const { return _mm512_cvtpd_epi32(v); }
};

struct Long512 {  // eight whole numbers from 0 to 2^63 - 1
  __m512i v;

  static Long512 all(int64_t x) { return {_mm512_set1_epi64(x)}; }
  static Long512 square(__m256i x) {
    const __m512i wide = _mm512_cvtepi32_epi64(x);
    return {_mm512_mul_epi32(wide, wide)};
  }
  static Long512 cut(Real512 x) { return {_mm512_cvtepu32_epi64(_mm512_cvttpd_epi32(x.v))}; }
  Long512 add(Long512 b) const { return {_mm512_add_epi64(v, b.v)}; }
  Long512 sub(Long512 b) const { return {_mm512_sub_epi64(v, b.v)}; }
  Long512 both(Long512 b) const { return {_mm512_and_si512(v, b.v)}; }
  Long512 sll(int by) const { return {_mm512_slli_epi64(v, by)}; }
  Long512 srl(int by) const { return {_mm512_srli_epi64(v, by)}; }
  Long512 mul_low(Long512 b) const { return {_mm512_mul_epu32(v, b.v)}; }  // of the low 32 bits
  Long512 above(Long512 b) const {                                         // -1 or 0
    return {_mm512_movm_epi64(_mm512_cmpgt_epi64_mask(v, b.v))};
  }
  Real512 real() const { return {_mm512_cvtepi64_pd(v)}; }
  __m256i narrowed() const { return _mm512_cvtepi64_epi32(v); }
};

// 16 bytes of each row.
static inline __m512i four_rows(const void* a, const void* b, const void* c, const void* d) {
  auto row = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  __m512i v = _mm512_inserti32x4(_mm512_castsi128_si512(row(a)), row(b), 1);
  v = _mm512_inserti32x4(v, row(c), 2);
  return _mm512_inserti32x4(v, row(d), 3);
}

// Words [4][4] of every 128 bits of four vectors, turned: vector i gets the i-th words.
static inline void turn_words(__m512i* v) {
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm512_unpacklo_epi64(a, b), v[1] = _mm512_unpackhi_epi64(a, b);
  v[2] = _mm512_unpacklo_epi64(c, d), v[3] = _mm512_unpackhi_epi64(c, d);
}

// Where V512::high_turned finds its bytes.
struct HighTurned {
  alignas(64) uint8_t at[64];

  constexpr HighTurned() : at() {
    for (unsigned i = 0; i < 64; ++i)
      at[i] = static_cast<uint8_t>(i / 16 * 16 + i % 2 * 8 + i / 4 % 4 * 2 + 1 + i % 4 / 2 * 64);
  }
};
constexpr HighTurned kHighTurned;

struct V512 {
  using Long = Long512;
  using Real = Real512;
  using Half = __m256i;
  static constexpr int kWidth = 16;       // lanes
  static constexpr bool kTurns16 = true;  // see PortableIsa::kPairsOfNodes
  __m512i v;

  // Aligned but for `loadu`, `storeu`, `widenedu` and what else has a pointer to void.
  static V512 load(const int32_t* p) { return {_mm512_load_si512(p)}; }
  static V512 loadu(const void* p) { return {_mm512_loadu_si512(p)}; }
  static V512 widened(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static V512 widenedu(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static V512 widened16(const void* p) { return {_mm512_cvtepi8_epi16(half(p))}; }
  // 16 bytes each, 64 apart.
  static V512 quarters(const void* p) {
    const int8_t* at = static_cast<const int8_t*>(p);
    return {four_rows(at, at + 64, at + 128, at + 192)};
  }
  // 32 bytes each, `apart` words from one to the next.
  static V512 halves(const uint32_t* p, size_t apart) {
    return {_mm512_inserti64x4(_mm512_castsi256_si512(half(p)), half(p + apart), 1)};
  }
  void store(uint32_t* p) const { _mm512_store_si512(p, v); }
  void storeu(void* p) const { _mm512_storeu_si512(p, v); }
  void stream(void* p) const { _mm512_stream_si512(static_cast<__m512i*>(p), v); }
  static Half half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  Half half(int i) const { return i ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v); }
  static V512 joined(Half a, Half b) {
    return {_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)};
  }
  bool none32(int32_t bits) const { return !_mm512_test_epi32_mask(v, _mm512_set1_epi32(bits)); }

  static V512 all32(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static V512 all16(int x) { return {_mm512_set1_epi16(static_cast<int16_t>(x))}; }
  static V512 all8(int x) { return {_mm512_set1_epi8(static_cast<int8_t>(x))}; }
  V512 add32(V512 b) const { return {_mm512_add_epi32(v, b.v)}; }
  V512 sub32(V512 b) const { return {_mm512_sub_epi32(v, b.v)}; }
  V512 mul32(V512 b) const { return {_mm512_mullo_epi32(v, b.v)}; }
  V512 max32(V512 b) const { return {_mm512_max_epi32(v, b.v)}; }
  V512 signed_as32(V512 b) const {  // v where b is 0, or 0
    return {_mm512_mask_sub_epi32(v, _mm512_movepi32_mask(b.v), _mm512_setzero_si512(), v)};
  }
  V512 root32() const {  // in single precision, cut off
    return {_mm512_cvttps_epi32(_mm512_sqrt_ps(_mm512_cvtepi32_ps(v)))};
  }
  V512 quotient32(V512 b) const {  // the same
    return {_mm512_cvttps_epi32(_mm512_div_ps(_mm512_cvtepi32_ps(v), _mm512_cvtepi32_ps(b.v)))};
  }
  V512 abs32() const { return {_mm512_abs_epi32(v)}; }
  V512 bounded32(int32_t by) const {
    return {_mm512_max_epi32(_mm512_min_epi32(v, _mm512_set1_epi32(by)), _mm512_set1_epi32(-by))};
  }
  V512 sra32(int by) const { return {_mm512_sra_epi32(v, _mm_cvtsi32_si128(by))}; }
  V512 sra32(V512 by) const { return {_mm512_srav_epi32(v, by.v)}; }
  V512 sra16(int by) const { return {_mm512_sra_epi16(v, _mm_cvtsi32_si128(by))}; }
  V512 add16(V512 b) const { return {_mm512_add_epi16(v, b.v)}; }
  V512 adds16(V512 b) const { return {_mm512_adds_epi16(v, b.v)}; }
  V512 low16(V512 b) const { return {_mm512_unpacklo_epi16(v, b.v)}; }
  V512 high16(V512 b) const { return {_mm512_unpackhi_epi16(v, b.v)}; }
  V512 low8(V512 b) const { return {_mm512_unpacklo_epi8(v, b.v)}; }
  V512 high8(V512 b) const { return {_mm512_unpackhi_epi8(v, b.v)}; }
  V512 pairs8() const { return {_mm512_maddubs_epi16(_mm512_set1_epi8(1), v)}; }  // their sums
  V512 mul16(V512 b) const { return {_mm512_mullo_epi16(v, b.v)}; }
  V512 mulhi16(V512 b) const { return {_mm512_mulhi_epi16(v, b.v)}; }
  V512 either(V512 b) const { return {_mm512_or_si512(v, b.v)}; }
  V512 dot16(V512 a, V512 b) const {  // both halves of a word times the other's, added up
    return {_mm512_dpwssd_epi32(v, a.v, b.v)};
  }
  V512 sll32(int by) const { return {_mm512_slli_epi32(v, by)}; }
  V512 srl32(int by) const { return {_mm512_srli_epi32(v, by)}; }
  V512 srl32(V512 by) const { return {_mm512_srlv_epi32(v, by.v)}; }
  V512 both(V512 b) const { return {_mm512_and_si512(v, b.v)}; }
  V512 flipped(V512 b) const { return {_mm512_xor_si512(v, b.v)}; }
  V512 only_where32(V512 a, V512 b) const {  // a = b
    return {_mm512_maskz_mov_epi32(_mm512_cmpeq_epi32_mask(a.v, b.v), v)};
  }
  V512 unless32(V512 a, V512 b) const {
    return {_mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(a.v, b.v), v)};
  }
  V512 unless8(V512 a, V512 b) const {
    return {_mm512_maskz_mov_epi8(_mm512_cmpneq_epi8_mask(a.v, b.v), v)};
  }
  V512 packs32(V512 b) const { return {_mm512_packs_epi32(v, b.v)}; }
  V512 packus32(V512 b) const { return {_mm512_packus_epi32(v, b.v)}; }
  V512 packs16(V512 b) const { return {_mm512_packs_epi16(v, b.v)}; }
  V512 min_u16(V512 b) const { return {_mm512_min_epu16(v, b.v)}; }
  V512 mulhi_u16(V512 b) const { return {_mm512_mulhi_epu16(v, b.v)}; }
  V512 srl16(int by) const { return {_mm512_srl_epi16(v, _mm_cvtsi32_si128(by))}; }
  V512 sub16(V512 b) const { return {_mm512_sub_epi16(v, b.v)}; }
  V512 min8(V512 b) const { return {_mm512_min_epi8(v, b.v)}; }
  V512 max8(V512 b) const { return {_mm512_max_epi8(v, b.v)}; }
  V512 add64(V512 b) const { return {_mm512_add_epi64(v, b.v)}; }

  V512 turned() const {  // bytes 4 j + i of 128 bits to 4 i + j
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order))};
  }
  // The high bytes of 16 bits of `packs32` vectors, four outputs of a lane side by side.
  V512 high_turned(V512 b) const {
    return {_mm512_permutex2var_epi8(v, _mm512_load_si512(kHighTurned.at), b.v)};
  }
  V512 ordered() const {  // what was packed twice within 128 bits, as it was before
    const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm512_permutexvar_epi32(at, v)};
  }
  void clip16(int8_t* to) const {  // 16 bits to bytes from -127 to 127
    const __m512i least = _mm512_max_epi16(v, _mm512_set1_epi16(-127));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi16_epi8(least));
  }
  // Vector i has value i of every lane; then each lane's four values are neighbours.
  static void turn(V512* v) {
    __m512i w[4] = {v[0].v, v[1].v, v[2].v, v[3].v};
    turn_words(w);
    const __m512i e = _mm512_shuffle_i32x4(w[0], w[1], 0x44);  // lanes 0 4 1 5
    const __m512i f = _mm512_shuffle_i32x4(w[0], w[1], 0xEE);  // 8 12 9 13
    const __m512i g = _mm512_shuffle_i32x4(w[2], w[3], 0x44);  // 2 6 3 7
    const __m512i h = _mm512_shuffle_i32x4(w[2], w[3], 0xEE);  // 10 14 11 15
    v[0].v = _mm512_shuffle_i32x4(e, g, 0x88), v[1].v = _mm512_shuffle_i32x4(e, g, 0xDD);
    v[2].v = _mm512_shuffle_i32x4(f, h, 0x88), v[3].v = _mm512_shuffle_i32x4(f, h, 0xDD);
  }

  int32_t total32() const { return _mm512_reduce_add_epi32(v); }
  int64_t total64() const { return _mm512_reduce_add_epi64(v); }
  V512 fours8() const {  // sums of four bytes
    return {_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), v)};
  }
  __m128i quarters32() const {  // the sum of all quarters of 128 bits
    const __m256i two = _mm256_add_epi32(half(0), half(1));
    return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
  }
  V512 sizes8() const {  // |bytes|, added up eight at a time
    return {_mm512_sad_epu8(_mm512_abs_epi8(v), _mm512_setzero_si512())};
  }
  // Its upper halves' low bytes to `to`; how many of them differ from those at `from`.
  int move_bytes(const int8_t* from, int8_t* to) const {
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_srai_epi32(v, 16));
    const __m128i before = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const unsigned moved = _mm_cmpneq_epi8_mask(bytes, before);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    return __builtin_popcount(moved);
  }
  static int move_bytes(const V512* v, const int8_t* from, int8_t* to) {  // of two
    return v[0].move_bytes(from, to) + v[1].move_bytes(from + kWidth, to + kWidth);
  }
};

// ---- the transpositions of x86.h with AVX-512 --------------------------------------------------

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
