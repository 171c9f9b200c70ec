// c += a b of 16 x 32 and 32 x 8 bytes without tensor cores: operands by shuffles, sums by dp4a.

namespace egg {

__device__ inline uint32_t from_lane(uint32_t v, uint32_t lane) {
  return __shfl_sync(0xffffffffu, v, lane);
}

__device__ inline void mma(int (&c)[4], uint4 a, uint2 b) {
  const uint32_t lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const int top[2] = {int(from_lane(a.x, row + k)), int(from_lane(a.z, row + k))};
    const int low[2] = {int(from_lane(a.y, row + k)), int(from_lane(a.w, row + k))};
#pragma unroll
    for (uint32_t p = 0; p < 2; ++p) {
      const int v[2] = {int(from_lane(b.x, column + 4 * p + k)),
                        int(from_lane(b.y, column + 4 * p + k))};
      c[p] = __dp4a(top[1], v[1], __dp4a(top[0], v[0], c[p]));
      c[2 + p] = __dp4a(low[1], v[1], __dp4a(low[0], v[0], c[2 + p]));
    }
  }
}

}  // namespace egg
