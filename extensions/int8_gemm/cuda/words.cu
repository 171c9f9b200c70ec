// Operations on four features at a time, for those whose text in ../gpu takes one.

namespace egg {

__device__ inline int add_of(uint32_t a, uint32_t b, int e) {
  return byte_plus(a, e, byte_of(b, e));
}

__device__ inline uint32_t add(uint32_t a, uint32_t b) {
  return clipped(add_of(a, b, 0), add_of(a, b, 1), add_of(a, b, 2), add_of(a, b, 3));
}

__device__ inline uint32_t bias(uint32_t a, uint32_t w) { return add(a, w); }

__device__ inline int add_bias_of(uint32_t a, uint32_t b, uint32_t w, int e) {
  return byte_plus(w, e, add_of(a, b, e));
}

__device__ inline uint32_t add_bias(uint32_t a, uint32_t b, uint32_t w) {
  return clipped(add_bias_of(a, b, w, 0), add_bias_of(a, b, w, 1), add_bias_of(a, b, w, 2),
                 add_bias_of(a, b, w, 3));
}

__device__ inline int forget_of(uint32_t f, uint32_t s, int e) {
  return (byte_plus(f, e, 127) * byte_of(s, e)) >> 8;
}

__device__ inline uint32_t forget(uint32_t f, uint32_t s) {
  return packed(forget_of(f, s, 0), forget_of(f, s, 1), forget_of(f, s, 2), forget_of(f, s, 3));
}

__device__ inline int mix_of(uint32_t f, uint32_t h, uint32_t s, int e) {
  const int of_s = byte_of(s, e);
  return of_s + ((byte_plus(f, e, 127) * byte_plus(h, e, -of_s)) >> 8);
}

__device__ inline uint32_t mix(uint32_t f, uint32_t h, uint32_t s) {
  return packed(mix_of(f, h, s, 0), mix_of(f, h, s, 1), mix_of(f, h, s, 2), mix_of(f, h, s, 3));
}

}  // namespace egg
