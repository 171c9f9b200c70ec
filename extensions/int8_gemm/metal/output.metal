// The caller has x, int8 [members][T][N].

namespace egg {

// Element o of a pair.
template <int N>
EGG_FUNCTION void output(device int8_t* to, char2 x, uint o, uint member, uint T, uint members) {
  if (o >= N) return;
  if (member < members) to[member * T * N + o] = x.x;
  if (member + 1 < members) to[(member + 1) * T * N + o] = x.y;
}

}  // namespace egg
