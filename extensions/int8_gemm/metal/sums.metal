// The caller has W x + noise, int32 [members][T][O].

namespace egg {

// Outputs 8 (TILES tile + i) + row of members 8 j + column and the next; total is room for them.
template <int K, int O, int DIVISOR, int TILES, typename Register, typename Sums>
EGG_FUNCTION void sums(device int32_t* to, thread int2 (&total)[TILES][M / 8],
                       const device int8_t* W, Register x, Sums projections, Noise noise, uint leaf,
                       uint T, uint members, uint tile, Lane lane) {
  product<K, TILES>(total, W, x, tile, lane);
  EGG_EACH (j, M / 8) {
    const uint member = 8 * j + lane.column;
    SumNoise mine;
    if (PERTURBED) mine = sum_noise<K>(noise, leaf, member);
    EGG_EACH (i, TILES) {
      const uint o = 8 * (tile * TILES + i) + lane.row;
      if (o >= O) continue;
      int2 v = total[i][j];
      if (PERTURBED) {
        const int2 n = on_sum<DIVISOR>(mine, projections, member, o);
        v.x = int(uint(v.x) + uint(n.x));
        v.y = int(uint(v.y) + uint(n.y));
      }
      if (member < members) to[member * T * O + o] = v.x;
      if (member + 1 < members) to[(member + 1) * T * O + o] = v.y;
    }
  }
}

}  // namespace egg
