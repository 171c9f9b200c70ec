// Lane arithmetic that every unit shares.

static inline int words_of(int n) { return (n + 3) / 4; }
static inline int tiles_of(int n) { return (n + kTile - 1) / kTile; }
// All ones where the last of n bytes' words has some of them.
static inline uint32_t last_word(int n) { return n % 4 ? ~0u >> (32 - 8 * (n % 4)) : ~0u; }
// What a norm divides by: the mean of n sizes that add up to `sum`, 1 at least.
static inline int mean_of(int32_t sum, int n) { return sum < n ? 1 : sum / n; }
static inline int32_t byte_at(uint32_t word, int j) {
  return static_cast<int32_t>(word << (24 - 8 * j)) >> 24;
}
static inline int32_t clamp(int32_t v, int32_t lo, int32_t hi) {
  v = v < lo ? lo : v;
  return v > hi ? hi : v;
}
static inline int32_t wrapping_sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
static inline int32_t clip(int32_t v) { return clamp(v, -127, 127); }
static inline int32_t rounded(int32_t v, int shift) {
  return (v + (shift ? 1 << (shift - 1) : 0)) >> shift;
}
// Scrambles a word, a bijection.
static inline uint32_t mixed(uint32_t v) {
  v = (v ^ (v >> 16)) * 0x7FEB352Du;
  v = (v ^ (v >> 15)) * 0x846CA68Bu;
  return v ^ (v >> 16);
}
// Rows of a leaf that a list names.
struct ActiveRows {
  const int32_t* row;
  int count;
};

// Every cache line of so many bytes, of which there is one at least.
static inline void prefetch(const int8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
  __builtin_prefetch(p + bytes - 1);
  asm volatile("");  // gcc drops calls of functions that do nothing but this
}
static inline int isqrt(int n) {
  int r = 0;
  while ((r + 1) * (r + 1) <= n) ++r;
  return r;
}

// Floor division by d <= 181, result clipped to +-127: with the numerator clamped to
// [-128 d, 128 d) and made non-negative, multiply-high by ceil(2^23 / d) is exact.
struct Divisor {
  int32_t half;         // 128 d
  uint32_t reciprocal;  // ceil(2^23 / d)
};

static inline Divisor divisor(int d) {
  return {128 * d, ((1u << 23) + static_cast<uint32_t>(d) - 1) / static_cast<uint32_t>(d)};
}

static inline int32_t divide(int32_t v, int32_t half, uint32_t reciprocal) {
  uint32_t u = static_cast<uint32_t>(clamp(v, -half, half - 1) + half);
  int32_t q = static_cast<int32_t>((u * reciprocal) >> 23) - 128;
  return q < -127 ? -127 : q;
}

// Division of a linear operation: by 16 floor(sqrt K), as a shift where it is a power of two.
struct Scale {
  bool power;
  int shift;
  Divisor divisor;  // by floor(sqrt K), after a shift by 4
  // The same in 16 bits, where it is no power of two: u / d = (u factor >> 16) >> bits for u < 256
  // d.
  int factor, bits;
  // Whether sums that are clipped to 16 bits first give the same, and then floor(v / root), with
  // v = sum >> 4, as the high half of (2 v + 1) odd_factor.
  bool early;
  int odd_factor;
  // Whether even noise may be added after the clip to 16 bits, and the largest x.B, of A in 16
  // bits, of which the other's high half is small enough: what is clipped stays beyond 127.
  bool grouped;
  int largest;
};

// ceil(2^(16 + bits) / d), 2^bits < d: of 16 bits.
static constexpr int factor_of(int d, int bits) { return ((1 << (16 + bits)) + d - 1) / d; }

// A quotient is exact while what the factor is too large by, times u, stays below 2^(16 + bits).
static constexpr bool exact_in_16_bits() {
  for (int d = 3, bits = 1; d * d <= kSize; ++d) {
    if (d > 2 << bits) ++bits;
    const int factor = factor_of(d, bits);
    if ((d & (d - 1)) &&
        (factor >= 1 << 16 || 256 * d > 1 << 16 ||
         (int64_t{factor} * d - (1 << (16 + bits))) * (256 * d - 1) >= int64_t{1} << (16 + bits)))
      return false;
  }
  return true;
}
static_assert(exact_in_16_bits());

// 2^16 / (2 d), rounded.
static constexpr int odd_factor_of(int d) { return ((1 << 16) + d) / (2 * d); }

// An odd numerator is never a multiple of 2 d, so the factor may be too large or too small.
static constexpr bool exact_for_odd() {
  for (int d = 3; d < 16; ++d)
    for (int v = -2048; v < 2048; ++v) {
      const int floor = (v + 2048 * d) / d - 2048;
      if ((d & (d - 1)) && ((2 * v + 1) * odd_factor_of(d)) >> 16 != floor) return false;
    }
  return true;
}
static_assert(exact_for_odd());

constexpr int kGroupedRoot = 11;  // 127 * 16 of it leave noise a third of what 16 bits hold

static inline Scale scale(int inputs) {
  int root = isqrt(inputs), bits = 31 - __builtin_clz(static_cast<unsigned>(root));
  bool power = (root & (root - 1)) == 0;
  return {power,
          4 + bits,
          divisor(root),
          power ? 0 : factor_of(root, bits),
          bits,
          root <= 16,
          odd_factor_of(root),
          root <= kGroupedRoot,
          root <= kGroupedRoot ? clamp(2 * (32767 - 127 * 16 * root), 0, 32767) : 32767};
}

// Where the words of tiles go, [2][32] each; after tile `last`, 2^n - 1, from the first place on
// again.
struct Places {
  using Words = uint32_t (*)[kLanes];
  Words first;
  int last = INT32_MAX;

  Words at(int tile) const { return first + (tile & last) * (kTile / 4); }
};

// By how much A is shifted in LowRank::pairs.
static inline int up_of(int shift) { return clamp(16 - shift, 0, 8); }

// Calls what has a template for each way to divide.
template <typename Work>
static inline __attribute__((always_inline)) void divided(const Scale& by, Work work) {
  if (by.early)
    by.power ? work(std::true_type{}, std::true_type{}) : work(std::false_type{}, std::true_type{});
  else
    by.power ? work(std::true_type{}, std::false_type{})
             : work(std::false_type{}, std::false_type{});
}

// The low-rank term of one tile: acc[o][m] += (sum_j xb[j][m] a[j][o][m % 16]) >> shift.
struct LowRank {
  int32_t (*xb)[kLanes];  // signed x.B, [rank]
  const int8_t* a;        // [rank] rows of `stride`, each [8 outputs][16 pairs]
  size_t stride;
  int rank;  // 0: no such term
  int shift;
  // Noise on the nodes: acc[o][m] += node[o][m], acc[o][m + 16] -= node[o][m], each lane's turned
  // by `minus`.
  const int32_t* node;    // [outputs][16 pairs], or null, as where `pairs` have it
  const uint32_t* minus;  // [32]: all ones turns the sign
  // Rank 1 in 16 bits, or null: the term is the high half of a product of words, two outputs of a
  // lane in each. At rank 0 noise on the nodes, the even output below the odd one.
  const uint32_t* pairs;  // [outputs/2][16 pairs]: A << up of two outputs, see up_of and place_of
  uint32_t* twice;        // [32]: x.B << 16 - shift - up, in both halves
  bool fits;              // whether there are such and `twice` fits 16 bits; else x.B is in xb
  const void* b;          // of rank 1, where the first tile is to find x.B; else null
  int32_t* projection;    // [16]: where x.B of the plus lanes goes too, or null

  // Of row j, as it was summed. The minus lanes' is negated, where the sign of A would be.
  void found(int j) const {
    if (projection) __builtin_memcpy(projection, xb[j], kPairs * sizeof(int32_t));
    for (int m = kPairs; m < kLanes; ++m)
      xb[j][m] = static_cast<int32_t>(0u - static_cast<uint32_t>(xb[j][m]));
  }
};

// Division by the means of norms in 16 bits.
//
// floor(v / m) of a mean m, 1..127, as (2 v + 1) factor >> 16 + shift: an odd numerator is never a
// multiple of 2 m, so the factor may be rounded.
struct Means {
  alignas(64) uint16_t factor[128], shift[128];

  constexpr Means() : factor(), shift() {
    for (uint32_t m = 1; m < 128; ++m) {
      while ((2u << shift[m]) <= m) ++shift[m];
      const uint32_t rounded = ((2u << (15 + shift[m])) / m + 1) / 2;
      factor[m] = static_cast<uint16_t>(rounded < 32768 ? rounded : 32767);
    }
  }

  // Exact to +-128, and beyond that the quotient is clipped.
  constexpr bool exact() const {
    for (int64_t m = 1; m < 128; ++m) {
      const int64_t one = int64_t{1} << (16 + shift[m]), off = 2 * m * factor[m] - one;
      if ((off < 0 ? -off : off) * (256 * m + 1) >= one) return false;
    }
    return true;
  }
};
constexpr Means kMeans;
static_assert(kMeans.exact());
