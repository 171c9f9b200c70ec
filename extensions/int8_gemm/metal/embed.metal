// x = clip(E[t] + noise). One simdgroup per pair.

namespace egg {

template <int D, typename Register>
EGG_FUNCTION void embed(Register x, const device int8_t* E, Noise noise, uint leaf,
                        const device int32_t* tokens, uint T, uint members, uint member,
                        Lane lane) {
  const uint even = tokens[min(member, members - 1) * T];
  const uint odd = tokens[min(member + 1, members - 1) * T];
  RowNoise mine;
  if (PERTURBED) mine = row_noise<D>(noise, leaf, member, even, odd);
  for (uint k = lane.index; k < D; k += 32) {
    int2 v;
    v.x = E[even * D + k];
    v.y = E[odd * D + k];
    if (PERTURBED) {
      const int2 n = on_row(mine, k);
      v.x += n.x;
      v.y += n.y;
    }
    put(x, k, member, both(clip(v.x), clip(v.y)));
  }
}

}  // namespace egg
