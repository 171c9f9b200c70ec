// Sums over a simdgroup, and products that send credit back.

namespace egg {

EGG_FUNCTION int over_lanes(int v) { return simd_sum(v); }

EGG_FUNCTION int64_t over_lanes(int64_t v) {
  for (uint mask = 1; mask < 32; mask *= 2) {
    const uint low = simd_shuffle_xor(uint(v), ushort(mask));
    const uint high = simd_shuffle_xor(uint(uint64_t(v) >> 32), ushort(mask));
    v += int64_t((uint64_t(high) << 32) | uint64_t(low));
  }
  return v;
}

// Credit of a matrix's inputs from that of its outputs, c, in int8: F^T c / (16 floor(sqrt K)),
// added to what `from` has if ADDS. F: the transpose, packed as weights are; total: room.
template <int O, int K, int A, int N, bool ADDS, int TILES, typename Register>
EGG_FUNCTION void send_back(device int* to, const device int* from,
                            thread int2 (&total)[TILES][M / 8], const device int8_t* F, Register c,
                            int scale, uint tile, Lane lane) {
  product<O, TILES>(total, F, c, tile, lane);
  EGG_EACH (i, TILES) {
    const uint k = 8 * (tile * TILES + i) + lane.row;
    if (k >= K) continue;
    EGG_EACH (j, M / 8) {
      const uint at = place(k, 8 * j + lane.column);
      const int even = reduced<A, N>(total[i][j].x, scale);
      const int odd = reduced<A, N>(total[i][j].y, scale);
      to[at] = ADDS ? bounded(from[at] + even) : even;
      to[at + 1] = ADDS ? bounded(from[at + 1] + odd) : odd;
    }
  }
}

}  // namespace egg
