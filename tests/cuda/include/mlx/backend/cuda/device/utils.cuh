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
#define __launch_bounds__(...)
#define __constant__ static
#define EGG_SHARED_MEMORY static_assert(true)
#define EGG_SHARED(type, name, offset, count) \
  type* const name = static_cast<type*>(emu::shared(#name, offset, sizeof(type) * (count)))
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

// cvt.pack.sat.s16.s32: two saturated halves.
inline uint halves(int high, int low) {
  const auto half = [](int v) { return uint(uint16_t(metal::max(-32768, metal::min(v, 32767)))); };
  return half(high) << 16 | half(low);
}

// cvt.pack.sat.s8.s32.b32: two saturated bytes below the lower half of `above`.
inline uint pack(int high, int low, uint above) {
  const auto byte = [](int v) { return uint(uint8_t(metal::max(-128, metal::min(v, 127)))); };
  return above << 16 | byte(high) << 8 | byte(low);
}

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
inline uint __byte_perm(uint low, uint high, uint selector) {
  const uint64_t pool = uint64_t(high) << 32 | low;
  uint v = 0;
  for (int e = 0; e < 4; ++e) v |= uint((pool >> 8 * (selector >> 4 * e & 7)) & 255) << 8 * e;
  return v;
}
inline uint __vmaxs2(uint a, uint b) {
  const auto half = [](uint v) { return int(int16_t(v)); };
  return uint(uint16_t(max(half(a), half(b)))) | uint(max(half(a >> 16), half(b >> 16))) << 16;
}
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
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
