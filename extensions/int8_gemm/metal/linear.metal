// y = clip((W x + noise) // (16 floor(sqrt K))).

namespace egg {

// sums[q][member] = +-(x B)[q] of a pair: plus for the even member. One simdgroup per pair.
template <int K, typename Register, typename Sums>
EGG_FUNCTION void dots(Sums sums, Register x, Noise noise, uint leaf, uint member, Lane lane) {
  const device int8_t* B = slice(noise, leaf, member);
  for (uint q = 0; q < RANK; ++q) {
    int even = 0, odd = 0;
    for (uint k = lane.index; k < K; k += 32) {
      const char2 v = get(x, k, member);
      const int b = B[k * RANK + q];
      even += int(v.x) * b;
      odd += int(v.y) * b;
    }
    even = simd_sum(even);
    odd = simd_sum(odd);
    if (lane.index == 0) {
      sums[q * M + member] = even;
      sums[q * M + member + 1] = -odd;
    }
  }
}

// y[i][j]: outputs 8 (TILES tile + i) + row, members 8 j + column and the next.
template <int K, int O, int DIVISOR, int TILES, typename Register, typename Sums>
EGG_FUNCTION void linear(thread char2 (&y)[TILES][M / 8], const device int8_t* W, Register x,
                         Sums sums, Noise noise, uint leaf, uint tile, Lane lane) {
  int2 total[TILES][M / 8];
  product<K, TILES>(total, W, x, tile, lane);
  EGG_EACH (j, M / 8) {
    const uint member = 8 * j + lane.column;
    SumNoise mine;
    if (PERTURBED) mine = sum_noise<K>(noise, leaf, member);
    EGG_EACH (i, TILES) {
      const uint o = 8 * (tile * TILES + i) + lane.row;
      int2 v = total[i][j];
      if (PERTURBED && o < O) {
        const int2 n = on_sum<DIVISOR>(mine, sums, member, o);
        v.x = int(uint(v.x) + uint(n.x));
        v.y = int(uint(v.y) + uint(n.y));
      }
      y[i][j] = both(divide<DIVISOR>(v.x), divide<DIVISOR>(v.y));
    }
  }
}

}  // namespace egg
