// AVX-512 without products: norm, sums of exponentials, and operations element by element.

// The lane of each byte that unpacklo takes of sixteen lanes' words; unpackhi takes those of lane
// + 2.
struct Unpacked {
  alignas(64) uint16_t lane[32];

  constexpr Unpacked() : lane() {
    for (uint16_t i = 0; i < 32; ++i) lane[i] = static_cast<uint16_t>(i / 8 * 4 + i % 8 / 4);
  }
};
constexpr Unpacked kUnpacked;

struct Avx512Elements : SparseRows<VnniIsa, V512> {
  static constexpr bool kFlips = true;

  // What is added without carry to every byte of a result: 128 for products.
  static __m512i flipped(bool flip) { return _mm512_set1_epi8(flip ? -128 : 0); }

  static void norm(const uint32_t* x, const int8_t* w, int n, int8_t* y, bool flip) {
    const __m512i mean = means(x, n);
    const __m512i factor = of_mean(kMeans.factor, mean), shift = of_mean(kMeans.shift, mean);
    const int8_t* bytes = reinterpret_cast<const int8_t*>(x);
    __m512i lane = _mm512_load_si512(kUnpacked.lane);
    for (int half = 0; half < 2; ++half, lane = _mm512_add_epi16(lane, _mm512_set1_epi16(16))) {
      const __m512i other = _mm512_add_epi16(lane, _mm512_set1_epi16(2));
      const __m512i by[2] = {_mm512_permutexvar_epi16(lane, factor),
                             _mm512_permutexvar_epi16(other, factor)};
      const __m512i bits[2] = {_mm512_permutexvar_epi16(lane, shift),
                               _mm512_permutexvar_epi16(other, shift)};
      for (int at = 64 * half; at < words_of(n) * 4 * kLanes; at += 4 * kLanes) {
        const __m512i v = load_bytes(bytes + at), u = load_bytes(w + at);
        auto quotients = [&](__m512i twice, int i) {
          twice = _mm512_or_si512(twice, _mm512_set1_epi16(1));
          return _mm512_srav_epi16(_mm512_mulhi_epi16(twice, by[i]), bits[i]);
        };
        // Of numbers times 256 the rounding product gives twice theirs.
        const __m512i low = _mm512_mulhrs_epi16(low_bytes(v), low_bytes(u));
        const __m512i high = _mm512_mulhrs_epi16(high_bytes(v), high_bytes(u));
        store16(y + at, quotients(low, 0), quotients(high, 1), flipped(flip));
      }
    }
  }

  static ActiveRows active_rows(const int32_t* list, int n, int32_t* room) {
    auto piece = [&](int i, __m512i* v) {
      const uint32_t there = i + 16 <= n ? 0xFFFFu : (1u << (n - i)) - 1;
      *v = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(there), list + i);
      return _mm512_mask_cmpge_epi32_mask(static_cast<__mmask16>(there), *v,
                                          _mm512_setzero_si512());
    };
    int count = 0;
    bool apart = false;  // one stands behind a -1
    __m512i v;
    for (int i = 0; i < n; i += 16) {
      const uint32_t active = piece(i, &v);
      apart |= (active & (active + 1)) || (active && count < i);
      count += __builtin_popcount(active);
    }
    if (!apart) return {list, count};
    count = 0;
    for (int i = 0; i < n; i += 16) {
      const __mmask16 active = piece(i, &v);
      _mm512_storeu_si512(room + count, _mm512_maskz_compress_epi32(active, v));
      count += __builtin_popcount(active);
    }
    return {room, count};
  }

  static bool ascend(ActiveRows rows) {
    const int n = rows.count - 1;
    uint32_t fails = 0;
    for (int i = 0; i < n; i += 16) {
      const __mmask16 there = static_cast<__mmask16>(i + 16 <= n ? 0xFFFFu : (1u << (n - i)) - 1);
      const __m512i v = _mm512_maskz_loadu_epi32(there, rows.row + i);
      fails |=
          _mm512_mask_cmple_epi32_mask(there, _mm512_maskz_loadu_epi32(there, rows.row + i + 1), v);
    }
    return !fails;
  }

  static bool within(ActiveRows rows, int32_t most) {
    const __m512i all = _mm512_set1_epi32(most);
    uint32_t beyond = 0;
    for (int i = 0; i < rows.count; i += 16) {
      const uint32_t there = i + 16 <= rows.count ? 0xFFFFu : (1u << (rows.count - i)) - 1;
      const __m512i v = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(there), rows.row + i);
      beyond |= _mm512_mask_cmpge_epu32_mask(static_cast<__mmask16>(there), v, all);
    }
    return !beyond;
  }

  static void perturbed(const int8_t* w, const int8_t* two, int n, int shift, int8_t* plus,
                        int8_t* minus) {
    const __m128i by = _mm_cvtsi32_si128(shift < 15 ? shift : 15);
    auto half = [](const int8_t* p) { return reinterpret_cast<const __m256i*>(p); };
    auto clipped = [](int8_t* to, __m512i v) {
      v = _mm512_max_epi16(v, _mm512_set1_epi16(-127));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi16_epi8(v));
    };
    int i = 0;
    for (; i + 32 <= n; i += 32) {
      const __m512i both = _mm512_loadu_si512(two + 2 * i);
      const __m512i first = _mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8);
      const __m512i product = _mm512_mullo_epi16(first, _mm512_srai_epi16(both, 8));
      const __m512i negative = _mm512_sub_epi16(_mm512_setzero_si512(), product);
      const __m512i plain = _mm512_cvtepi8_epi16(_mm256_loadu_si256(half(w + i)));
      clipped(plus + i, _mm512_add_epi16(plain, _mm512_sra_epi16(product, by)));
      clipped(minus + i, _mm512_add_epi16(plain, _mm512_sra_epi16(negative, by)));
    }
    PortableIsa::perturbed(w + i, two + 2 * i, n - i, shift, plus + i, minus + i);
  }

  // Bytes times 256, of each 128 bits the lower or the upper half.
  static __m512i low_bytes(__m512i v) { return _mm512_unpacklo_epi8(_mm512_setzero_si512(), v); }
  static __m512i high_bytes(__m512i v) { return _mm512_unpackhi_epi8(_mm512_setzero_si512(), v); }

  // What was unpacked so, clipped to +-127.
  static void store16(int8_t* y, __m512i low, __m512i high, __m512i flip = _mm512_setzero_si512()) {
    const __m512i v = _mm512_max_epi8(_mm512_packs_epi16(low, high), _mm512_set1_epi8(-127));
    _mm512_store_si512(y, _mm512_xor_si512(v, flip));
  }

  // max(1, sum|x| / n) of every lane, in 16 bits.
  static __m512i means(const uint32_t* x, int n) {
    alignas(64) int32_t sum[kLanes];
    abs_sum(x, n, sum);
    // s / n of sums up to 127 n as s ceil(2^B / n) >> B with B = 31 + floor(log2 n): the factor has
    // 32 bits, and the quotient is exact while 127 n^2 < 2^B, for n below 2^22.
    const int bits = 62 - __builtin_clz(static_cast<unsigned>(n));
    const uint64_t factor =
        ((uint64_t{1} << bits) + static_cast<uint64_t>(n) - 1) / static_cast<uint64_t>(n);
    const __m512i by = _mm512_set1_epi64(static_cast<int64_t>(factor));
    const __m128i shift = _mm_cvtsi32_si128(bits);
    __m256i part[2];
    for (int half = 0; half < 2; ++half) {
      const __m512i s = _mm512_load_si512(sum + half * kPairs);
      const __m512i even = _mm512_srl_epi64(_mm512_mul_epu32(s, by), shift);
      const __m512i odd = _mm512_srl_epi64(_mm512_mul_epu32(_mm512_srli_epi64(s, 32), by), shift);
      part[half] = _mm512_cvtepi32_epi16(_mm512_or_si512(even, _mm512_slli_epi64(odd, 32)));
    }
    const __m512i mean = _mm512_inserti64x4(_mm512_castsi256_si512(part[0]), part[1], 1);
    return _mm512_max_epi16(mean, _mm512_set1_epi16(1));
  }

  static __m512i of_mean(const uint16_t* t, __m512i mean) {
    const __m512i low =
        _mm512_permutex2var_epi16(_mm512_load_si512(t), mean, _mm512_load_si512(t + 32));
    const __m512i high =
        _mm512_permutex2var_epi16(_mm512_load_si512(t + 64), mean, _mm512_load_si512(t + 96));
    return _mm512_mask_blend_epi16(_mm512_cmpgt_epi16_mask(mean, _mm512_set1_epi16(63)), low, high);
  }

  // Two sums a lane, as one would wait for itself.
  static void abs_sum(const uint32_t* x, int n, int32_t* sum) {
    __m512i total[2][2] = {};
    auto step = [&](int i, int ones) {
      for (int half = 0; half < 2; ++half, x += kPairs)
        total[i][half] = _mm512_dpbusd_epi32(total[i][half], _mm512_abs_epi8(_mm512_load_si512(x)),
                                             _mm512_set1_epi32(ones));
    };
    constexpr int kAll = 0x01010101;
    for (int k = 0; k < n / 8; ++k) step(0, kAll), step(1, kAll);
    if (n % 8 >= 4) step(0, kAll);
    if (n % 4) step(1, kAll >> 8 * (4 - n % 4));
    for (int half = 0; half < 2; ++half)
      _mm512_store_si512(sum + half * kPairs, _mm512_add_epi32(total[0][half], total[1][half]));
  }

  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    __m512i part[2];
    exp2_of(words, count, plan, part);
    for (int half = 0; half < 2; ++half)
      _mm512_store_si512(sum + half * kPairs,
                         _mm512_add_epi32(_mm512_load_si512(sum + half * kPairs), part[half]));
  }

  // A tile's sums of EXP2[u], u = logit + 128, of both halves of the lanes. The three bytes of
  // EXP2[u | 128] are looked up for 64 logits at a time; EXP2[u - 128] is EXP2[u] >> 8, the same
  // but for the lowest. Products with 1 add them up, or with 0 where there is no output.
  static inline __attribute__((always_inline)) void exp2_of(uint32_t (*words)[kLanes], int count,
                                                            const Plan& plan, __m512i* part) {
    __m512i table[3][2], total[3][2] = {};
    for (int j = 0; j < 3; ++j)
      for (int i = 0; i < 2; ++i) table[j][i] = _mm512_loadu_si512(plan.exp2_bytes[j] + 64 * i);
    for (int w = 0; w < kTile / 4; ++w) {
      const int absent = 4 - clamp(count - 4 * w, 0, 4);
      const __m512i ones =
          _mm512_set1_epi32(static_cast<int32_t>(uint64_t{0x01010101} >> 8 * absent));
      for (int half = 0; half < 2; ++half) {
        const __m512i v = _mm512_load_si512(words[w] + half * kPairs);
        const __mmask64 lower = _mm512_movepi8_mask(v);  // u < 128; else the byte's bits are u's
        __m512i byte[3];
        for (int j = 0; j < 3; ++j) byte[j] = _mm512_permutex2var_epi8(table[j][0], v, table[j][1]);
        const __m512i of[3] = {_mm512_mask_blend_epi8(lower, byte[0], byte[1]),
                               _mm512_mask_blend_epi8(lower, byte[1], byte[2]),
                               _mm512_maskz_mov_epi8(~lower, byte[2])};
        for (int j = 0; j < 3; ++j)
          total[j][half] = _mm512_dpbusd_epi32(total[j][half], of[j], ones);
      }
    }
    for (int half = 0; half < 2; ++half)
      part[half] =
          _mm512_add_epi32(total[0][half], _mm512_add_epi32(_mm512_slli_epi32(total[1][half], 8),
                                                            _mm512_slli_epi32(total[2][half], 16)));
  }

  // One EXP2[u] = mantissa[u % 16] >> (15 - u / 16), of the j-th byte of every dword: the table of
  // sixteen fits one register. u % 16 is the low nibble of the byte = u ^ 128, which the
  // permutation alone looks at, and 15 - u / 16 is its high nibble ^ 7.
  static inline __attribute__((always_inline)) __m512i exp2_at(__m512i low, __m512i high, int j,
                                                               __m512i mantissa) {
    const __m512i value = _mm512_permutexvar_epi32(byte_first(low, j), mantissa);
    return _mm512_srlv_epi32(value, only_byte(high, j));
  }

  // The high nibble of every byte, but for the bits of `by`.
  static __m512i high_nibbles(__m512i v, char by) {
    v = _mm512_and_si512(_mm512_srli_epi32(v, 4), _mm512_set1_epi8(15));
    return _mm512_xor_si512(v, _mm512_set1_epi8(by));
  }

  // Every dword with its j-th byte first, whatever follows.
  static inline __attribute__((always_inline)) __m512i byte_first(__m512i v, int j) {
    return j ? _mm512_srli_epi32(v, static_cast<unsigned>(8 * j)) : v;
  }

  // Every dword's j-th byte alone.
  static inline __attribute__((always_inline)) __m512i only_byte(__m512i v, int j) {
    if (j == 0) return _mm512_and_si512(v, _mm512_set1_epi32(255));
    if (j == 3) return _mm512_srli_epi32(v, 24);
    const __m128i at = _mm_add_epi8(_mm_setr_epi8(0, -128, -128, -128, 4, -128, -128, -128, 8, -128,
                                                  -128, -128, 12, -128, -128, -128),
                                    _mm_set1_epi32(j));
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(at));
  }

  // 2^(31 + u / 16) = mantissa[u % 16] << (u / 16), of 64 bits; u / 16 is the high nibble ^ 8.
  static void exact_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint64_t* sum) {
    const __m512i mantissa = _mm512_loadu_si512(plan.exact_mantissa);
    for (int half = 0; half < kLanes; half += 16) {
      __m512i first = _mm512_load_si512(sum + half), last = _mm512_load_si512(sum + half + 8);
      for (int o = 0; o < count; o += 4) {
        const __m512i low = _mm512_load_si512(words[o / 4] + half);
        const __m512i high = high_nibbles(low, 8);
        for (int j = 0; j < 4 && o + j < count; ++j) {
          const __m512i value = _mm512_permutexvar_epi32(byte_first(low, j), mantissa);
          const __m512i by = only_byte(high, j);
          first = _mm512_add_epi64(
              first, shifted(_mm512_castsi512_si256(value), _mm512_castsi512_si256(by)));
          last = _mm512_add_epi64(
              last, shifted(_mm512_extracti64x4_epi64(value, 1), _mm512_extracti64x4_epi64(by, 1)));
        }
      }
      _mm512_store_si512(sum + half, first);
      _mm512_store_si512(sum + half + 8, last);
    }
  }

  // Eight dwords, shifted left as qwords.
  static __m512i shifted(__m256i value, __m256i by) {
    return _mm512_sllv_epi64(_mm512_cvtepu32_epi64(value), _mm512_cvtepu32_epi64(by));
  }

  static __m512i load_bytes(const int8_t* p) { return _mm512_load_si512(p); }

  static void add(const int8_t* a, const int8_t* b, int count, int8_t* y) {
    for (int i = 0; i < count; i += 64)
      _mm512_store_si512(y + i,
                         _mm512_max_epi8(_mm512_adds_epi8(load_bytes(a + i), load_bytes(b + i)),
                                         _mm512_set1_epi8(-127)));
  }

  // The largest and the smallest first: their sum is clipped only where that of all three is.
  static void add_bias(const int8_t* a, const int8_t* b, const int8_t* w, int count, int8_t* y) {
    for (int i = 0; i < count; i += 64) {
      const __m512i u = load_bytes(a + i), v = load_bytes(b + i), x = load_bytes(w + i);
      const __m512i top = _mm512_max_epi8(_mm512_max_epi8(u, v), x);
      const __m512i bottom = _mm512_min_epi8(_mm512_min_epi8(u, v), x);
      const __m512i all = _mm512_ternarylogic_epi32(u, v, x, 0x96);
      const __m512i middle = _mm512_ternarylogic_epi32(all, top, bottom, 0x96);
      const __m512i sum = _mm512_adds_epi8(_mm512_adds_epi8(top, bottom), middle);
      _mm512_store_si512(y + i, _mm512_max_epi8(sum, _mm512_set1_epi8(-127)));
    }
  }

  static __m512i gates(const int8_t* f) {  // f + 127, unsigned
    return _mm512_add_epi8(load_bytes(f), _mm512_set1_epi8(127));
  }

  static void forget(const int8_t* f, const int8_t* s, int count, int8_t* y, bool flip) {
    const __m512i zero = _mm512_setzero_si512();
    for (int i = 0; i < count; i += 64) {
      const __m512i gate = gates(f + i), old = load_bytes(s + i);
      store16(y + i, _mm512_mulhi_epi16(_mm512_unpacklo_epi8(gate, zero), low_bytes(old)),
              _mm512_mulhi_epi16(_mm512_unpackhi_epi8(gate, zero), high_bytes(old)), flipped(flip));
    }
  }

  // (gate d) >> 8 with d = h - s of nine bits, as the high half of (128 gate) (2 d). What is added
  // to s can have nine bits, their sum cannot.
  static void mix(const int8_t* f, const int8_t* h, const int8_t* s, int count, int8_t* y,
                  int8_t* flipped_too) {
    const __m512i zero = _mm512_setzero_si512();
    auto part = [&](__m512i pairs, __m512i gate) {
      const __m512i twice = _mm512_maddubs_epi16(_mm512_set1_epi8(2), pairs);
      return _mm512_and_si512(_mm512_mulhi_epi16(_mm512_srli_epi16(gate, 1), twice),
                              _mm512_set1_epi16(255));
    };
    for (int i = 0; i < count; i += 64) {
      const __m512i gate = gates(f + i), old = load_bytes(s + i), next = load_bytes(h + i);
      const __m512i minus = _mm512_sub_epi8(zero, old);
      const __m512i low = part(_mm512_unpacklo_epi8(next, minus), low_bytes(gate));
      const __m512i high = part(_mm512_unpackhi_epi8(next, minus), high_bytes(gate));
      const __m512i v = _mm512_add_epi8(old, _mm512_packus_epi16(low, high));
      _mm512_store_si512(y + i, v);
      if (flipped_too) _mm512_store_si512(flipped_too + i, _mm512_xor_si512(v, flipped(true)));
    }
  }
};
