// x = clip(E[t] + noise), noise = (A[t] B^T) >> SHIFT. 16 lanes for a member.

namespace egg {

template <int D>
__device__ inline void embed(uint32_t* x, const int8_t* E, Noise noise, uint32_t leaf,
                             const int32_t* tokens, uint32_t T, uint32_t members, Row row) {
  const uint32_t token = tokens[min(row.member, members - 1) * T];
  const int8_t* B = noise.table;
  if (PERTURBED) B = slice(noise, leaf, row.member);
  const int8_t* A = B + RANK * D + token * RANK;
  // Whole octets, as these are passed on.
  for (uint32_t quad = row.lane; quad < (D + 7) / 8 * 2; quad += 16) {
    const uint32_t plain = elements<D>(E + token * D, quad);
    uint32_t sums[4] = {0, 0, 0, 0}, v = 0;
    for (uint32_t q = 0; q < RANK; ++q) {
      const uint32_t b = factor<D>(B, quad, q);
      for (int e = 0; e < 4; ++e) sums[e] += times(A[q], byte_of(b, e));
    }
    for (int e = 0; e < 4; ++e) {
      const int noisy = PERTURBED ? int(row.odd ? 0u - sums[e] : sums[e]) >> SHIFT : 0;
      v |= as_byte(clip(byte_of(plain, e) + noisy), e);
    }
    x[word(quad, row.member)] = v;
  }
}

}  // namespace egg
