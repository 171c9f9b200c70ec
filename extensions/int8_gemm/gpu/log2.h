// LOG2 of a score, in units of 2^-SCORE_BITS bit.

namespace egg {

// floor(S log2(n / S)) of n >= 1, S = 2^SCORE_BITS: the leading one, then as many units as there
// are breakpoints in LOG2 that n, shifted to begin with bit 63, has reached.
EGG_FUNCTION int log2_score(uint64_t n) {
  const int bit = 63 - leading_zeros(n);
  const uint64_t scaled = n << uint32_t(63 - bit);
  int units = 0;
  for (int step = 1 << (SCORE_BITS - 1); step > 0; step /= 2)
    if (scaled >= LOG2[units + step - 1]) units += step;
  return (bit - SCORE_BITS) * (1 << SCORE_BITS) + units;
}

}  // namespace egg
