// Primitives of credit with AVX2, for all units that have it. Included inside each unit's
// namespace, after learn_isa.h.

struct X86Learn : PortableLearn {
  static __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static __m256i all(int32_t v) { return _mm256_set1_epi32(v); }
  static __m256i wide(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }

  static void take(const int32_t* from, const int8_t* y, int32_t* of) {
    if (!y) return void(__builtin_memcpy(of, from, kRow * sizeof *of));
    for (int i = 0; i < kRow; i += 8) {
      __m256i clipped = _mm256_cmpeq_epi32(_mm256_abs_epi32(wide(y + i)), all(127));
      store(of + i, _mm256_andnot_si256(clipped, load(from + i)));
    }
  }

  // The upper half of `mixed` of a word, and something below.
  static __m256i mixed_high(__m256i v) {
    v = _mm256_mullo_epi32(_mm256_xor_si256(v, _mm256_srli_epi32(v, 16)), all(0x7FEB352D));
    return _mm256_mullo_epi32(_mm256_xor_si256(v, _mm256_srli_epi32(v, 15)),
                              all(static_cast<int>(0x846CA68Bu)));
  }

  // 32 values, clipped to +-127.
  static __m256i bytes(const __m256i* v) {
    __m256i low = _mm256_packs_epi32(v[0], v[1]), high = _mm256_packs_epi32(v[2], v[3]);
    return _mm256_max_epi8(_mm256_packs_epi16(low, high), _mm256_set1_epi8(-127));
  }

  static int32_t total(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
  }

  static int32_t round(const int32_t* of, const uint32_t* places, uint32_t first, int h,
                       int8_t* to) {
    // Packing works within halves.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i base = all(static_cast<int>(first));
    const __m128i by = _mm_cvtsi32_si128(h), up = _mm_cvtsi32_si128(32 - h);
    __m256i size = _mm256_setzero_si256();
    for (int i = 0; i < kRow; i += 32) {
      __m256i v[4];
      for (int j = 0; j < 4; ++j) {
        __m256i c = load(of + i + 8 * j);
        size = _mm256_add_epi32(size, _mm256_abs_epi32(c));
        __m256i word = mixed_high(_mm256_add_epi32(load(places + i + 8 * j), base));
        v[j] = _mm256_sra_epi32(_mm256_add_epi32(c, _mm256_srl_epi32(word, up)), by);
      }
      store(to + i, _mm256_permutevar8x32_epi32(bytes(v), order));
    }
    return total(size);
  }

  static __m256i bound(__m256i v, int32_t by) {
    return _mm256_max_epi32(_mm256_min_epi32(v, all(by)), all(-by));
  }

  template <bool down>
  static __m256i scale(__m256i v, Reduced by) {
    v = _mm256_mullo_epi32(bound(v, kSumBound), all(by.a));
    if (down) return bound(_mm256_sra_epi32(v, _mm_cvtsi32_si128(by.shift)), kBound);
    return bound(_mm256_sll_epi32(bound(v, kBound), _mm_cvtsi32_si128(-by.shift)), kBound);
  }

  static void spread(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* to) {
    by.shift >= 0 ? spread_by<true>(acc, by, adds, to) : spread_by<false>(acc, by, adds, to);
  }

  // Eight lanes of four outputs at a time, turned.
  template <bool down>
  static void spread_by(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* to) {
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 8, to += 32) {
        __m256i v[4];
        for (int i = 0; i < 4; ++i) v[i] = scale<down>(load(acc[o + i] + m), by);
        __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
        __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
        __m256i w[4] = {_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b),
                        _mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d)};
        v[0] = _mm256_permute2x128_si256(w[0], w[1], 0x20);
        v[1] = _mm256_permute2x128_si256(w[2], w[3], 0x20);
        v[2] = _mm256_permute2x128_si256(w[0], w[1], 0x31);
        v[3] = _mm256_permute2x128_si256(w[2], w[3], 0x31);
        for (int i = 0; i < 4; ++i) {
          if (adds) v[i] = bound(_mm256_add_epi32(v[i], load(to + 8 * i)), kBound);
          store(to + 8 * i, v[i]);
        }
      }
  }

  // Four lanes' bytes of one value become neighbours, whose products are added in pairs.
  static void vote(const int8_t* c, const int8_t* factor, int32_t* sum) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    auto lanes = [&](const int8_t* p) {
      __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(v, order));
    };
    __m256i votes = _mm256_setzero_si256(), by = _mm256_set1_epi16(1);
    for (int i = 0; i < kRow; i += 16) {
      if (factor) by = lanes(factor + i);
      votes = _mm256_add_epi32(votes, _mm256_madd_epi16(lanes(c + i), by));
    }
    alignas(32) int32_t pairs[8];
    store(pairs, votes);
    for (int j = 0; j < 4; ++j) sum[j] += pairs[2 * j] + pairs[2 * j + 1];
  }

  static void magnitudes(const int8_t* x, int n, int32_t* sum) {
    const __m256i one = _mm256_set1_epi8(1),
                  last = all(static_cast<int>(0xFFFFFFFFu >> (8 * (-n & 3))));
    for (int m = 0; m < kLanes; m += 8) {
      __m256i found = _mm256_setzero_si256();
      for (int k = 0; k < n; k += 4) {
        __m256i v = _mm256_abs_epi8(load(x + k * kLanes + 4 * m));
        if (k + 4 > n) v = _mm256_and_si256(v, last);
        v = _mm256_madd_epi16(_mm256_maddubs_epi16(v, one), _mm256_set1_epi16(1));
        found = _mm256_add_epi32(found, v);
      }
      store(sum + m, found);
    }
  }

  // ---- the head's error ----------------------------------------------------------------------
  // A block of 32 values, eight lanes, is unpacked within halves, which packing takes back: vector
  // q has the values 4 q .. 4 q + 3 and 16 more.

  static __m256i halves(const void* from, int q) {
    const __m128i* p = static_cast<const __m128i*>(from) + q;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p)),
                                   _mm_loadu_si128(p + 4), 1);
  }

  // The bytes of four words' tables, and of their shifts, to 32 bits.
  static void widened(__m256i low, __m256i mid, __m256i high, __m256i* v) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = _mm256_unpacklo_epi8(low, mid), b = _mm256_unpackhi_epi8(low, mid);
    __m256i c = _mm256_unpacklo_epi8(high, zero), d = _mm256_unpackhi_epi8(high, zero);
    v[0] = _mm256_unpacklo_epi16(a, c), v[1] = _mm256_unpackhi_epi16(a, c);
    v[2] = _mm256_unpacklo_epi16(b, d), v[3] = _mm256_unpackhi_epi16(b, d);
  }

  // EXP2[u] = mantissa[u % 16] >> (15 - u / 16): the mantissas, below 2^24, by tables of their
  // bytes.
  struct Table {
    __m256i byte[3];

    Table(const uint32_t* mantissa, int bits) {
      alignas(16) uint8_t of[3][16];
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 3; ++j)
          of[j][i] = static_cast<uint8_t>(mantissa[i] >> (16 - bits) >> 8 * j);
      for (int j = 0; j < 3; ++j)
        byte[j] = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(of[j]));
    }

    void powers(__m256i u, __m256i* v) const {
      const __m256i nibble = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
      __m256i at = _mm256_and_si256(u, nibble), by[4];
      __m256i high = _mm256_and_si256(_mm256_srli_epi16(u, 4), nibble);
      widened(_mm256_shuffle_epi8(byte[0], at), _mm256_shuffle_epi8(byte[1], at),
              _mm256_shuffle_epi8(byte[2], at), v);
      widened(_mm256_xor_si256(high, _mm256_set1_epi8(7)), zero, zero, by);
      for (int q = 0; q < 4; ++q) v[q] = _mm256_srlv_epi32(v[q], by[q]);
    }
  };

  static void powers(const int8_t* u, int rows, int words, const uint32_t* mantissa, int bits,
                     uint32_t* to, uint64_t* fine, uint64_t* coarse) {
    for (int m = 0; m < kLanes; ++m) fine[m] = coarse[m] = 0;
    for (int m = 0; m < kLanes; m += 8, to += static_cast<size_t>(words) * 32)
      bits == 4 ? lanes<4>(u + 4 * m, rows, words, mantissa, to, fine + m, coarse + m)
                : lanes<8>(u + 4 * m, rows, words, mantissa, to, fine + m, coarse + m);
  }

  // Powers of eight lanes, [words][32] in the order of the vectors.
  template <int bits>
  static void lanes(const int8_t* u, int rows, int words, const uint32_t* mantissa, uint32_t* to,
                    uint64_t* fine, uint64_t* coarse) {
    constexpr int kFitting = 128;  // words whose powers, below 2^24, fit 32 bits together
    const Table table(mantissa, bits);
    for (int first = 0; first < words; first += kFitting) {
      int last = words - first < kFitting ? words : first + kFitting;
      __m256i sum[4], less[4];
      for (int q = 0; q < 4; ++q) sum[q] = less[q] = _mm256_setzero_si256();
      for (int w = first; w < last; ++w) {
        __m256i v[4];
        table.powers(load(u + w * kRow), v);
        for (int q = 0; q < 4; ++q) {
          if (4 * w + 4 > rows) {
            const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
            v[q] = _mm256_and_si256(v[q], _mm256_cmpgt_epi32(all(rows - 4 * w), at));
          }
          sum[q] = _mm256_add_epi32(sum[q], v[q]);
          if (bits > 4) {
            v[q] = _mm256_srli_epi32(v[q], bits - 4);
            less[q] = _mm256_add_epi32(less[q], v[q]);
          }
          store(to + 32 * w + 8 * q, v[q]);
        }
      }
      gather(sum, fine);
      gather(bits > 4 ? less : sum, coarse);
    }
  }

  static void gather(const __m256i* sum, uint64_t* to) {
    alignas(32) uint32_t of[8];
    for (int q = 0; q < 4; ++q) {
      store(of, sum[q]);
      for (int i = 0; i < 8; ++i) to[q + i / 4 * 4] += of[i];
    }
  }

  static int64_t errors(const int8_t* u, const uint32_t* powers, int words, const ErrorLanes& by,
                        const uint32_t* places, uint32_t first, int8_t* to) {
    __m256i size = _mm256_setzero_si256();
    for (int i = 0; i < kRow; i += 32, powers += static_cast<size_t>(words) * 32) {
      __m256i place[4], ratio[4], shift[4], target[4];
      for (int q = 0; q < 4; ++q) {
        place[q] = _mm256_add_epi32(halves(places + i, q), all(static_cast<int>(first)));
        ratio[q] = halves(by.ratio + i, q), shift[q] = halves(by.shift + i, q);
        target[q] = halves(by.target + i, q);
      }
      for (int w = 0; w < words; ++w) {
        __m256i e[4];
        for (int q = 0; q < 4; ++q) {
          __m256i at = all(4 * w);
          __m256i chance = _mm256_srli_epi32(mixed_high(_mm256_add_epi32(place[q], at)), 16);
          __m256i part = _mm256_srlv_epi32(load(powers + 32 * w + 8 * q), shift[q]);
          part = _mm256_srli_epi32(_mm256_mullo_epi32(part, ratio[q]), 8);
          part = _mm256_srli_epi32(_mm256_add_epi32(part, chance), 16);
          __m256i hit = _mm256_and_si256(_mm256_cmpeq_epi32(target[q], at), all(127));
          e[q] = _mm256_sub_epi32(hit, part);
        }
        __m256i row = unclipped(bytes(e), load(u + w * kRow + i));
        __m256i sizes = _mm256_sad_epu8(_mm256_abs_epi8(row), _mm256_setzero_si256());
        size = _mm256_add_epi64(size, sizes);
        store(to + w * kRow + i, row);
      }
    }
    alignas(32) int64_t sizes[4];
    store(sizes, size);
    return sizes[0] + sizes[1] + sizes[2] + sizes[3];
  }

  // Errors of logits, but for those that would push a clipped one further out.
  static __m256i unclipped(__m256i e, __m256i u) {
    const __m256i top = _mm256_set1_epi8(127), zero = _mm256_setzero_si256();
    __m256i out = _mm256_and_si256(_mm256_cmpeq_epi8(u, top), _mm256_cmpgt_epi8(e, zero));
    __m256i in =
        _mm256_and_si256(_mm256_cmpeq_epi8(u, _mm256_set1_epi8(-127)), _mm256_cmpgt_epi8(zero, e));
    return _mm256_andnot_si256(_mm256_or_si256(out, in), e);
  }

  static void turn(const uint32_t* from, uint32_t* to, int stride) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int g = 0; g < kLanes / 4; ++g) {
      __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * g));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + g * stride), _mm_shuffle_epi8(v, order));
    }
  }
};
