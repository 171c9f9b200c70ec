// What our kernels use of CUDA, in C++ for clang: threads are fibers (metal/runtime.cpp), and a
// warp's operations are exchanges between them, which fail unless all 32 lanes come to the same.
//
// Matrix products follow the tables of the PTX ISA for mma.sync: which lane holds which elements.
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

struct Operands {
  uint a[4], b[2];
};
inline Operands operands[2][32];  // of one warp: the others wait, and twice as a lane may run ahead

inline int product(uint a, uint b) {
  int sum = 0;
  for (int e = 0; e < 4; ++e) sum += int(int8_t(a >> 8 * e)) * int(int8_t(b >> 8 * e));
  return sum;
}

inline int wrapped(int a, int b) { return int(uint(a) + uint(b)); }

// d += a b: rows 8 h + lane / 4 and columns 2 (lane % 4) + p of d are its element 2 h + p. Word
// h + H k of a holds inputs 16 k + 4 (lane % 4) + 0..3 of row 8 h + lane / 4, H = halves of rows;
// word k of b those inputs of column lane / 4.
template <int HALVES>
inline void mma(int* const (&d)[2 * HALVES], const uint (&a)[HALVES * HALVES],
                const uint (&b)[HALVES]) {
  static uint turns[32];
  const uint lane = lane_index();
  Operands(&all)[32] = operands[turns[lane]++ % 2];
  for (int i = 0; i < HALVES * HALVES; ++i) all[lane].a[i] = a[i];
  for (int i = 0; i < HALVES; ++i) all[lane].b[i] = b[i];
  exchange({SIMDGROUP, uint(HALVES), 0});
  for (uint h = 0; h < HALVES; ++h)
    for (uint p = 0; p < 2; ++p)
      for (uint k = 0; k < HALVES; ++k)
        for (uint quad = 0; quad < 4; ++quad)
          *d[2 * h + p] = wrapped(*d[2 * h + p], product(all[lane / 4 * 4 + quad].a[h + HALVES * k],
                                                         all[(lane % 4 * 2 + p) * 4 + quad].b[k]));
}

inline void m16n8k32(int& d0, int& d1, int& d2, int& d3, uint a0, uint a1, uint a2, uint a3,
                     uint b0, uint b1) {
  mma<2>({&d0, &d1, &d2, &d3}, {a0, a1, a2, a3}, {b0, b1});
}

inline void m8n8k16(int& d0, int& d1, uint a0, uint b0) { mma<1>({&d0, &d1}, {a0}, {b0}); }

}  // namespace emu

// No templates: a call that mixes signed and unsigned is ambiguous.
inline int min(int a, int b) { return metal::min(a, b); }
inline uint min(uint a, uint b) { return metal::min(a, b); }
inline int max(int a, int b) { return metal::max(a, b); }
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
inline void __syncthreads() { emu::exchange({emu::THREADGROUP, 0, 0}); }

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
  static uint values[2][32], turns[32];
  const uint mine = emu::lane_index();
  uint(&all)[32] = values[turns[mine]++ % 2];
  all[mine] = v;
  emu::exchange({emu::SIMDGROUP, 3, 0});
  return all[lane % 32];
}
