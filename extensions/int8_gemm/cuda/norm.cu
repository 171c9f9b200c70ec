// y_i = clip((x_i w'_i) // max(1, sum|x| // D)). 16 lanes for a member.

namespace egg {

// clip(floor(v / mean)) for mean in 1..127, by a reciprocal in 22 bits: the numerator is below
// 256 mean <= 32512 and the reciprocal too large by less than mean / 2^22, so the quotient is
// exact.
__device__ inline int over_mean(int v, int mean, uint32_t reciprocal) {
  const int numerator = max(-128 * mean, min(v, 128 * mean - 1)) + 128 * mean;
  return max(int((uint32_t(numerator) * reciprocal) >> 22), 1) - 128;
}

__device__ inline uint32_t reciprocal_of(int mean) {
  return ((1u << 22) + uint32_t(mean) - 1) / uint32_t(mean);
}

template <int D>
__device__ inline void norm(uint32_t* y, const uint32_t* x, const int8_t* w, Noise noise,
                            uint32_t leaf, Row row) {
  int sum = 0;
  for (uint32_t quad = row.lane; quad < (D + 3) / 4; quad += 16) {
    const uint32_t v = x[word(quad, row.member)];
    for (uint32_t e = 0; e < 4; ++e)
      if (4 * quad + e < D) sum += abs(byte_of(v, e));
  }
  const int mean = max(over_row(sum) / D, 1);
  const uint32_t reciprocal = reciprocal_of(mean);
  // Whole octets, as these are passed on.
  for (uint32_t quad = row.lane; quad < (D + 7) / 8 * 2; quad += 16) {
    const uint32_t v = x[word(quad, row.member)];
    const uint32_t scale = perturbed<D>(w, noise, leaf, row.member, quad, row.odd);
    uint32_t out = 0;
    for (int e = 0; e < 4; ++e)
      out |= as_byte(over_mean(byte_of(v, e) * byte_of(scale, e), mean, reciprocal), e);
    y[word(quad, row.member)] = out;
  }
}

}  // namespace egg
