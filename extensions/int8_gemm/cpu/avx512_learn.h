// Primitives of credit with AVX-512, at twice the width of x86_learn.h's, which has the rest.
// Included inside each unit's namespace, after it.

struct Avx512Learn : X86Learn {
  static __m512i load(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, __m512i v) { _mm512_storeu_si512(p, v); }
  static __m512i all(int32_t v) { return _mm512_set1_epi32(v); }
  static __m512i all8(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }

  static void take(const int32_t* from, const int8_t* y, int32_t* of) {
    if (!y) return void(__builtin_memcpy(of, from, kRow * sizeof *of));
    for (int i = 0; i < kRow; i += 64) {
      const __mmask64 free = _mm512_cmpneq_epi8_mask(_mm512_abs_epi8(load(y + i)), all8(127));
      for (int j = 0; j < 64; j += 16)
        store(of + i + j,
              _mm512_maskz_loadu_epi32(static_cast<__mmask16>(free >> j), from + i + j));
    }
  }

  // The upper half of `mixed` of a word, and something below.
  static __m512i mixed_high(__m512i v) {
    v = _mm512_mullo_epi32(_mm512_xor_si512(v, _mm512_srli_epi32(v, 16)), all(0x7FEB352D));
    return _mm512_mullo_epi32(_mm512_xor_si512(v, _mm512_srli_epi32(v, 15)),
                              all(static_cast<int>(0x846CA68Bu)));
  }

  // 64 values, clipped to +-127; packing works within 128 bits.
  static __m512i bytes(const __m512i* v) {
    const __m512i low = _mm512_packs_epi32(v[0], v[1]), high = _mm512_packs_epi32(v[2], v[3]);
    return _mm512_max_epi8(_mm512_packs_epi16(low, high), all8(-127));
  }

  static int32_t round(const int32_t* of, const uint32_t* places, uint32_t first, int h,
                       int8_t* to) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i base = all(static_cast<int>(first));
    const __m128i by = _mm_cvtsi32_si128(h), up = _mm_cvtsi32_si128(32 - h);
    __m512i size = _mm512_setzero_si512();
    for (int i = 0; i < kRow; i += 64) {
      __m512i v[4];
      for (int j = 0; j < 4; ++j) {
        const __m512i c = load(of + i + 16 * j);
        size = _mm512_add_epi32(size, _mm512_abs_epi32(c));
        const __m512i word = mixed_high(_mm512_add_epi32(load(places + i + 16 * j), base));
        v[j] = _mm512_sra_epi32(_mm512_add_epi32(c, _mm512_srl_epi32(word, up)), by);
      }
      store(to + i, _mm512_permutexvar_epi32(order, bytes(v)));
    }
    return _mm512_reduce_add_epi32(size);
  }

  static __m512i bound(__m512i v, int32_t by) {
    return _mm512_max_epi32(_mm512_min_epi32(v, all(by)), all(-by));
  }

  template <bool down>
  static __m512i scale(__m512i v, Reduced by) {
    v = _mm512_mullo_epi32(bound(v, kSumBound), all(by.a));
    if (down) return bound(_mm512_sra_epi32(v, _mm_cvtsi32_si128(by.shift)), kBound);
    return bound(_mm512_sll_epi32(bound(v, kBound), _mm_cvtsi32_si128(-by.shift)), kBound);
  }

  static void spread(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* to) {
    by.shift >= 0 ? spread_by<true>(acc, by, adds, to) : spread_by<false>(acc, by, adds, to);
  }

  // Sixteen lanes of four outputs at a time, turned: first within 128 bits, then those.
  template <bool down>
  static void spread_by(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* to) {
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 16, to += 64) {
        __m512i v[4];
        for (int i = 0; i < 4; ++i) v[i] = scale<down>(load(acc[o + i] + m), by);
        const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
        const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
        const __m512i w[4] = {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b),
                              _mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d)};
        const __m512i e = _mm512_shuffle_i32x4(w[0], w[1], 0x44);  // lanes 0 4 1 5
        const __m512i f = _mm512_shuffle_i32x4(w[0], w[1], 0xEE);  // 8 12 9 13
        const __m512i g = _mm512_shuffle_i32x4(w[2], w[3], 0x44);  // 2 6 3 7
        const __m512i h = _mm512_shuffle_i32x4(w[2], w[3], 0xEE);  // 10 14 11 15
        v[0] = _mm512_shuffle_i32x4(e, g, 0x88), v[1] = _mm512_shuffle_i32x4(e, g, 0xDD);
        v[2] = _mm512_shuffle_i32x4(f, h, 0x88), v[3] = _mm512_shuffle_i32x4(f, h, 0xDD);
        for (int i = 0; i < 4; ++i) {
          if (adds) v[i] = bound(_mm512_add_epi32(v[i], load(to + 16 * i)), kBound);
          store(to + 16 * i, v[i]);
        }
      }
  }

  // ---- the head's error ----------------------------------------------------------------------
  // A block of 64 values, sixteen lanes, is unpacked within 128 bits: vector q has the values
  // 4 q .. 4 q + 3, and those 16, 32 and 48 further. X86Learn keeps powers by eight lanes, whose
  // vectors are the halves of these.

  static __m512i quarters(const void* from, int q) {
    const __m128i* p = static_cast<const __m128i*>(from) + q;
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128(p + 4), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(p + 8), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(p + 12), 3);
  }

  static int64_t errors(const int8_t* u, const uint32_t* powers, int words, const ErrorLanes& by,
                        const uint32_t* places, uint32_t first, int8_t* to) {
    const size_t stride = static_cast<size_t>(words) * 32;  // of eight lanes' powers
    __m512i size = _mm512_setzero_si512();
    for (int i = 0; i < kRow; i += 64, powers += 2 * stride) {
      __m512i place[4], ratio[4], shift[4], target[4];
      for (int q = 0; q < 4; ++q) {
        place[q] = _mm512_add_epi32(quarters(places + i, q), all(static_cast<int>(first)));
        ratio[q] = quarters(by.ratio + i, q), shift[q] = quarters(by.shift + i, q);
        target[q] = quarters(by.target + i, q);
      }
      for (int w = 0; w < words; ++w) {
        const uint32_t* power = powers + 32 * w;
        __m512i e[4];
        for (int q = 0; q < 4; ++q) {
          const __m512i at = all(4 * w);
          const __m512i chance = _mm512_srli_epi32(mixed_high(_mm512_add_epi32(place[q], at)), 16);
          __m512i part = _mm512_inserti64x4(_mm512_castsi256_si512(X86Learn::load(power + 8 * q)),
                                            X86Learn::load(power + stride + 8 * q), 1);
          part = _mm512_mullo_epi32(_mm512_srlv_epi32(part, shift[q]), ratio[q]);
          part = _mm512_add_epi32(_mm512_srli_epi32(part, 8), chance);
          const __mmask16 hit = _mm512_cmpeq_epi32_mask(target[q], at);
          e[q] =
              _mm512_sub_epi32(_mm512_maskz_mov_epi32(hit, all(127)), _mm512_srli_epi32(part, 16));
        }
        const __m512i row = unclipped(bytes(e), load(u + w * kRow + i));
        size =
            _mm512_add_epi64(size, _mm512_sad_epu8(_mm512_abs_epi8(row), _mm512_setzero_si512()));
        store(to + w * kRow + i, row);
      }
    }
    return _mm512_reduce_add_epi64(size);
  }

  // Errors of logits, but for those that would push a clipped one further out.
  static __m512i unclipped(__m512i e, __m512i u) {
    const __m512i zero = _mm512_setzero_si512();
    const __mmask64 out =
        _mm512_mask_cmpgt_epi8_mask(_mm512_cmpeq_epi8_mask(u, all8(127)), e, zero);
    const __mmask64 in =
        _mm512_mask_cmplt_epi8_mask(_mm512_cmpeq_epi8_mask(u, all8(-127)), e, zero);
    return _mm512_maskz_mov_epi8(~(out | in), e);
  }
};
