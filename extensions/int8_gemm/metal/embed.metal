// x = clip(E[t] + noise), noise = (A[t] B^T) >> SHIFT. One simdgroup per pair.

namespace egg {

template <int D, typename Register>
inline void embed(Register x, const device int8_t* E, Noise noise, uint leaf,
                  const device int32_t* tokens, uint T, uint members, uint member, Lane lane) {
  const uint even = tokens[min(member, members - 1) * T];
  const uint odd = tokens[min(member + 1, members - 1) * T];
  const device int8_t* B = noise.table;
  if (PERTURBED) B = slice(noise, leaf, member);
  const device int8_t* A = B + RANK * D;
  for (uint k = lane.index; k < D; k += 32) {
    int2 v;
    v.x = E[even * D + k];
    v.y = E[odd * D + k];
    if (PERTURBED) {
      uint plus = 0, minus = 0;
      for (uint q = 0; q < RANK; ++q) {
        plus += times(A[even * RANK + q], B[k * RANK + q]);
        minus -= times(A[odd * RANK + q], B[k * RANK + q]);
      }
      v.x += int(plus) >> SHIFT;
      v.y += int(minus) >> SHIFT;
    }
    put(x, k, member, both(clip(v.x), clip(v.y)));
  }
}

}  // namespace egg
