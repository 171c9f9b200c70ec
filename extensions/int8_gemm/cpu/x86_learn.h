// Primitives of credit with AVX2 or AVX-512.

// These have the same width in every unit.
struct X86Rows : PortableLearn {
  static __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static __m256i all(int32_t v) { return _mm256_set1_epi32(v); }

  // Four lanes' bytes of one value become neighbours, whose products are added in pairs.
  static void vote(const int8_t* c, const int8_t* factor, int32_t* sum) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    auto lanes = [&](const int8_t* p) {
      __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(v, order));
    };
    __m256i votes = _mm256_setzero_si256();
    for (int i = 0; i < kRow; i += 16)
      votes = _mm256_add_epi32(votes, _mm256_madd_epi16(lanes(c + i), lanes(factor + i)));
    alignas(32) int32_t pairs[8];
    store(pairs, votes);
    for (int j = 0; j < 4; ++j) sum[j] = pairs[2 * j] + pairs[2 * j + 1];
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

  // Three vectors' bytes, joined to 32 bits each: v[q] has those that lie at 4 q .. 4 q + 3 of
  // every 128 bits.
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
    const Table table(mantissa, bits);
    for (int m = 0; m < kLanes; ++m) fine[m] = coarse[m] = 0;
    for (int m = 0; m < kLanes; m += 8, to += static_cast<size_t>(words) * 32)
      bits == 4 ? lanes<4>(u + 4 * m, rows, words, table, to, fine + m, coarse + m)
                : lanes<8>(u + 4 * m, rows, words, table, to, fine + m, coarse + m);
  }

  // Powers of eight lanes, [words][32] in the order of the vectors.
  template <int bits>
  static void lanes(const int8_t* u, int rows, int words, const Table& table, uint32_t* to,
                    uint64_t* fine, uint64_t* coarse) {
    constexpr int kFitting = 128;  // words whose powers, below 2^24, fit 32 bits together
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

  static void turn(const uint32_t* from, uint32_t* to, int stride) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int g = 0; g < kLanes / 4; ++g) {
      __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * g));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + g * stride), _mm_shuffle_epi8(v, order));
    }
  }
};

// A block of four vectors of credit, that is of one vector of bytes, is unpacked within 128 bits,
// which packing takes back: vector q has the values 4 q .. 4 q + 3, and those 16 (and 32, and 48)
// further.
template <typename V>
struct X86Learn : X86Rows {
  static constexpr int kBlock = 4 * V::kWidth;  // values

  static void total(const int8_t* c, int32_t* sum) {
    V votes = V::all32(0);
    for (int i = 0; i < kRow; i += kBlock) votes = votes.add32(V::loadu(c + i).turned().fours8());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sum), votes.quarters32());
  }

  static void take(const int32_t* from, const int8_t* y, int32_t* of) {
    if (!y) {
      for (int i = 0; i < kRow; i += V::kWidth) V::loadu(from + i).storeu(of + i);
      return;
    }
    for (int i = 0; i < kRow; i += V::kWidth)
      V::loadu(from + i).unless32(V::widenedu(y + i).abs32(), V::all32(127)).storeu(of + i);
  }

  static void pass_positive(const int32_t* from, const int8_t* x, bool adds, int32_t* to) {
    const V zero = V::all32(0);
    for (int i = 0; i < kRow; i += V::kWidth) {
      V v = V::loadu(from + i).unless32(V::widenedu(x + i).max32(zero), zero);
      if (adds) v = v.add32(V::loadu(to + i)).bounded32(kBound);
      v.storeu(to + i);
    }
  }

  // The upper half of `mixed` of a word, and something below.
  static V mixed_high(V v) {
    v = v.flipped(v.srl32(16)).mul32(V::all32(0x7FEB352D));
    return v.flipped(v.srl32(15)).mul32(V::all32(static_cast<int>(0x846CA68Bu)));
  }

  // A block, saturated.
  static V bytes(const V* v) { return v[0].packs32(v[1]).packs16(v[2].packs32(v[3])); }

  static int32_t round(const int32_t* of, const uint32_t* places, uint32_t first, int h,
                       int8_t* to) {
    // On Intel's cores shifts by vectors take one port, where those by a number take two.
    const V base = V::all32(static_cast<int>(first)), up = V::all32(32 - h), down = V::all32(h);
    V size = V::all32(0);
    for (int i = 0; i < kRow; i += kBlock) {
      V v[4];
      for (int j = 0; j < 4; ++j) {
        const V c = V::loadu(of + i + j * V::kWidth);
        size = size.add32(c.abs32());
        const V word = mixed_high(V::loadu(places + i + j * V::kWidth).add32(base));
        v[j] = c.add32(word.srl32(up)).sra32(down);
      }
      bytes(v).max8(V::all8(-127)).ordered().storeu(to + i);
    }
    return size.total32();
  }

  template <bool down>
  static V scale(V v, Reduced by) {
    v = v.bounded32(kSumBound).mul32(V::all32(by.a));
    if (down) return v.sra32(by.shift).bounded32(kBound);
    return v.bounded32(kBound).sll32(-by.shift).bounded32(kBound);
  }

  static void spread(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* to) {
    by.shift >= 0 ? spread_by<true>(acc, by, adds, to) : spread_by<false>(acc, by, adds, to);
  }

  // A vector's lanes of four outputs at a time, turned.
  template <bool down>
  static void spread_by(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* to) {
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += V::kWidth, to += kBlock) {
        V v[4];
        for (int i = 0; i < 4; ++i) v[i] = scale<down>(V::loadu(acc[o + i] + m), by);
        V::turn(v);
        for (int i = 0; i < 4; ++i) {
          int32_t* at = to + i * V::kWidth;
          if (adds) v[i] = v[i].add32(V::loadu(at)).bounded32(kBound);
          v[i].storeu(at);
        }
      }
  }

  // `powers` has blocks of eight lanes.
  static int64_t errors(const int8_t* u, const uint32_t* powers, int words, const ErrorLanes& by,
                        const uint32_t* places, uint32_t first, int8_t* to) {
    const size_t stride = static_cast<size_t>(words) * 32;
    V size = V::all32(0);
    for (int i = 0; i < kRow; i += kBlock, powers += V::kWidth / 8 * stride) {
      V place[4], ratio[4], shift[4], target[4];
      for (int q = 0; q < 4; ++q) {
        const int at = i + 4 * q;
        place[q] = V::quarters(places + at).add32(V::all32(static_cast<int>(first)));
        ratio[q] = V::quarters(by.ratio + at), shift[q] = V::quarters(by.shift + at);
        target[q] = V::quarters(by.target + at);
      }
      for (int w = 0; w < words; ++w) {
        V e[4];
        for (int q = 0; q < 4; ++q) {
          const V at = V::all32(4 * w), chance = mixed_high(place[q].add32(at)).srl32(16);
          V part = V::halves(powers + 32 * w + 8 * q, stride).srl32(shift[q]).mul32(ratio[q]);
          part = part.srl32(8).add32(chance).srl32(16);
          e[q] = V::all32(127).only_where32(target[q], at).sub32(part);
        }
        const V row = unclipped(bytes(e), V::loadu(u + w * kRow + i));
        size = size.add64(row.sizes8());
        row.storeu(to + w * kRow + i);
      }
    }
    return size.total64();
  }

  // Errors of logits within +-127, but for those that would push a clipped one further out.
  static V unclipped(V e, V u) {
    const V top = V::all8(127), bottom = V::all8(-127);
    return e.min8(top.unless8(u, top)).max8(bottom.unless8(u, bottom));
  }
};
