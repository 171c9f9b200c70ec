// x = the row shown, int8 [N], where -128 counts as -127. 16 lanes for a member.

namespace egg {

template <int N>
__device__ inline void input(uint32_t* x, const int8_t* shown, uint32_t T, uint32_t members,
                             Row row) {
  const int8_t* mine = shown + min(row.member, members - 1) * T * N;
  // Whole octets, as these are passed on.
  for (uint32_t quad = row.lane; quad < (N + 7) / 8 * 2; quad += 16) {
    uint32_t v = 0;
    for (uint32_t e = 0; e < 4; ++e)
      if (4 * quad + e < N) v |= as_byte(max(int(mine[4 * quad + e]), -127), e);
    x[word(quad, row.member)] = v;
  }
}

}  // namespace egg
