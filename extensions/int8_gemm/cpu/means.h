// Division by the means of norms in 16 bits. Included inside the namespaces of units that have it.
#pragma once

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
