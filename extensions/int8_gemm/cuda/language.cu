// CUDA's words for what kernels in ../gpu say: a function, and what Metal has address spaces for.

#define EGG_FUNCTION __device__ inline
#define EGG_DEVICE
#define EGG_CONSTANT const
#ifndef EGG_SHARED
#define EGG_SHARED(type, name, offset, count) \
  type* const name = reinterpret_cast<type*>(egg_memory + (offset) / 16)
#define EGG_SHARED_MEMORY extern __shared__ uint4 egg_memory[]
#endif

namespace egg {

// Byte e of a word, also with a number added, and a value as byte e. A dot product with a single
// one takes a byte out and adds, on the pipe of multiplications, which has less to do.
__device__ inline int byte_plus(uint32_t word, int e, int v) {
  return __dp4a(int(word), 1 << (8 * e), v);
}
__device__ inline int byte_of(uint32_t word, int e) {
  return e == 3 ? int(word) >> 24 : byte_plus(word, e, 0);
}
// Byte e times 2^24.
__device__ inline int upper_byte(uint32_t word, int e) {
  return int(__byte_perm(word, 0, 0x444 | e << 12));
}
__device__ inline uint32_t as_byte(int v, int e) { return (uint32_t(v) & 255u) << (8 * e); }

__device__ inline int leading_zeros(uint64_t n) { return __clzll(static_cast<long long>(n)); }

}  // namespace egg
