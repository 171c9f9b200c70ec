// Adam's part of a leaf with AVX2, for all units that have it. Included inside each unit's
// namespace, after adam_isa.h.
//
// Squares are 64-bit integers. Quotients and shares are doubles: with |mean| factor below 2^53 they
// are exact before they are cut off, as a quotient of such integers is never rounded up to a whole
// number.

struct X86Adam : PortableAdam {
  static __m256i load(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store(int32_t* p, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }

  // v by / 256, toward zero.
  template <int by>
  static __m256i scaled(__m256i v) {
    __m256i size = _mm256_abs_epi32(v), share = _mm256_set1_epi32(by);
    __m256i low = _mm256_and_si256(size, _mm256_set1_epi32(255));
    low = _mm256_srli_epi32(_mm256_mullo_epi32(low, share), 8);
    __m256i high = _mm256_mullo_epi32(_mm256_srli_epi32(size, 8), share);
    return _mm256_sign_epi32(_mm256_add_epi32(high, low), v);
  }

  static __m256i times13(__m256i v) {
    __m256i four = _mm256_slli_epi64(v, 2);
    return _mm256_add_epi64(_mm256_add_epi64(v, four), _mm256_add_epi64(four, four));
  }

  // Whole numbers below 2^63.
  static __m256d to_double(__m256i v) {
    const __m256d low = _mm256_set1_pd(0x1p52), high = _mm256_set1_pd(0x1p84);
    __m256i a = _mm256_blend_epi16(v, _mm256_castpd_si256(low), 0xCC);
    __m256i b = _mm256_or_si256(_mm256_srli_epi64(v, 32), _mm256_castpd_si256(high));
    __m256d part = _mm256_sub_pd(_mm256_castsi256_pd(b), _mm256_set1_pd(0x1p84 + 0x1p52));
    return _mm256_add_pd(part, _mm256_castsi256_pd(a));
  }

  // As PortableAdam::root, of four.
  static __m128i root(__m128i s, __m128i z) {
    __m256i old = _mm256_cvtepi32_epi64(s), vote = _mm256_cvtepi32_epi64(z);
    old = _mm256_mul_epi32(old, old), vote = _mm256_mul_epi32(vote, vote);
    __m256i high = _mm256_srli_epi64(old, 8), low = _mm256_and_si256(old, _mm256_set1_epi64x(255));
    __m256i square = _mm256_sub_epi64(_mm256_slli_epi64(high, 8), times13(high));  // x 243
    low = _mm256_srli_epi64(_mm256_mul_epu32(low, _mm256_set1_epi64x(243)), 8);
    square = _mm256_add_epi64(square, low);
    square = _mm256_add_epi64(square, times13(_mm256_srli_epi64(vote, 8)));
    __m256i r = _mm256_cvtepu32_epi64(_mm256_cvttpd_epi32(_mm256_sqrt_pd(to_double(square))));
    r = _mm256_add_epi64(r, _mm256_cmpgt_epi64(_mm256_mul_epu32(r, r), square));
    __m256i next = _mm256_add_epi64(r, _mm256_set1_epi64x(1));
    __m256i above = _mm256_cmpgt_epi64(_mm256_mul_epu32(next, next), square);
    r = _mm256_add_epi64(next, above);
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(r, even));
  }

  static __m256d cut(__m256d v) {
    return _mm256_round_pd(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }

  static __m256d change(__m128i mean, __m128i size, __m256d factor) {
    __m256d by = _mm256_cvtepi32_pd(_mm_max_epi32(size, _mm_set1_epi32(1)));
    return cut(_mm256_div_pd(_mm256_mul_pd(_mm256_cvtepi32_pd(mean), factor), by));
  }

  static __m128i moved(const int32_t* from, __m256d change, __m256d decay) {
    const __m256d most = _mm256_set1_pd(kFine), least = _mm256_set1_pd(-kFine);
    __m256d v = _mm256_cvtepi32_pd(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    v = _mm256_add_pd(_mm256_sub_pd(v, cut(_mm256_mul_pd(v, decay))), change);
    return _mm256_cvtpd_epi32(_mm256_min_pd(_mm256_max_pd(v, least), most));
  }

  static __m128i half(__m256i v, int i) {
    return i ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v);
  }

  static int64_t part(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor,
                      int64_t decay) {
    const __m256d by = _mm256_set1_pd(static_cast<double>(factor));
    const __m256d less = _mm256_set1_pd(static_cast<double>(decay) * 0x1p-24);
    int64_t count = 0, i = first;
    for (; i + 8 <= last; i += 8) {
      __m256i z = _mm256_min_epi32(load(leaf.votes + i), _mm256_set1_epi32(kVote));
      z = _mm256_slli_epi32(_mm256_max_epi32(z, _mm256_set1_epi32(-kVote)), 4);
      __m256i mean = _mm256_add_epi32(scaled<230>(load(leaf.mean + i)), scaled<26>(z));
      __m256i old = load(leaf.size + i);
      store(leaf.mean + i, mean);
      for (int j = 0; j < 2; ++j) {
        __m128i size = root(half(old, j), half(z, j));
        __m256d moves = change(half(mean, j), size, by);
        put(leaf.size + i + 4 * j, size);
        put(leaf.fine + i + 4 * j, moved(leaf.fine + i + 4 * j, moves, less));
        if (leaf.feedback)
          put(leaf.feedback + i + 4 * j, moved(leaf.feedback + i + 4 * j, moves, less));
      }
      count += rounded(leaf.fine + i, leaf.weights + i);
    }
    return count + PortableAdam::part(leaf, i, last, factor, decay);
  }

  static void put(int32_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }

  // Eight weights from their fine copies; how many moved.
  static int rounded(const int32_t* fine, int8_t* weights) {
    __m256i v = _mm256_srai_epi32(_mm256_add_epi32(load(fine), _mm256_set1_epi32(kHalf)), 16);
    __m128i bytes = _mm_packs_epi32(half(v, 0), half(v, 1));
    bytes = _mm_packs_epi16(bytes, bytes);
    __m128i* at = reinterpret_cast<__m128i*>(weights);
    int same = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_loadl_epi64(at))) & 255;
    _mm_storel_epi64(at, bytes);
    return 8 - __builtin_popcount(static_cast<unsigned>(same));
  }
};
