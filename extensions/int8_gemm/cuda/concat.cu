// y = a [A], then b [B].

namespace egg {

// Four features of a member; zeros past the end.
template <int A, int B>
__device__ inline uint32_t joined(const uint32_t* a, const uint32_t* b, uint32_t quad,
                                  uint32_t member) {
  if (4 * quad + 3 < A) return a[word(quad, member)];
  uint32_t v = 0;
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t o = 4 * quad + e, at = o < A ? o : o - A;
    if (o < A + B) v |= as_byte(byte_of((o < A ? a : b)[word(at / 4, member)], at % 4), e);
  }
  return v;
}

template <int A, int B>
__device__ inline uint2 concat(const uint32_t* a, const uint32_t* b, uint32_t quad,
                               uint32_t member) {
  return make_uint2(joined<A, B>(a, b, quad, member), joined<A, B>(a, b, quad, member + 1));
}

template <int A, int B>
__device__ inline uint4 concat(const uint32_t* a, const uint32_t* b, Octet octet, uint32_t member) {
  const uint2 low = concat<A, B>(a, b, 2 * octet.index, member);
  const uint2 high = concat<A, B>(a, b, 2 * octet.index + 1, member);
  return make_uint4(low.x, high.x, low.y, high.y);
}

}  // namespace egg
