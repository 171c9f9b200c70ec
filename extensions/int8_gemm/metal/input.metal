// x = the row shown, int8 [N], where -128 counts as -127. One simdgroup per pair.

namespace egg {

template <int N, typename Register>
EGG_FUNCTION void input(Register x, const device int8_t* shown, uint T, uint members, uint member,
                        Lane lane) {
  const device int8_t* even = shown + min(member, members - 1) * T * N;
  const device int8_t* odd = shown + min(member + 1, members - 1) * T * N;
  for (uint k = lane.index; k < N; k += 32)
    put(x, k, member, both(max(int(even[k]), -127), max(int(odd[k]), -127)));
}

}  // namespace egg
