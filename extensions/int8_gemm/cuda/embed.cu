// x = clip(E[t] + noise). 16 lanes for a member.

namespace egg {

template <int D>
__device__ inline void embed(uint32_t* x, const int8_t* E, Noise noise, uint32_t leaf,
                             const int32_t* tokens, uint32_t T, uint32_t members, Row row) {
  const uint32_t token = tokens[min(row.member, members - 1) * T];
  RowNoise mine;
  if (PERTURBED) mine = row_noise<D>(noise, leaf, row.member, token);
  // Whole octets, as these are passed on.
  for (uint32_t quad = row.lane; quad < (D + 7) / 8 * 2; quad += 16) {
    const uint32_t plain = elements<D>(E + token * D, quad);
    Four n = {0, 0, 0, 0};
    if (PERTURBED) n = on_row<D>(mine, quad, row.odd);
    int v[4];
    for (int e = 0; e < 4; ++e) v[e] = byte_plus(plain, e, n.of[e]);
    x[word(quad, row.member)] = clipped(v);
  }
}

}  // namespace egg
