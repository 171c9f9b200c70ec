// Sums over a warp, and products that send credit back.

namespace egg {

__device__ inline int over_lanes(int v) {
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

__device__ inline int64_t over_lanes(int64_t v) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t low = __shfl_xor_sync(0xffffffffu, uint32_t(v), mask);
    const uint32_t high = __shfl_xor_sync(0xffffffffu, uint32_t(uint64_t(v) >> 32), mask);
    v += int64_t((uint64_t(high) << 32) | uint64_t(low));
  }
  return v;
}

// Credit of a matrix's inputs from that of its outputs, c, in int8: F^T c / (16 floor(sqrt K)),
// added to what `from` has if ADDS. F: the transpose, packed as weights are; total: room.
template <int O, int K, int A, int N, bool ADDS, int J>
__device__ inline void send_back(int* to, const int* from, int (&total)[2][J][4], const int8_t* F,
                                 const uint32_t* c, int scale, uint32_t tile, uint32_t column,
                                 Lane lane) {
  product<O, K, J>(total, F, c, tile, column, lane);
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t k = 32 * tile + 4 * lane.group + e;
      if (k >= K) continue;
#pragma unroll
      for (uint32_t p = 0; p < 2; ++p) {
        const uint32_t at = place(k, column + 8 * j + 2 * lane.quad + p);
        const int given = reduced<A, N>(total[e / 2][j][2 * (e % 2) + p], scale);
        to[at] = ADDS ? bounded(from[at] + given) : given;
      }
    }
}

}  // namespace egg
