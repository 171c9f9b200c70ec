// What our kernels use of CUDA, in C++ for clang: threads are fibers (metal/runtime.cpp), and a
// warp's operations are exchanges between them, which fail unless all 32 lanes come to the same.
#pragma once
#include "../../../../../../metal/include/metal_stdlib"

#undef device
#undef constant
#undef thread
#undef threadgroup
#undef EGG_SHARED

#define __device__
#define __global__
#define __constant__ static
#define EGG_SHARED_MEMORY static_assert(true)
#define EGG_SHARED(type, name, offset, count) \
  type* const name = static_cast<type*>(emu::shared(#name, sizeof(type) * (count)))
#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())

typedef uint uint2 __attribute__((ext_vector_type(2)));

namespace emu {

uint3 thread_index();
uint3 block_index();

int product(uint a, uint b);  // of four bytes each, summed
int wrapped(int a, int b);

// The operands as mma.sync names them, d both read and written.
void m16n8k32(int& d0, int& d1, int& d2, int& d3, uint a0, uint a1, uint a2, uint a3, uint b0,
              uint b1);
void m8n8k16(int& d0, int& d1, uint a0, uint b0);

uint shuffle(uint v, uint lane);

}  // namespace emu

// No templates: a call that mixes signed and unsigned is ambiguous.
inline int min(int a, int b) { return metal::min(a, b); }
inline uint min(uint a, uint b) { return metal::min(a, b); }
inline int max(int a, int b) { return metal::max(a, b); }
inline uint max(uint a, uint b) { return metal::max(a, b); }
inline int abs(int v) { return metal::abs(v); }
inline uint2 make_uint2(uint x, uint y) {
  uint2 v;
  v.x = x;
  v.y = y;
  return v;
}
inline uint4 make_uint4(uint x, uint y, uint z, uint w) {
  uint4 v;
  v.x = x;
  v.y = y;
  v.z = z;
  v.w = w;
  return v;
}
inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
inline int __dp4a(int a, int b, int c) { return emu::wrapped(emu::product(a, b), c); }
inline uint __funnelshift_r(uint low, uint high, uint shift) {
  return uint(((uint64_t(high) << 32) | low) >> (shift & 31));
}
template <typename T>
inline T __ldg(const T* from) {
  return *from;
}
inline void __syncthreads() { emu::exchange({emu::THREADGROUP, 3, 0}); }  // all memory

inline void all_lanes(uint mask) {
  if (mask != 0xffffffffu) emu::fail("a shuffle of some lanes");
}
inline uint __shfl_xor_sync(uint mask, uint v, int lanes) {
  all_lanes(mask);
  return uint(emu::exchange({emu::SHUFFLE, uint(lanes), v}));
}
inline int __shfl_xor_sync(uint mask, int v, int lanes) {
  return int(__shfl_xor_sync(mask, uint(v), lanes));
}
inline uint __shfl_sync(uint mask, uint v, uint lane) {
  all_lanes(mask);
  return emu::shuffle(v, lane);
}
