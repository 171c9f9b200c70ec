// What follows the sums of a product on x86: noise, division, clip, four outputs to a word.
// Included inside each unit's namespace, after lanes.h.
//
// One template for vectors of 8 (AVX2) and 16 lanes (AVX-512): packs and shuffles work within 128
// bits in both, so that what is tested at one width is what runs at the other.

struct V256 {
  static constexpr int kWidth = 8;  // lanes
  __m256i v;

  static V256 load(const int32_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p))};
  }
  static V256 loadu(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  static V256 widened(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
  }
  void store(uint32_t* p) const { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  static V256 all32(int32_t x) { return {_mm256_set1_epi32(x)}; }
  static V256 all16(int x) { return {_mm256_set1_epi16(static_cast<int16_t>(x))}; }
  static V256 all8(int x) { return {_mm256_set1_epi8(static_cast<int8_t>(x))}; }
  V256 add32(V256 b) const { return {_mm256_add_epi32(v, b.v)}; }
  V256 sub32(V256 b) const { return {_mm256_sub_epi32(v, b.v)}; }
  V256 mul32(V256 b) const { return {_mm256_mullo_epi32(v, b.v)}; }
  V256 sra32(int by) const { return {_mm256_sra_epi32(v, _mm_cvtsi32_si128(by))}; }
  V256 flipped(V256 b) const { return {_mm256_xor_si256(v, b.v)}; }
  V256 packs32(V256 b) const { return {_mm256_packs_epi32(v, b.v)}; }
  V256 packus32(V256 b) const { return {_mm256_packus_epi32(v, b.v)}; }
  V256 packs16(V256 b) const { return {_mm256_packs_epi16(v, b.v)}; }
  V256 min_u16(V256 b) const { return {_mm256_min_epu16(v, b.v)}; }
  V256 mulhi_u16(V256 b) const { return {_mm256_mulhi_epu16(v, b.v)}; }
  V256 srl16(int by) const { return {_mm256_srl_epi16(v, _mm_cvtsi32_si128(by))}; }
  V256 sub16(V256 b) const { return {_mm256_sub_epi16(v, b.v)}; }
  V256 max8(V256 b) const { return {_mm256_max_epi8(v, b.v)}; }
  V256 turned() const {  // bytes 4 j + i of 128 bits to 4 i + j
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order))};
  }
};

template <typename V>
struct X86Epilogue {
  // Adds the noise of four outputs from o on to lanes m .. m + V::kWidth - 1: of rank 1, of any
  // rank, on the nodes. Apart, so that a caller's accumulators stay in registers.
  static inline __attribute__((always_inline)) void perturb_once(V* v, const LowRank& noise, int o,
                                                                 int m) {
    const int8_t* a = noise.a + o * kPairs + m % kPairs;
    const V xb = V::load(noise.xb[0] + m);
    for (int i = 0; i < 4; ++i)
      v[i] = v[i].add32(xb.mul32(V::widened(a + i * kPairs)).sra32(noise.shift));
  }

  static inline __attribute__((always_inline)) void perturb(V* v, const LowRank& noise, int o,
                                                            int m) {
    const int8_t* a = noise.a + o * kPairs + m % kPairs;
    for (int i = 0; i < 4; ++i) {
      V sum = V::all32(0);
      for (int j = 0; j < noise.rank; ++j) {
        const V wide = V::widened(a + static_cast<size_t>(j) * noise.stride + i * kPairs);
        sum = sum.add32(V::load(noise.xb[j] + m).mul32(wide));
      }
      v[i] = v[i].add32(sum.sra32(noise.shift));
    }
  }

  static inline __attribute__((always_inline)) void perturb_nodes(V* v, const LowRank& noise, int o,
                                                                  int m) {
    const V minus = V::loadu(noise.minus + m);
    for (int i = 0; i < 4; ++i) {
      V n = V::load(noise.node + (o + i) * kPairs + m % kPairs);
      n = n.flipped(minus).sub32(minus);
      v[i] = m < kPairs ? v[i].add32(n) : v[i].sub32(n);
    }
  }

  // Floor division and clip to +-127; four outputs' int32 to the bytes of a word.
  template <bool power>
  static inline __attribute__((always_inline)) V word(const V* v, const Scale& by) {
    V low, high;
    if (power) {
      low = v[0].sra32(by.shift).packs32(v[1].sra32(by.shift));
      high = v[2].sra32(by.shift).packs32(v[3].sra32(by.shift));
    } else {
      low = quotients(v[0], v[1], by);
      high = quotients(v[2], v[3], by);
    }
    return low.packs16(high).max8(V::all8(-127)).turned();
  }

  // Of two vectors in 16 bits, see Scale::factor.
  static inline __attribute__((always_inline)) V quotients(V a, V b, const Scale& by) {
    const V half = V::all32(by.divisor.half);
    V u = a.sra32(4).add32(half).packus32(b.sra32(4).add32(half));
    u = u.min_u16(V::all16(2 * by.divisor.half - 1)).mulhi_u16(V::all16(by.factor));
    return u.srl16(by.bits).sub16(V::all16(128));
  }

  // A tile's sums to its words.
  static void finish(const int32_t (*acc)[kLanes], const LowRank& noise, const Scale& by,
                     uint32_t (*out)[kLanes]) {
    by.power ? finish<true>(acc, noise, by, out) : finish<false>(acc, noise, by, out);
  }
  template <bool power>
  static void finish(const int32_t (*acc)[kLanes], const LowRank& noise, const Scale& by,
                     uint32_t (*out)[kLanes]) {
    for (int w = 0; w < kTile / 4; ++w)
      for (int m = 0; m < kLanes; m += V::kWidth)
        piece<power>(acc + 4 * w, noise, 4 * w, m, by, out[w] + m);
  }

  // Four outputs from o on and V::kWidth lanes from m on; acc has their sums.
  template <bool power>
  static inline __attribute__((always_inline)) void piece(const int32_t (*acc)[kLanes],
                                                          const LowRank& noise, int o, int m,
                                                          const Scale& by, uint32_t* out) {
    V v[4];
    for (int i = 0; i < 4; ++i) v[i] = V::load(acc[i] + m);
    if (noise.rank == 1) perturb_once(v, noise, o, m);
    if (noise.rank > 1) perturb(v, noise, o, m);
    if (noise.node) perturb_nodes(v, noise, o, m);
    word<power>(v, by).store(out);
  }
};
