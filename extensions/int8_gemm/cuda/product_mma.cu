// Integer products on tensor cores: int8 x int8 to int32, which wraps.

namespace egg {

// total[i][j][2 h + p]: output 32 tile + 4 group + 2 i + h of W x, member column + 8 j + 2 quad +
// p.
//
// W is packed for lanes: [outputs / 32][inputs / 32][2][lane][16 bytes], zeros beyond O and K; so
// what x holds beyond K does not matter. Rows and inputs are dealt out so that a lane's sums are of
// four neighbouring outputs, and its part of x is eight neighbouring inputs. Whole tiles of 64
// outputs are packed for the lanes of octets.cu: [outputs / 64][inputs / 32][4][lane][16 bytes].
template <int K, int O, int J>
__device__ inline void product(int (&total)[2][J][4], const int8_t* W, const uint32_t* x,
                               uint32_t tile, uint32_t column, Lane lane) {
  constexpr uint32_t STEPS = (K + 31) / 32;
  constexpr bool OCTETS = O % 64 == 0;
  const uint32_t of_octets = lane.group % 2 * 64 + (tile % 2 * 4 + lane.group / 2) * 4 + lane.quad;
  const uint4* w = reinterpret_cast<const uint4*>(W);
  w += OCTETS ? tile / 2 * STEPS * 128 + of_octets : tile * STEPS * 64 + lane.index;
  const uint2* of_x = reinterpret_cast<const uint2*>(x) + lane.quad * LD + column + lane.group;
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int r = 0; r < 4; ++r) total[0][j][r] = total[1][j][r] = 0;
#pragma unroll 2
  for (uint32_t step = 0; step < STEPS; ++step) {
    const uint4 first = __ldg(w), second = __ldg(w + 32);
#pragma unroll
    for (int j = 0; j < J; ++j) {
      const uint2 v = of_x[8 * j];
      mma(total[0][j], first, v);
      mma(total[1][j], second, v);
    }
    w += OCTETS ? 128
                : 64;  // pointers that go on, as an index would be added in 64 bits at every load
    of_x += 4 * LD;
  }
}

}  // namespace egg
