// Vectors of AVX2 for the templates of x86: eight values of 32 bits, and four of 64 bits. Packs,
// unpacks and shuffles work within 128 bits, here as in avx512_vector.h, so that what is tested at
// one width is what runs at the other.

struct Real256 {  // four doubles
  __m256d v;

  static Real256 all(double x) { return {_mm256_set1_pd(x)}; }
  static Real256 of(__m128i x) { return {_mm256_cvtepi32_pd(x)}; }
  Real256 add(Real256 b) const { return {_mm256_add_pd(v, b.v)}; }
  Real256 sub(Real256 b) const { return {_mm256_sub_pd(v, b.v)}; }
  Real256 mul(Real256 b) const { return {_mm256_mul_pd(v, b.v)}; }
  Real256 div(Real256 b) const { return {_mm256_div_pd(v, b.v)}; }
  Real256 sqrt() const { return {_mm256_sqrt_pd(v)}; }
  Real256 at_least_one() const { return {_mm256_max_pd(v, _mm256_set1_pd(1))}; }
  Real256 cut() const {  // toward zero
    return {_mm256_round_pd(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)};
  }
  Real256 bounded(double by) const {
    return {_mm256_min_pd(_mm256_max_pd(v, _mm256_set1_pd(-by)), _mm256_set1_pd(by))};
  }
  __m128i narrowed() const { return _mm256_cvtpd_epi32(v); }
};

struct Long256 {  // four whole numbers from 0 to 2^63 - 1
  __m256i v;

  static Long256 all(int64_t x) { return {_mm256_set1_epi64x(x)}; }
  static Long256 square(__m128i x) {
    const __m256i wide = _mm256_cvtepi32_epi64(x);
    return {_mm256_mul_epi32(wide, wide)};
  }
  static Long256 cut(Real256 x) { return {_mm256_cvtepu32_epi64(_mm256_cvttpd_epi32(x.v))}; }
  Long256 add(Long256 b) const { return {_mm256_add_epi64(v, b.v)}; }
  Long256 sub(Long256 b) const { return {_mm256_sub_epi64(v, b.v)}; }
  Long256 both(Long256 b) const { return {_mm256_and_si256(v, b.v)}; }
  Long256 sll(int by) const { return {_mm256_slli_epi64(v, by)}; }
  Long256 srl(int by) const { return {_mm256_srli_epi64(v, by)}; }
  Long256 mul_low(Long256 b) const { return {_mm256_mul_epu32(v, b.v)}; }  // of the low 32 bits
  Long256 above(Long256 b) const { return {_mm256_cmpgt_epi64(v, b.v)}; }  // -1 or 0
  Real256 real() const {
    const __m256d low = _mm256_set1_pd(0x1p52), high = _mm256_set1_pd(0x1p84);
    const __m256i a = _mm256_blend_epi16(v, _mm256_castpd_si256(low), 0xCC);
    const __m256i b = _mm256_or_si256(_mm256_srli_epi64(v, 32), _mm256_castpd_si256(high));
    const __m256d part = _mm256_sub_pd(_mm256_castsi256_pd(b), _mm256_set1_pd(0x1p84 + 0x1p52));
    return {_mm256_add_pd(part, _mm256_castsi256_pd(a))};
  }
  __m128i narrowed() const {
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(v, even));
  }
};

struct V256 {
  using Long = Long256;
  using Real = Real256;
  using Half = __m128i;
  static constexpr int kWidth = 8;         // lanes
  static constexpr bool kTurns16 = false;  // see PortableIsa::kPairsOfNodes
  __m256i v;

  // Aligned but for `loadu`, `storeu`, `widenedu` and what else has a pointer to void.
  static V256 load(const int32_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p))};
  }
  static V256 loadu(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
  static V256 widened(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
  }
  static V256 widenedu(const int8_t* p) { return widened(p); }
  static V256 widened16(const void* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
  }
  // 16 bytes each, 64 apart.
  static V256 quarters(const void* p) {
    const __m128i* at = static_cast<const __m128i*>(p);
    return {_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(at)),
                                    _mm_loadu_si128(at + 4), 1)};
  }
  // 32 bytes each, `apart` words from one to the next.
  static V256 halves(const uint32_t* p, size_t) { return loadu(p); }
  void store(uint32_t* p) const { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  void storeu(void* p) const { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  void stream(void* p) const { _mm256_stream_si256(static_cast<__m256i*>(p), v); }  // past caches
  Half half(int i) const { return i ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v); }
  static V256 joined(Half a, Half b) { return {_mm256_set_m128i(b, a)}; }
  bool none32(int32_t bits) const { return _mm256_testz_si256(v, _mm256_set1_epi32(bits)); }

  static V256 all32(int32_t x) { return {_mm256_set1_epi32(x)}; }
  static V256 all16(int x) { return {_mm256_set1_epi16(static_cast<int16_t>(x))}; }
  static V256 all8(int x) { return {_mm256_set1_epi8(static_cast<int8_t>(x))}; }
  V256 add32(V256 b) const { return {_mm256_add_epi32(v, b.v)}; }
  V256 sub32(V256 b) const { return {_mm256_sub_epi32(v, b.v)}; }
  V256 mul32(V256 b) const { return {_mm256_mullo_epi32(v, b.v)}; }
  V256 max32(V256 b) const { return {_mm256_max_epi32(v, b.v)}; }
  V256 signed_as32(V256 b) const { return {_mm256_sign_epi32(v, b.v)}; }  // v where b is 0, or 0
  V256 root32() const {  // in single precision, cut off
    return {_mm256_cvttps_epi32(_mm256_sqrt_ps(_mm256_cvtepi32_ps(v)))};
  }
  V256 quotient32(V256 b) const {  // the same
    return {_mm256_cvttps_epi32(_mm256_div_ps(_mm256_cvtepi32_ps(v), _mm256_cvtepi32_ps(b.v)))};
  }
  V256 abs32() const { return {_mm256_abs_epi32(v)}; }
  V256 bounded32(int32_t by) const {
    return {_mm256_max_epi32(_mm256_min_epi32(v, _mm256_set1_epi32(by)), _mm256_set1_epi32(-by))};
  }
  V256 sra32(int by) const { return {_mm256_sra_epi32(v, _mm_cvtsi32_si128(by))}; }
  V256 sra32(V256 by) const { return {_mm256_srav_epi32(v, by.v)}; }
  V256 sra16(int by) const { return {_mm256_sra_epi16(v, _mm_cvtsi32_si128(by))}; }
  V256 add16(V256 b) const { return {_mm256_add_epi16(v, b.v)}; }
  V256 adds16(V256 b) const { return {_mm256_adds_epi16(v, b.v)}; }
  V256 low16(V256 b) const { return {_mm256_unpacklo_epi16(v, b.v)}; }
  V256 high16(V256 b) const { return {_mm256_unpackhi_epi16(v, b.v)}; }
  V256 low8(V256 b) const { return {_mm256_unpacklo_epi8(v, b.v)}; }
  V256 high8(V256 b) const { return {_mm256_unpackhi_epi8(v, b.v)}; }
  V256 pairs8() const { return {_mm256_maddubs_epi16(_mm256_set1_epi8(1), v)}; }  // their sums
  V256 mul16(V256 b) const { return {_mm256_mullo_epi16(v, b.v)}; }
  V256 mulhi16(V256 b) const { return {_mm256_mulhi_epi16(v, b.v)}; }
  V256 either(V256 b) const { return {_mm256_or_si256(v, b.v)}; }
  V256 dot16(V256 a, V256 b) const {  // both halves of a word times the other's, added up
    return {_mm256_add_epi32(v, _mm256_madd_epi16(a.v, b.v))};
  }
  V256 sll32(int by) const { return {_mm256_slli_epi32(v, by)}; }
  V256 srl32(int by) const { return {_mm256_srli_epi32(v, by)}; }
  V256 srl32(V256 by) const { return {_mm256_srlv_epi32(v, by.v)}; }
  V256 both(V256 b) const { return {_mm256_and_si256(v, b.v)}; }
  V256 flipped(V256 b) const { return {_mm256_xor_si256(v, b.v)}; }
  V256 only_where32(V256 a, V256 b) const {  // a = b
    return {_mm256_and_si256(v, _mm256_cmpeq_epi32(a.v, b.v))};
  }
  V256 unless32(V256 a, V256 b) const {
    return {_mm256_andnot_si256(_mm256_cmpeq_epi32(a.v, b.v), v)};
  }
  V256 unless8(V256 a, V256 b) const {
    return {_mm256_andnot_si256(_mm256_cmpeq_epi8(a.v, b.v), v)};
  }
  V256 packs32(V256 b) const { return {_mm256_packs_epi32(v, b.v)}; }
  V256 packus32(V256 b) const { return {_mm256_packus_epi32(v, b.v)}; }
  V256 packs16(V256 b) const { return {_mm256_packs_epi16(v, b.v)}; }
  V256 min_u16(V256 b) const { return {_mm256_min_epu16(v, b.v)}; }
  V256 mulhi_u16(V256 b) const { return {_mm256_mulhi_epu16(v, b.v)}; }
  V256 srl16(int by) const { return {_mm256_srl_epi16(v, _mm_cvtsi32_si128(by))}; }
  V256 sub16(V256 b) const { return {_mm256_sub_epi16(v, b.v)}; }
  V256 min8(V256 b) const { return {_mm256_min_epi8(v, b.v)}; }
  V256 max8(V256 b) const { return {_mm256_max_epi8(v, b.v)}; }
  V256 add64(V256 b) const { return {_mm256_add_epi64(v, b.v)}; }

  V256 turned() const {  // bytes 4 j + i of 128 bits to 4 i + j
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order))};
  }
  V256 ordered() const {  // what was packed twice within 128 bits, as it was before
    return {_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))};
  }
  void clip16(int8_t* to) const {  // 16 bits to bytes from -127 to 127
    const __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);
    const __m128i bytes = _mm_max_epi8(_mm_packs_epi16(low, high), _mm_set1_epi8(-127));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }
  // Vector i has value i of every lane; then each lane's four values are neighbours.
  static void turn(V256* v) {
    const __m256i a = _mm256_unpacklo_epi32(v[0].v, v[1].v);
    const __m256i b = _mm256_unpacklo_epi32(v[2].v, v[3].v);
    const __m256i c = _mm256_unpackhi_epi32(v[0].v, v[1].v);
    const __m256i d = _mm256_unpackhi_epi32(v[2].v, v[3].v);
    const __m256i w[4] = {_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b),
                          _mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d)};
    v[0].v = _mm256_permute2x128_si256(w[0], w[1], 0x20);
    v[1].v = _mm256_permute2x128_si256(w[2], w[3], 0x20);
    v[2].v = _mm256_permute2x128_si256(w[0], w[1], 0x31);
    v[3].v = _mm256_permute2x128_si256(w[2], w[3], 0x31);
  }

  int32_t total32() const {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
  }
  int64_t total64() const {
    alignas(32) int64_t of[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(of), v);
    return of[0] + of[1] + of[2] + of[3];
  }
  V256 fours8() const {  // sums of four bytes
    const __m256i ones = _mm256_set1_epi8(1);
    return {_mm256_madd_epi16(_mm256_maddubs_epi16(ones, v), _mm256_set1_epi16(1))};
  }
  __m128i quarters32() const {  // the sum of all quarters of 128 bits
    return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  }
  V256 sizes8() const {  // |bytes|, added up eight at a time
    return {_mm256_sad_epu8(_mm256_abs_epi8(v), _mm256_setzero_si256())};
  }
  // Its upper halves' low bytes to `to`; how many of them differ from those at `from`.
  int move_bytes(const int8_t* from, int8_t* to) const {
    const __m256i high = _mm256_srai_epi32(v, 16);
    __m128i bytes =
        _mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    bytes = _mm_packs_epi16(bytes, bytes);
    const __m128i before = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const int same = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, before)) & 255;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
    return 8 - __builtin_popcount(static_cast<unsigned>(same));
  }
  static int move_bytes(const V256* v, const int8_t* from, int8_t* to) {  // of two
    const __m256i a = _mm256_srai_epi32(v[0].v, 16), b = _mm256_srai_epi32(v[1].v, 16);
    const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    const __m128i before = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const int same = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, before));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    return 16 - __builtin_popcount(static_cast<unsigned>(same));
  }
};
