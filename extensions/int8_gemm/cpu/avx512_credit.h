// Token credit with AVX-512, see credit_isa.h.

struct Avx512Credit : Avx512Elements {
  static __m512i mixed16(__m512i v) {
    v = _mm512_mullo_epi32(_mm512_xor_si512(v, _mm512_srli_epi32(v, 16)),
                           _mm512_set1_epi32(0x7FEB352D));
    v = _mm512_mullo_epi32(_mm512_xor_si512(v, _mm512_srli_epi32(v, 15)),
                           _mm512_set1_epi32(static_cast<int32_t>(0x846CA68B)));
    return _mm512_xor_si512(v, _mm512_srli_epi32(v, 16));
  }

  // `total` has the even lanes, then the odd ones.
  template <typename>
  static inline __attribute__((always_inline)) void offer(Offers& of, uint32_t (*words)[kLanes],
                                                          int tile, int count, const Plan& plan,
                                                          uint32_t* sum) {
    __m512i both[2];
    exp2_of(words, count, plan, both);
    const __m512i part = both[0], other = both[1];
    _mm512_store_si512(sum, _mm512_add_epi32(_mm512_load_si512(sum), part));
    _mm512_store_si512(sum + kPairs, _mm512_add_epi32(_mm512_load_si512(sum + kPairs), other));
    const __m512i index = _mm512_set1_epi32(tile), zero = _mm512_setzero_si512();
    const __m512i random =
        _mm512_srli_epi32(mixed16(_mm512_add_epi32(_mm512_load_si512(of.seed), index)), 12);
    // n r >> 20 is the upper half of a product of 52 bits with r << 32. Below 0 where it is taken.
    auto beyond = [&](uint64_t* total, __m512i limit, __m512i r) {
      const __m512i n = _mm512_add_epi64(_mm512_load_si512(total), limit);
      _mm512_store_si512(total, n);
      return _mm512_sub_epi64(_mm512_madd52hi_epu64(zero, n, r), limit);
    };
    const __m512i even = _mm512_set1_epi64(0xFFFFFFFF);
    const __m512i first =
        beyond(of.total, _mm512_and_si512(part, even), _mm512_slli_epi64(random, 32));
    const __m512i second = beyond(of.total + kPairs / 2, _mm512_srli_epi64(part, 32),
                                  _mm512_andnot_si512(even, random));
    // The upper halves of both, whose signs say what is taken.
    const __m512i upper =
        _mm512_ternarylogic_epi32(even, _mm512_srli_epi64(first, 32), second, 0xCA);
    const __m512i take = _mm512_srai_epi32(upper, 31);
    auto choose = [&](uint32_t* kept, __m512i offered) {
      const __m512i old = _mm512_load_si512(kept);
      _mm512_store_si512(kept, _mm512_ternarylogic_epi32(take, offered, old, 0xCA));
    };
    for (int i = 0; i < 2; ++i) choose(of.chosen[i], _mm512_load_si512(words[i]));
    choose(of.weight, part), choose(of.index, index);
  }

  // The token is behind as many others of its tile as end at or before the number drawn.
  static void drawn(const Offers& of, const Plan& plan, int32_t* token) {
    const __m512i mantissa = _mm512_loadu_si512(plan.exp2_mantissa);
    const __m512i weight = _mm512_load_si512(of.weight);
    const __m512i random = _mm512_srli_epi32(
        mixed16(_mm512_xor_si512(_mm512_load_si512(of.seed), _mm512_set1_epi32(-1))), 12);
    const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(weight, random), 20);
    const __m512i odd =
        _mm512_mul_epu32(_mm512_srli_epi64(weight, 32), _mm512_srli_epi64(random, 32));
    const __m512i at = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 12));
    __m512i end = _mm512_setzero_si512();
    __m512i found = _mm512_mullo_epi32(_mm512_load_si512(of.index), _mm512_set1_epi32(kTile));
    for (int o = 0; o < kTile; o += 4) {
      const __m512i low = _mm512_load_si512(of.chosen[o / 4]), high = high_nibbles(low, 7);
      for (int j = 0; j < 4; ++j) {
        end = _mm512_add_epi32(end, exp2_at(low, high, j, mantissa));
        found = _mm512_mask_add_epi32(found, _mm512_cmpge_epu32_mask(at, end), found,
                                      _mm512_set1_epi32(1));
      }
    }
    _mm512_store_si512(token, found);
  }

  static void discount(const int32_t (*difference)[kPairs], const uint8_t (*marks)[kPairs],
                       const uint32_t* signs, int tokens, const Discount& by, int32_t* r,
                       int8_t (*credit)[kPairs]) {
    const __m128i finer = _mm_cvtsi32_si128(by.finer), unit = _mm_cvtsi32_si128(by.unit);
    const __m512i kept = _mm512_set1_epi32(by.kept), half = _mm512_set1_epi32((1 << by.unit) >> 1);
    const __m512i turned = _mm512_load_si512(signs), zero = _mm512_setzero_si512();
    __m512i sum = _mm512_load_si512(r);
    for (int t = tokens - 1; t >= 0; --t) {
      const __m512i old = _mm512_srai_epi32(_mm512_mullo_epi32(kept, sum), 4);
      sum = _mm512_add_epi32(_mm512_sll_epi32(_mm512_load_si512(difference[t]), finer), old);
      __m512i v = _mm512_sra_epi32(_mm512_add_epi32(sum, half), unit);
      const __mmask16 minus =
          _mm512_test_epi32_mask(turned, _mm512_set1_epi32(static_cast<int32_t>(1u << t)));
      v = _mm512_mask_sub_epi32(v, minus, zero, v);
      _mm_store_si128(reinterpret_cast<__m128i*>(credit[t]),
                      _mm_max_epi8(_mm512_cvtsepi32_epi8(v), _mm_set1_epi8(-127)));
      const __m128i mark = _mm_load_si128(reinterpret_cast<const __m128i*>(marks[t]));
      sum = _mm512_maskz_mov_epi32(_mm_testn_epi8_mask(mark, mark), sum);
    }
    _mm512_store_si512(r, sum);
  }

  // Inputs as products take them, x + 128 as u8.
  static void credit(const uint32_t* x, int words, const int8_t (*c)[kPairs], int tokens,
                     int32_t (*sum)[4][kPairs]) {
    credit_of<false>(x, words, c, tokens, sum);
  }

  template <bool plain>
  static void credit_of(const uint32_t* x, int words, const int8_t (*c)[kPairs], int tokens,
                        int32_t (*sum)[4][kPairs]) {
    const long stride = long{words} * kPairs;
    const Credits by(c, tokens);
    int w = 0;
    for (; w + 4 <= words; w += 4) credit_words_of<4, plain>(x + w * kPairs, stride, by, sum + w);
    for (; w < words; ++w) credit_words_of<1, plain>(x + w * kPairs, stride, by, sum + w);
  }

  // The credit of some tokens, four to a word, of the pairs i, i + 4, i + 8 and i + 12 in vector i;
  // and what products with it have too much, as inputs are x + 128.
  struct Credits {
    __m512i by[kCreditTokens / 4][4], bias[4];
    int tokens;

    Credits(const int8_t (*c)[kPairs], int count) : tokens(count) {
      __m512i sum = _mm512_setzero_si512();
      for (int t = 0; t < tokens; t += 4) {
        const __m512i w = credit_words(c + t, tokens - t < 4 ? tokens - t : 4);
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), w);
        of_pairs(w, by[t / 4]);
      }
      of_pairs(sum, bias);
    }
    static void of_pairs(__m512i w, __m512i* to) {
      to[0] = _mm512_shuffle_epi32(w, _MM_PERM_AAAA);
      to[1] = _mm512_shuffle_epi32(w, _MM_PERM_BBBB);
      to[2] = _mm512_shuffle_epi32(w, _MM_PERM_CCCC);
      to[3] = _mm512_shuffle_epi32(w, _MM_PERM_DDDD);
    }
  };

  // Four tokens at a time, by pairs as in Credits: a dword has one input's four tokens, and 128
  // bits have a pair's four inputs.
  template <int words, bool plain>
  static inline void credit_words_of(const uint32_t* x, long stride, const Credits& c,
                                     int32_t (*sum)[4][kPairs]) {
    __m512i total[words][4];
    for (int i = 0; i < words; ++i)
      for (int j = 0; j < 4; ++j)
        total[i][j] = _mm512_sub_epi32(_mm512_load_si512(sum[i][j]), c.bias[j]);
    auto step = [&](const __m512i* by, int count) {
      for (int i = 0; i < words; ++i) {
        __m512i v[4];
        for (int k = 0; k < 4; ++k) {
          v[k] = _mm512_load_si512(x + (k < count ? k : 0) * stride + i * kPairs);
          if (plain) v[k] = _mm512_xor_si512(v[k], _mm512_set1_epi8(-128));
        }
        turn_bytes(v);
        for (int j = 0; j < 4; ++j) total[i][j] = _mm512_dpbusd_epi32(total[i][j], v[j], by[j]);
      }
      x += 4 * stride;
    };
    int t = 0;
    for (; t + 4 <= c.tokens; t += 4) step(c.by[t / 4], 4);
    if (t < c.tokens) step(c.by[t / 4], c.tokens - t);
    for (int i = 0; i < words; ++i)
      for (int j = 0; j < 4; ++j) _mm512_store_si512(sum[i][j], total[i][j]);
  }

  // Of four tokens' words the bytes of one input together: the first dword of all 128 bits to v[0],
  // and so on.
  static inline void turn_bytes(__m512i* v) {
    const __m512i a = _mm512_unpacklo_epi8(v[0], v[1]), b = _mm512_unpacklo_epi8(v[2], v[3]);
    const __m512i d = _mm512_unpackhi_epi8(v[0], v[1]), e = _mm512_unpackhi_epi8(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi16(a, b), v[1] = _mm512_unpackhi_epi16(a, b);
    v[2] = _mm512_unpacklo_epi16(d, e), v[3] = _mm512_unpackhi_epi16(d, e);
  }

  // The credit of `count` tokens, four to a word.
  static __m512i credit_words(const int8_t (*c)[kPairs], int count) {
    __m128i r[4] = {};
    for (int i = 0; i < count; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(c[i]));
    __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpacklo_epi8(r[2], r[3]);
    __m128i d = _mm_unpackhi_epi8(r[0], r[1]), e = _mm_unpackhi_epi8(r[2], r[3]);
    __m512i w = _mm512_castsi128_si512(_mm_unpacklo_epi16(a, b));
    w = _mm512_inserti32x4(w, _mm_unpackhi_epi16(a, b), 1);
    w = _mm512_inserti32x4(w, _mm_unpacklo_epi16(d, e), 2);
    return _mm512_inserti32x4(w, _mm_unpackhi_epi16(d, e), 3);
  }

  static void credit_bytes(const int32_t (*sum)[kPairs], int shift, uint32_t* to) {
    const __m512i half = _mm512_set1_epi32(shift ? 1 << (shift - 1) : 0);
    const __m128i by = _mm_cvtsi32_si128(shift);
    __m128i v[4];  // a word of each of the pairs i, i + 4, i + 8, i + 12
    for (int i = 0; i < 4; ++i) {
      const __m512i all = _mm512_sra_epi32(_mm512_add_epi32(_mm512_load_si512(sum[i]), half), by);
      v[i] = _mm_max_epi8(_mm512_cvtsepi32_epi8(all), _mm_set1_epi8(-127));
    }
    const __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpacklo_epi32(v[2], v[3]);
    const __m128i d = _mm_unpackhi_epi32(v[0], v[1]), e = _mm_unpackhi_epi32(v[2], v[3]);
    __m128i* at = reinterpret_cast<__m128i*>(to);
    _mm_store_si128(at, _mm_unpacklo_epi64(a, b)),
        _mm_store_si128(at + 1, _mm_unpackhi_epi64(a, b));
    _mm_store_si128(at + 2, _mm_unpacklo_epi64(d, e));
    _mm_store_si128(at + 3, _mm_unpackhi_epi64(d, e));
  }
};
