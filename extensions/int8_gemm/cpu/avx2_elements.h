// Exponentials and norms with AVX2, in place of those of a unit's base.

template <typename Base>
struct Avx2Elements : SparseRows<Base, V256> {
  static __m256i load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, __m256i v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }

  // All bits of the first n words.
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  // Eight of n words from i on; those beyond are not read and are 0.
  static __m256i some(const int32_t* p, int i, int n) {
    return _mm256_maskload_epi32(p + i, first(n - i));
  }

  static ActiveRows active_rows(const int32_t* list, int n, int32_t* room) {
    int count = 0;
    for (int i = 0; i < n; i += 8) {
      const uint32_t none =
          static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(some(list, i, n))));
      const uint32_t there = i + 8 <= n ? 255u : (1u << (n - i)) - 1, active = there & ~none;
      // One stands behind a -1.
      if ((active & (active + 1)) || (active && count < i)) return Base::active_rows(list, n, room);
      count += __builtin_popcount(active);
    }
    return {list, count};
  }

  static bool ascend(ActiveRows rows) {
    const int n = rows.count - 1;
    auto above = [&](int i) {
      const __m256i* at = reinterpret_cast<const __m256i*>(rows.row + i);
      const __m256i* next = reinterpret_cast<const __m256i*>(rows.row + i + 1);
      return _mm256_cmpgt_epi32(_mm256_loadu_si256(next), _mm256_loadu_si256(at));
    };
    if (n >= 8) {  // the last eight once more where some of them were seen
      __m256i rises = above(n - 8);
      for (int i = 0; i + 8 <= n; i += 8) rises = _mm256_and_si256(rises, above(i));
      return _mm256_movemask_epi8(rises) == -1;
    }
    const __m256i next = some(rows.row + 1, 0, n),
                  rises = _mm256_cmpgt_epi32(next, some(rows.row, 0, n));
    return _mm256_testc_si256(rises, first(n));
  }

  static bool within(ActiveRows rows, int32_t most) {
    const __m256i all = _mm256_set1_epi32(most);
    __m256i beyond = _mm256_setzero_si256();
    for (int i = 0; i < rows.count; i += 8) {
      const __m256i v = some(rows.row, i, rows.count);
      beyond = _mm256_or_si256(beyond, _mm256_cmpeq_epi32(_mm256_max_epu32(v, all), v));
    }
    return _mm256_testz_si256(beyond, beyond);
  }

  // EXP2[u] = mantissa[u % 16] >> (15 - u / 16), 32 logits at a time: the bytes of a mantissa are
  // looked up by a logit's low nibble. A word has it above the number of bits that it is shifted
  // by, eight of them for that number itself. With u = byte ^ 128, 15 - u / 16 is the byte's high
  // nibble ^ 7.
  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    if (count != kTile) return Base::exp2_sum(words, count, plan, sum);
    alignas(32) uint8_t table[3][2][16];
    for (int i = 0; i < 3; ++i)
      for (int f = 0; f < 16; ++f)
        table[i][0][f] = table[i][1][f] = static_cast<uint8_t>(plan.exp2_mantissa[f] >> 8 * i);
    const __m256i nibble = _mm256_set1_epi8(15), all = _mm256_set1_epi32(255);
    for (int m = 0; m < kLanes; m += 8) {
      __m256i total[4] = {};  // of four logits each: lanes m + i and m + 4 + i
      for (int w = 0; w < kTile / 4; ++w) {
        const __m256i v = load(words[w] + m), at = _mm256_and_si256(v, nibble);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
        const __m256i down =
            _mm256_add_epi8(_mm256_xor_si256(high, _mm256_set1_epi8(7)), _mm256_set1_epi8(8));
        const __m256i b0 = _mm256_shuffle_epi8(load(table[0]), at);
        const __m256i b1 = _mm256_shuffle_epi8(load(table[1]), at);
        const __m256i b2 = _mm256_shuffle_epi8(load(table[2]), at);
        const __m256i even[2] = {_mm256_unpacklo_epi8(down, b0), _mm256_unpackhi_epi8(down, b0)};
        const __m256i odd[2] = {_mm256_unpacklo_epi8(b1, b2), _mm256_unpackhi_epi8(b1, b2)};
        for (int i = 0; i < 4; ++i) {
          const __m256i one = i % 2 ? _mm256_unpackhi_epi16(even[i / 2], odd[i / 2])
                                    : _mm256_unpacklo_epi16(even[i / 2], odd[i / 2]);
          const __m256i value = _mm256_srlv_epi32(one, _mm256_and_si256(one, all));
          total[i] = _mm256_add_epi32(total[i], value);
        }
      }
      const __m256i lanes = _mm256_hadd_epi32(_mm256_hadd_epi32(total[0], total[1]),
                                              _mm256_hadd_epi32(total[2], total[3]));
      store(sum + m, _mm256_add_epi32(load(sum + m), lanes));
    }
  }

  // By the means of each lane's |x|, as Means divides. Bits are shifted out by a second product, of
  // four times what the first one gave, clipped: beyond 16 bits quotients are clipped anyhow.
  static void norm(const uint32_t* x, const int8_t* w, int n, int8_t* y, bool) {
    alignas(32) int32_t sum[kLanes];
    abs_sum(x, n, sum);
    alignas(32) uint64_t factor[kLanes], down[kLanes];
    constexpr uint64_t kFour = 0x0001000100010001u;
    for (int m = 0; m < kLanes; ++m) {
      // Lanes 0, 1, 4 and 5 of eight, and then the others, as bytes are unpacked.
      const int at = m / 8 * 8 + m % 4 / 2 * 4 + m % 8 / 4 * 2 + m % 2;
      const int mean = mean_of(sum[m], n);
      factor[at] = kFour * kMeans.factor[mean];
      down[at] = kFour << (14 - kMeans.shift[mean]);
    }
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi16(1);
    auto quotients = [&](__m256i a, __m256i b, int at) {
      const __m256i v = _mm256_mulhi_epi16(a, b);
      const __m256i odd = _mm256_or_si256(_mm256_add_epi16(v, v), one);
      __m256i q = _mm256_mulhi_epi16(odd, load(factor + at));
      q = _mm256_slli_epi16(q, 1);  // which fits
      return _mm256_mulhi_epi16(_mm256_adds_epi16(q, q), load(down + at));
    };
    for (int k = 0; k < words_of(n); ++k)
      for (int i = 0; i < kLanes; i += 8, x += 8, w += 32, y += 32) {
        const __m256i v = load(x), u = load(w);
        const __m256i low =
            quotients(_mm256_unpacklo_epi8(zero, v), _mm256_unpacklo_epi8(zero, u), i);
        const __m256i high =
            quotients(_mm256_unpackhi_epi8(zero, v), _mm256_unpackhi_epi8(zero, u), i + 4);
        store(y, _mm256_max_epi8(_mm256_packs_epi16(low, high), _mm256_set1_epi8(-127)));
      }
  }

  static void abs_sum(const uint32_t* x, int n, int32_t* sum) {
    const int words = words_of(n);
    const __m256i rest = _mm256_set1_epi32(static_cast<int>(last_word(n)));
    const __m256i one = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    for (int m = 0; m < kLanes; m += 8) {
      __m256i total = _mm256_setzero_si256();
      auto step = [&](__m256i v) {
        const __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(v), one);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(two, ones));
      };
      for (int k = 0; k + 1 < words; ++k) step(load(x + k * kLanes + m));
      step(_mm256_and_si256(load(x + (words - 1) * kLanes + m), rest));
      store(sum + m, total);
    }
  }
};
