// Errors of an output's row from its targets, and what the row lost; docs/estimators.md has the
// arithmetic, and eggroll/spec/losses.py is its definition. Value: int8 or int32; mantissa:
// floor(2^(31 + f/16)) of f in 0..15.

namespace egg {

// 2^(4 + at/16) of at in 0..255, and 2^(31 + d/16) of d up to 0, without what is below one.
EGG_FUNCTION uint32_t share_power(const EGG_DEVICE uint32_t* mantissa, int at) {
  return mantissa[at & 15] >> uint32_t(27 - (at >> 4));
}
EGG_FUNCTION uint64_t exact_power(const EGG_DEVICE uint32_t* mantissa, int d) {
  return d < -496 ? 0 : mantissa[d & 15] >> uint32_t(-(d >> 4));
}

// log2(n) in 2^-16, by squaring 32 bits.
EGG_FUNCTION uint64_t log2_fixed(uint64_t n) {
  const int whole = 63 - leading_zeros(n);
  uint64_t x = whole > 31 ? n >> uint32_t(whole - 31) : n << uint32_t(31 - whole), fraction = 0;
  for (int i = 0; i < 16; ++i) {
    x = x * x >> 31;
    fraction = 2 * fraction + (x >> 32);
    x >>= uint32_t(x >> 32);
  }
  return (uint64_t(whole) << 16) + fraction;
}

// 127 times a power's share of a total, rounded by a random word.
struct Shares {
  uint32_t shift, ratio;
};
EGG_FUNCTION Shares shares_of(uint64_t total) {
  const int bits = 64 - leading_zeros(total);
  Shares of;
  of.shift = uint32_t(bits > 24 ? bits - 24 : 0);
  of.ratio = uint32_t((uint64_t(127) << 24) / (total >> of.shift));
  return of;
}
EGG_FUNCTION int share_of(uint32_t power, Shares of, uint32_t word) {
  return int(((((power >> of.shift) * of.ratio) >> 8) + (mixed(word) >> 16)) >> 16);
}

// A value in 1/16.
EGG_FUNCTION int value_of(Value v, int by) {
  const int quotient = int(v) / by;
  return quotient - (quotient * by > int(v));
}

EGG_FUNCTION uint64_t rate_softmax(EGG_DEVICE int8_t* errors, const EGG_DEVICE Value* values, int n,
                                   int by, const EGG_DEVICE int32_t* target,
                                   const EGG_DEVICE uint32_t* mantissa, uint32_t word) {
  int top = value_of(values[0], by);
  for (int k = 1; k < n; ++k) top = max(top, value_of(values[k], by));
  if (target[0] < 0 || target[0] >= n) {  // none, or one that nothing may be read for
    for (int k = 0; k < n; ++k) errors[k] = 0;
    return 0;
  }
  // int8 logits as the score reads them; of wider ones the largest is put at the upper limit.
  const int first = WIDE ? 255 - top : 128;
  uint64_t total = 0, exact = 0;
  for (int k = 0; k < n; ++k) {
    const int u = value_of(values[k], by);
    total += share_power(mantissa, max(u + first, 0));
    exact += exact_power(mantissa, u - top);
  }
  const Shares shares = shares_of(total);
  for (int k = 0; k < n; ++k) {
    const uint32_t power = share_power(mantissa, max(value_of(values[k], by) + first, 0));
    errors[k] = int8_t(127 * int(k == target[0]) - share_of(power, shares, word + uint32_t(k)));
  }
  const uint64_t missed = uint64_t(top - value_of(values[target[0]], by));
  return log2_fixed(exact) - (uint64_t(31) << 16) + missed * 4096;
}

EGG_FUNCTION uint64_t rate_sigmoid(EGG_DEVICE int8_t* errors, const EGG_DEVICE Value* values, int n,
                                   int by, const EGG_DEVICE int32_t* target,
                                   const EGG_DEVICE uint32_t* mantissa, uint32_t word) {
  uint64_t lost = 0;
  for (int k = 0; k < n; ++k) {
    errors[k] = 0;
    if (target[k] < 0) continue;
    const int u = max(-127, min(value_of(values[k], by), 127)), size = u < 0 ? -u : u;
    const uint32_t power = share_power(mantissa, u + 128);
    const Shares shares = shares_of(uint64_t(power) + share_power(mantissa, 128));
    errors[k] = int8_t(target[k] - share_of(power, shares, word + uint32_t(k)));
    const uint64_t missed = uint64_t((u < 0 ? target[k] : 127 - target[k]) * size);
    lost += log2_fixed((uint64_t(1) << 31) + exact_power(mantissa, -size)) - (uint64_t(31) << 16);
    lost += missed * 4096 / 127;
  }
  return lost;
}

EGG_FUNCTION uint64_t rate_squared(EGG_DEVICE int8_t* errors, const EGG_DEVICE Value* values, int n,
                                   int by, const EGG_DEVICE int32_t* target,
                                   const EGG_DEVICE uint32_t* mantissa, uint32_t word) {
  uint64_t lost = 0;
  for (int k = 0; k < n; ++k) {
    const int64_t off = int64_t(target[k]) - value_of(values[k], by);
    errors[k] = int8_t(off < -127 ? -127 : off > 127 ? 127 : off);
    lost += uint64_t(off * off);
  }
  return lost;
}

}  // namespace egg
