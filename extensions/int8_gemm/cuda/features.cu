// y = clip((sum of E[f] over the indices f of a list + noise) >> RIGHT), list after list. 16 lanes
// for a member.

namespace egg {

// Adds features 4 quad .. 4 quad + 3 of y: of one list where a row is made of whole words. Indices
// that are -1 name nothing.
template <int D, int LISTS, int ACTIVE>
__device__ inline void add_rows(int (&sum)[4], const int8_t* E, const int32_t* mine,
                                uint32_t quad) {
  if (D % 4 == 0) {
    const int32_t* list = mine + 4 * quad / D * ACTIVE;
    for (uint32_t i = 0; i < ACTIVE; ++i) {
      const int f = list[i];
      if (f < 0) continue;
      const uint32_t four = elements<D>(E + uint32_t(f) * D, quad % (D / 4 > 0 ? D / 4 : 1));
      for (int e = 0; e < 4; ++e) sum[e] += byte_of(four, e);
    }
    return;
  }
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t o = 4 * quad + e;
    if (o >= LISTS * D) continue;
    const int32_t* list = mine + o / D * ACTIVE;
    for (uint32_t i = 0; i < ACTIVE; ++i)
      if (list[i] >= 0) sum[e] += E[uint32_t(list[i]) * D + o % D];
  }
}

// The sum of one column of A over a list, lanes along the list: the factor of B.
template <int ACTIVE>
__device__ inline int factor_of(const int8_t* A, const int32_t* list, uint32_t q, Row row) {
  int sum = 0;
  for (uint32_t i = row.lane; i < ACTIVE; i += 16)
    if (list[i] >= 0) sum += A[uint32_t(list[i]) * RANK + q];
  sum = over_row(sum);
  return row.odd ? -sum : sum;
}

// NODE_SHIFT: of noise on y, or -1 where the noise is E's. stride: indices of a member.
template <int D, int LISTS, int ACTIVE, int RIGHT, int NODE_SHIFT>
__device__ inline void features(uint32_t* y, const int8_t* E, Noise noise, uint32_t leaf,
                                const int32_t* indices, uint32_t stride, uint32_t members,
                                Row row) {
  constexpr bool ROWS = PERTURBED && NODE_SHIFT < 0, NODES = NODE_SHIFT >= 0 && NODE_SHIFT < 32;
  constexpr int COUNT = ROWS ? RANK : 1;
  const int32_t* mine = indices + min(row.member, members - 1) * stride;
  const int8_t* B = PERTURBED ? slice(noise, leaf, row.member) : E;
  const bool minus = NODES && row.odd != turned(noise, leaf, row.member);
  int of[LISTS][COUNT];
  for (uint32_t list = 0; list < LISTS; ++list)
    for (uint32_t q = 0; ROWS && q < COUNT; ++q)
      of[list][q] = factor_of<ACTIVE>(B + RANK * D, mine + list * ACTIVE, q, row);
  // Whole octets, as these are passed on.
  for (uint32_t quad = row.lane; quad < (LISTS * D + 7) / 8 * 2; quad += 16) {
    int sum[4] = {0, 0, 0, 0};
    if (4 * quad < LISTS * D) add_rows<D, LISTS, ACTIVE>(sum, E, mine, quad);
    uint32_t v = 0;
    for (uint32_t e = 0; e < 4 && 4 * quad + e < LISTS * D; ++e) {
      const uint32_t o = 4 * quad + e, list = o / D, k = o % D;
      uint32_t n = 0;
      for (uint32_t q = 0; ROWS && q < COUNT; ++q) n += times(of[list][q], B[k * RANK + q]);
      int clipped = clip(int(uint32_t(sum[e]) + uint32_t(int(n) >> SHIFT)) >> RIGHT);
      const int node = NODES ? rounded(B[o], NODE_SHIFT) : 0;
      clipped = clip(clipped + (minus ? -node : node));
      v |= as_byte(clipped, e);
    }
    y[word(quad, row.member)] = v;
  }
}

}  // namespace egg
