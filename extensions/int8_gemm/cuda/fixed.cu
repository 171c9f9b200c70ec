// What all kernels share.

#ifndef EGG_SHARED
#define EGG_SHARED(type, name, offset, count) \
  type* const name = reinterpret_cast<type*>(egg_memory + (offset) / 16)
#define EGG_SHARED_MEMORY extern __shared__ uint4 egg_memory[]
#endif

namespace egg {

__device__ inline int clip(int v) { return max(-127, min(v, 127)); }

// v / 2^shift, to the nearest.
__device__ inline int rounded(int v, int shift) {
  return shift == 0 ? v : (v + (1 << (shift - 1))) >> shift;
}

// Byte e of a word, and a value as byte e.
__device__ inline int byte_of(uint32_t word, int e) { return int(word << (24 - 8 * e)) >> 24; }
__device__ inline uint32_t as_byte(int v, int e) { return (uint32_t(v) & 255u) << (8 * e); }

}  // namespace egg
