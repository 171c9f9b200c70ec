// The caller has x, int8 [members][T][N].

namespace egg {

// Four features of a pair.
template <int N>
__device__ inline void output(int8_t* to, uint2 x, uint32_t quad, uint32_t member, uint32_t T,
                              uint32_t members) {
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t o = 4 * quad + e;
    if (o >= N) return;
    if (member < members) to[member * T * N + o] = int8_t(byte_of(x.x, e));
    if (member + 1 < members) to[(member + 1) * T * N + o] = int8_t(byte_of(x.y, e));
  }
}

template <int N>
__device__ inline void output(int8_t* to, uint4 x, Octet octet, uint32_t member, uint32_t T,
                              uint32_t members) {
  output<N>(to, make_uint2(x.x, x.z), 2 * octet.index, member, T, members);
  output<N>(to, make_uint2(x.y, x.w), 2 * octet.index + 1, member, T, members);
}

}  // namespace egg
