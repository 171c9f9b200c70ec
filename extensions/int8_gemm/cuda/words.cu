// Operations on four features at a time, for those whose text in ../gpu takes one.

namespace egg {

// f of words of values, word by word.
template <typename F, typename... Rest>
__device__ inline uint2 each(F f, uint2 a, Rest... b) {
  return make_uint2(f(a.x, b.x...), f(a.y, b.y...));
}

template <typename F, typename... Rest>
__device__ inline uint4 each(F f, uint4 a, Rest... b) {
  return make_uint4(f(a.x, b.x...), f(a.y, b.y...), f(a.z, b.z...), f(a.w, b.w...));
}

// A vector leaf as a pair has it, with noise made here.
template <int COUNT>
__device__ inline uint2 made_at(const int8_t* w, Noise noise, uint32_t leaf, uint32_t member,
                                uint32_t quad) {
  return make_uint2(perturbed<COUNT>(w, noise, leaf, member, quad, false),
                    perturbed<COUNT>(w, noise, leaf, member, quad, true));
}

template <int COUNT>
__device__ inline uint4 made_at(const int8_t* w, Noise noise, uint32_t leaf, uint32_t member,
                                Octet octet) {
  const uint2 low = made_at<COUNT>(w, noise, leaf, member, 2 * octet.index);
  const uint2 high = made_at<COUNT>(w, noise, leaf, member, 2 * octet.index + 1);
  return make_uint4(low.x, high.x, low.y, high.y);
}

// Sums of the bytes of two words, and numbers, by dot products with two ones.
struct Sums {
  uint32_t low, high;  // bytes 0 and 1, 2 and 3 of a and b by turns
  __device__ inline Sums(uint32_t a, uint32_t b)
      : low(__byte_perm(a, b, 0x5140)), high(__byte_perm(a, b, 0x7362)) {}
  __device__ inline int of(int e, int v) const {
    return __dp4a(int(e < 2 ? low : high), 0x101 << (16 * (e % 2)), v);
  }
};

__device__ inline uint32_t add(uint32_t a, uint32_t b) {
  const Sums sums(a, b);
  return clipped(sums.of(0, 0), sums.of(1, 0), sums.of(2, 0), sums.of(3, 0));
}

__device__ inline uint32_t bias(uint32_t a, uint32_t w) { return add(a, w); }

__device__ inline uint32_t add_bias(uint32_t a, uint32_t b, uint32_t w) {
  const Sums sums(a, b);
  return clipped(sums.of(0, byte_of(w, 0)), sums.of(1, byte_of(w, 1)), sums.of(2, byte_of(w, 2)),
                 sums.of(3, byte_of(w, 3)));
}

// (f + 127) s, of 16 bits.
__device__ inline uint32_t forget_of(uint32_t f, uint32_t s, int e) {
  return uint32_t(byte_plus(f, e, 127) * byte_of(s, e));
}

__device__ inline uint32_t forget(uint32_t f, uint32_t s) {
  const uint32_t low = __byte_perm(forget_of(f, s, 0), forget_of(f, s, 1), 0x51);
  const uint32_t high = __byte_perm(forget_of(f, s, 2), forget_of(f, s, 3), 0x51);
  return __byte_perm(low, high, 0x5410);
}

__device__ inline int mix_of(uint32_t f, uint32_t h, uint32_t s, int e) {
  const int of_s = byte_of(s, e);
  return of_s + ((byte_plus(f, e, 127) * byte_plus(h, e, -of_s)) >> 8);
}

__device__ inline uint32_t mix(uint32_t f, uint32_t h, uint32_t s) {
  return packed(mix_of(f, h, s, 0), mix_of(f, h, s, 1), mix_of(f, h, s, 2), mix_of(f, h, s, 3));
}

}  // namespace egg
