// Errors of outputs from targets, a row at a time, and what a row lost: docs/estimators.md has the
// arithmetic, and eggroll/spec/losses.py is its definition.

// log2(n) in 2^-16, by squaring 32 bits.
static inline uint64_t log2_fixed(uint64_t n) {
  const int whole = 63 - __builtin_clzll(n);
  uint64_t x = whole > 31 ? n >> (whole - 31) : n << (31 - whole), fraction = 0;
  for (int i = 0; i < 16; ++i) {
    x = x * x >> 31;
    fraction = 2 * fraction + (x >> 32);
    x >>= x >> 32;
  }
  return (static_cast<uint64_t>(whole) << 16) + fraction;
}

static inline int32_t floor_divided(int32_t a, int32_t by) {
  const int32_t q = a / by;
  return q - (q * by > a);
}

// floor(2^(4 + at/16)), at in 0..255; mantissa: Plan::exact_mantissa.
static inline uint32_t power_of(const uint32_t* mantissa, int32_t at) {
  return mantissa[at & 15] >> (27 - (at >> 4));
}

// 2^(31 + d/16) of d up to 0, without what is below one.
static inline uint64_t fine_power_of(const uint32_t* mantissa, int32_t d) {
  return d < -496 ? 0 : mantissa[d & 15] >> -(d >> 4);
}

// 127 times a power's share of `total`, and that rounded by chance.
struct Shares {
  int shift;
  uint32_t ratio;

  explicit Shares(uint64_t total) {
    const int bits = 64 - __builtin_clzll(total);
    shift = bits > 24 ? bits - 24 : 0;
    ratio = static_cast<uint32_t>((uint64_t{127} << 24) / (total >> shift));
  }
  // In 2^-16.
  uint32_t of(uint32_t power) const { return (power >> shift) * ratio >> 8; }
  static int32_t rounded(uint32_t share, uint32_t word) {
    return static_cast<int32_t>(share + (mixed(word) >> 16)) >> 16;
  }
};

static void sigmoids(const Plan& plan, Sigmoids& to) {
  const uint32_t* mantissa = plan.exact_mantissa;
  for (int32_t v = -127; v <= 127; ++v) {
    const uint32_t p = power_of(mantissa, v + 128);
    to.share[v + 127] = Shares(p + power_of(mantissa, 128)).of(p);
  }
  for (int32_t size = 0; size < 128; ++size)
    to.lost[size] = static_cast<uint32_t>(
        log2_fixed((uint64_t{1} << 31) + fine_power_of(mantissa, -size)) - (31 << 16));
}

// A row of an output of n values: what it is given, and what it makes.
struct RatedRow {
  const uint32_t* mantissa;  // Plan::exact_mantissa
  int n;
  bool wide;
  int32_t* u;             // values in 1/16
  uint32_t* power;        // [n], for its own use
  const int32_t* target;  // of softmax one, else one for every value
  uint32_t word;          // plus k is that of value k
  int8_t* errors;
  const Sigmoids* sigmoids;

  uint64_t softmax() const {
    int32_t top = u[0];
    for (int k = 1; k < n; ++k) top = u[k] > top ? u[k] : top;
    if (*target < 0) {
      __builtin_memset(errors, 0, static_cast<size_t>(n));
      return 0;
    }
    uint64_t total = 0, exact = 0;
    for (int k = 0; k < n; ++k) {
      const int32_t below = u[k] - top + 255;
      power[k] = power_of(mantissa, !wide ? u[k] + 128 : below < 0 ? 0 : below);
      total += power[k], exact += fine_power_of(mantissa, u[k] - top);
    }
    const Shares shares(total);
    for (int k = 0; k < n; ++k) {
      const int32_t hit = k == *target ? 127 : 0;
      const int32_t share = Shares::rounded(shares.of(power[k]), word + static_cast<uint32_t>(k));
      errors[k] = static_cast<int8_t>(hit - share);
    }
    return log2_fixed(exact) - (31 << 16) + static_cast<uint64_t>(top - u[*target]) * 4096;
  }

  uint64_t sigmoid() const {
    uint64_t lost = 0;
    for (int k = 0; k < n; ++k) {
      errors[k] = 0;
      if (target[k] < 0) continue;
      const int32_t v = clamp(u[k], -127, 127), size = v < 0 ? -v : v;
      const uint32_t share = sigmoids->share[v + 127];
      errors[k] =
          static_cast<int8_t>(target[k] - Shares::rounded(share, word + static_cast<uint32_t>(k)));
      const int32_t missed = (v < 0 ? target[k] : 127 - target[k]) * size;
      lost += sigmoids->lost[size];
      lost += static_cast<uint64_t>(missed) * 4096 / 127;
    }
    return lost;
  }

  uint64_t squared() const {
    uint64_t lost = 0;
    for (int k = 0; k < n; ++k) {
      const int64_t off = int64_t{target[k]} - u[k];
      errors[k] = static_cast<int8_t>(off < -127 ? -127 : off > 127 ? 127 : off);
      lost += static_cast<uint64_t>(off * off);
    }
    return lost;
  }

  uint64_t rate(Loss loss) const {
    if (loss == Loss::softmax) return softmax();
    if (loss == Loss::sigmoid) return sigmoid();
    if (loss == Loss::squared) return squared();
    __builtin_memset(errors, 0, static_cast<size_t>(n));
    return 0;
  }
};
