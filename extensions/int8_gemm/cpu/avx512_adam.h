// Adam's part of a leaf with AVX-512, as x86_adam.h's at twice the width. Included inside each
// unit's namespace, after it.

struct Avx512Adam : X86Adam {
  static __m512i load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static __m256i half(__m512i v, int i) {
    return i ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v);
  }

  // v by / 256, toward zero.
  template <int by>
  static __m512i scaled(__m512i v) {
    const __m512i size = _mm512_abs_epi32(v), share = _mm512_set1_epi32(by);
    __m512i low = _mm512_and_si512(size, _mm512_set1_epi32(255));
    low = _mm512_srli_epi32(_mm512_mullo_epi32(low, share), 8);
    const __m512i high = _mm512_mullo_epi32(_mm512_srli_epi32(size, 8), share);
    const __m512i sum = _mm512_add_epi32(high, low);
    return _mm512_mask_sub_epi32(sum, _mm512_movepi32_mask(v), _mm512_setzero_si512(), sum);
  }

  static __m512i times13(__m512i v) {
    const __m512i four = _mm512_slli_epi64(v, 2);
    return _mm512_add_epi64(_mm512_add_epi64(v, four), _mm512_add_epi64(four, four));
  }

  // As PortableAdam::root, of eight.
  static __m256i root(__m256i s, __m256i z) {
    const __m512i one = _mm512_set1_epi64(1);
    __m512i old = _mm512_cvtepi32_epi64(s), vote = _mm512_cvtepi32_epi64(z);
    old = _mm512_mul_epi32(old, old), vote = _mm512_mul_epi32(vote, vote);
    const __m512i high = _mm512_srli_epi64(old, 8);
    __m512i low = _mm512_and_si512(old, _mm512_set1_epi64(255));
    __m512i square = _mm512_sub_epi64(_mm512_slli_epi64(high, 8), times13(high));  // x 243
    low = _mm512_srli_epi64(_mm512_mul_epu32(low, _mm512_set1_epi64(243)), 8);
    square = _mm512_add_epi64(square, low);
    square = _mm512_add_epi64(square, times13(_mm512_srli_epi64(vote, 8)));
    const __m512d near = _mm512_sqrt_pd(_mm512_cvtepi64_pd(square));
    __m512i r = _mm512_cvtepu32_epi64(_mm512_cvttpd_epi32(near));
    const __mmask8 above = _mm512_cmpgt_epi64_mask(_mm512_mul_epu32(r, r), square);
    r = _mm512_mask_sub_epi64(r, above, r, one);
    const __m512i next = _mm512_add_epi64(r, one);
    const __mmask8 fits = _mm512_cmple_epi64_mask(_mm512_mul_epu32(next, next), square);
    return _mm512_cvtepi64_epi32(_mm512_mask_mov_epi64(r, fits, next));
  }

  static __m512d cut(__m512d v) {
    return _mm512_roundscale_pd(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }

  static __m512d change(__m256i mean, __m256i size, __m512d factor) {
    const __m512d by = _mm512_cvtepi32_pd(_mm256_max_epi32(size, _mm256_set1_epi32(1)));
    return cut(_mm512_div_pd(_mm512_mul_pd(_mm512_cvtepi32_pd(mean), factor), by));
  }

  static void move(int32_t* fine, __m512d change, __m512d decay) {
    const __m512d most = _mm512_set1_pd(kFine), least = _mm512_set1_pd(-kFine);
    __m512d v = _mm512_cvtepi32_pd(X86Adam::load(fine));
    v = _mm512_add_pd(_mm512_sub_pd(v, cut(_mm512_mul_pd(v, decay))), change);
    X86Adam::store(fine, _mm512_cvtpd_epi32(_mm512_min_pd(_mm512_max_pd(v, least), most)));
  }

  static int64_t part(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor,
                      int64_t decay) {
    const __m512d by = _mm512_set1_pd(static_cast<double>(factor));
    const __m512d less = _mm512_set1_pd(static_cast<double>(decay) * 0x1p-24);
    int64_t count = 0, i = first;
    for (; i + 16 <= last; i += 16) {
      __m512i z = _mm512_min_epi32(load(leaf.votes + i), _mm512_set1_epi32(kVote));
      z = _mm512_slli_epi32(_mm512_max_epi32(z, _mm512_set1_epi32(-kVote)), 4);
      const __m512i mean = _mm512_add_epi32(scaled<230>(load(leaf.mean + i)), scaled<26>(z));
      const __m512i old = load(leaf.size + i);
      _mm512_storeu_si512(leaf.mean + i, mean);
      for (int j = 0; j < 2; ++j) {
        const __m256i size = root(half(old, j), half(z, j));
        const __m512d moves = change(half(mean, j), size, by);
        X86Adam::store(leaf.size + i + 8 * j, size);
        move(leaf.fine + i + 8 * j, moves, less);
        if (leaf.feedback) move(leaf.feedback + i + 8 * j, moves, less);
      }
      count += rounded(leaf.fine + i, leaf.weights + i);
    }
    return count + X86Adam::part(leaf, i, last, factor, decay);
  }

  // Sixteen weights from their fine copies; how many moved.
  static int rounded(const int32_t* fine, int8_t* weights) {
    const __m512i v = _mm512_add_epi32(load(fine), _mm512_set1_epi32(kHalf));
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_srai_epi32(v, 16));
    __m128i* at = reinterpret_cast<__m128i*>(weights);
    const unsigned moved = _mm_cmpneq_epi8_mask(bytes, _mm_loadu_si128(at));
    _mm_storeu_si128(at, bytes);
    return __builtin_popcount(moved);
  }
};
