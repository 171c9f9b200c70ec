// The caller has W x + noise, int32 [members][T][O].

namespace egg {

// Outputs 32 tile + 4 group + 0..3 of members column + 8 j + 2 quad and the next; total is room for
// them.
template <int K, int O, int DIVISOR, int J>
__device__ inline void sums(int32_t* to, int (&total)[2][J][4], const int8_t* W, const uint32_t* x,
                            const int* projections, Noise noise, uint32_t leaf, uint32_t T,
                            uint32_t members, uint32_t tile, uint32_t column, Lane lane) {
  product<K, O, J>(total, W, x, tile, column, lane);
  const uint32_t outputs = 8 * tile + lane.group;  // a quad of them
  if (4 * outputs >= O) return;
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const uint32_t member = column + 8 * j + 2 * lane.quad;
    Two n = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (PERTURBED) n = on_sums<K, O, DIVISOR>(noise, leaf, projections, member, outputs);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t o = 4 * outputs + e;
      const int* of = total[e / 2][j] + 2 * (e % 2);
      const int even = int(uint32_t(of[0]) + uint32_t(n.even[e]));
      const int odd = int(uint32_t(of[1]) + uint32_t(n.odd[e]));
      if (o < O && member < members) to[member * T * O + o] = even;
      if (o < O && member + 1 < members) to[(member + 1) * T * O + o] = odd;
    }
  }
}

}  // namespace egg
