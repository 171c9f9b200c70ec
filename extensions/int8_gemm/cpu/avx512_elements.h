// AVX-512 without products: norm, sums of exponentials, and operations element by element.
//
// Included by a unit of AVX-512 inside its own namespace, after x86_vnni.h.
#pragma once

// Division by a mean 1..127 in 16 bits, see Avx512Elements::norm.
struct Means {
  alignas(64) uint16_t reciprocal[128], shift[128];

  constexpr Means() : reciprocal(), shift() {
    for (uint32_t mean = 1; mean < 128; ++mean) {
      while ((1u << shift[mean]) < mean) ++shift[mean];
      reciprocal[mean] = static_cast<uint16_t>(((1u << (15 + shift[mean])) + mean - 1) / mean);
    }
  }
};
constexpr Means kMeans;

// The lane of each of a row's first 32 bytes.
struct Quarters {
  alignas(64) uint16_t lane[32];

  constexpr Quarters() : lane() {
    for (uint16_t i = 0; i < 32; ++i) lane[i] = i / 4;
  }
};
constexpr Quarters kQuarters;

struct Avx512Elements : VnniIsa {
  // In 16 bits: the quotient of u = x w + 128 m by the mean m is (2 u M >> 16) >> L with
  // M = ceil(2^(15 + L) / m) and 2^(L - 1) < m <= 2^L, exact for every m and u there can be.
  static void norm(const uint32_t* x, const int8_t* w, int n, int8_t* y) {
    const __m512i mean = means(x, n), m = _mm512_slli_epi16(mean, 7);
    const __m512i by = of_mean(kMeans.reciprocal, mean), bits = of_mean(kMeans.shift, mean);
    const int8_t* bytes = reinterpret_cast<const int8_t*>(x);
    // A lane's constants four times, once per byte of its word.
    __m512i lane = _mm512_load_si512(kQuarters.lane);
    for (int q = 0; q < 4 * kLanes; q += 32, lane = _mm512_add_epi16(lane, _mm512_set1_epi16(8))) {
      const __m512i h = _mm512_permutexvar_epi16(lane, m), g = _mm512_permutexvar_epi16(lane, by);
      const __m512i s = _mm512_permutexvar_epi16(lane, bits);
      const __m512i top = _mm512_sub_epi16(h, _mm512_set1_epi16(1));
      const __m512i bottom = _mm512_sub_epi16(_mm512_setzero_si512(), h);
      for (int at = q; at < words_of(n) * 4 * kLanes; at += 4 * kLanes) {
        __m512i v = _mm512_mullo_epi16(wide16(bytes + at), wide16(w + at));
        v = _mm512_add_epi16(_mm512_max_epi16(_mm512_min_epi16(v, top), bottom), h);
        v = _mm512_srlv_epi16(_mm512_mulhi_epu16(_mm512_add_epi16(v, v), g), s);
        v = _mm512_max_epi16(_mm512_sub_epi16(v, _mm512_set1_epi16(128)), _mm512_set1_epi16(-127));
        _mm256_store_si256(reinterpret_cast<__m256i*>(y + at), _mm512_cvtepi16_epi8(v));
      }
    }
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

  static __m512i wide16(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
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

  // EXP2[u] = mantissa[u % 16] >> (15 - u / 16): the table of sixteen fits one register.
  // With u = logit + 128 = byte ^ 128: u % 16 is the byte's low nibble, which the permutation alone
  // looks at, and 15 - u / 16 is its high nibble ^ 7.
  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    const __m512i mantissa = _mm512_loadu_si512(plan.exp2_mantissa);
    for (int half = 0; half < kLanes; half += 16) {
      __m512i total = _mm512_load_si512(sum + half);
      for (int o = 0; o < count; o += 4) {
        const __m512i low = _mm512_load_si512(words[o / 4] + half);
        const __m512i high = high_nibbles(low, 7);
        for (int j = 0; j < 4 && o + j < count; ++j) {
          const __m512i value = _mm512_permutexvar_epi32(byte_first(low, j), mantissa);
          total = _mm512_add_epi32(total, _mm512_srlv_epi32(value, only_byte(high, j)));
        }
      }
      _mm512_store_si512(sum + half, total);
    }
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

  // int16 to bytes, clipped to +-127.
  static void store16(int8_t* y, __m512i v) {
    v = _mm512_max_epi16(v, _mm512_set1_epi16(-127));
    _mm256_store_si256(reinterpret_cast<__m256i*>(y), _mm512_cvtsepi16_epi8(v));
  }

  static void add_bias(const int8_t* a, const int8_t* b, const int8_t* w, int count, int8_t* y) {
    for (int i = 0; i < count; i += 32)
      store16(y + i,
              _mm512_add_epi16(_mm512_add_epi16(wide16(a + i), wide16(b + i)), wide16(w + i)));
  }

  static void forget(const int8_t* f, const int8_t* s, int count, int8_t* y) {
    for (int i = 0; i < count; i += 32) {
      __m512i gate = _mm512_add_epi16(wide16(f + i), _mm512_set1_epi16(127));
      store16(y + i, _mm512_srai_epi16(_mm512_mullo_epi16(gate, wide16(s + i)), 8));
    }
  }

  // (gate d) >> 8 with d = h - s of nine bits, as the high half of (128 gate) (2 d).
  static void mix(const int8_t* f, const int8_t* h, const int8_t* s, int count, int8_t* y) {
    for (int i = 0; i < count; i += 32) {
      __m512i gate = _mm512_add_epi16(wide16(f + i), _mm512_set1_epi16(127)), old = wide16(s + i);
      __m512i d = _mm512_sub_epi16(wide16(h + i), old);
      __m512i part = _mm512_mulhi_epi16(_mm512_slli_epi16(gate, 7), _mm512_add_epi16(d, d));
      store16(y + i, _mm512_add_epi16(old, part));
    }
  }
};
