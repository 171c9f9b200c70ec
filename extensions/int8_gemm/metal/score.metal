// u = linear(x) + 128; log-likelihood = S/16 u_c - LOG2[sum EXP2[u]] in 1/S bit. Logits are not
// stored.
//
// SCORE_BITS, EXP2 and the type Total (64 bits where the sum needs them) are generated.

namespace egg {

EGG_FUNCTION uint shuffled(uint v, ushort mask) { return simd_shuffle_xor(v, mask); }

EGG_FUNCTION ulong shuffled(ulong v, ushort mask) {
  const uint low = simd_shuffle_xor(uint(v), mask), high = simd_shuffle_xor(uint(v >> 32), mask);
  return (ulong(high) << 32) | ulong(low);
}

// The sum over the eight lanes that hold one column.
EGG_FUNCTION Total over_rows(Total v) {
  v += shuffled(v, 2);
  v += shuffled(v, 4);
  return v + shuffled(v, 16);
}

// A lane's sums for its members, and the targets.
struct Likelihood {
  Total sums[M / 8][2];
  int targets[M / 8][2];
};

EGG_FUNCTION void begin(thread Likelihood& mine, const device int32_t* targets, uint T,
                        uint members, Lane lane) {
  EGG_EACH (j, M / 8)
    EGG_EACH (s, 2) {
      const uint member = 8 * j + lane.column + s;
      mine.sums[j][s] = 0;
      mine.targets[j][s] = targets[min(member, members - 1) * T];
    }
}

template <int V, int TILES, typename Hits>
EGG_FUNCTION void score(thread Likelihood& mine, Hits hits, thread char2 (&y)[TILES][M / 8],
                        uint tile, Lane lane) {
  EGG_EACH (i, TILES) {
    const int o = 8 * (tile * TILES + i) + lane.row;
    if (o >= V) continue;
    EGG_EACH (j, M / 8) {
      const uint member = 8 * j + lane.column;
      const int even = int(y[i][j].x) + 128, odd = int(y[i][j].y) + 128;
      mine.sums[j][0] += EXP2[even];
      mine.sums[j][1] += EXP2[odd];
      if (mine.targets[j][0] == o) hits[member] = even;
      if (mine.targets[j][1] == o) hits[member + 1] = odd;
    }
  }
}

template <typename Parts>
EGG_FUNCTION void gather(Parts parts, thread Likelihood& mine, Lane lane) {
  EGG_EACH (j, M / 8)
    EGG_EACH (s, 2) {
      const Total sum = over_rows(mine.sums[j][s]);
      if (lane.row == 0) parts[lane.simdgroup * M + 8 * j + lane.column + s] = sum;
    }
}

template <typename Parts, typename Hits>
EGG_FUNCTION void finish(device int16_t* scores, Parts parts, Hits hits, uint T, uint members,
                         Lane lane) {
  for (uint m = lane.in_group; m < min(uint(M), members); m += THREADS) {
    ulong total = 0;
    for (uint part = 0; part < SIMDGROUPS; ++part) total += parts[part * M + m];
    scores[m * T] = int16_t(hits[m] * (1 << (SCORE_BITS - 4)) - log2_score(total));
  }
}

// For exact losses: sums over the vocabulary, and the targets' logits.
template <typename Parts, typename Hits>
EGG_FUNCTION void finish(device uint64_t* totals, device int8_t* logits, Parts parts, Hits hits,
                         uint T, uint members, Lane lane) {
  for (uint m = lane.in_group; m < min(uint(M), members); m += THREADS) {
    ulong total = 0;
    for (uint part = 0; part < SIMDGROUPS; ++part) total += parts[part * M + m];
    totals[m * T] = total;
    logits[m * T] = int8_t(hits[m] - 128);
  }
}

// The logits themselves, [members][V], for drawing text.
template <int V, int TILES>
EGG_FUNCTION void store_logits(device int8_t* logits, thread char2 (&y)[TILES][M / 8], uint tile,
                               uint members, Lane lane) {
  EGG_EACH (i, TILES)
    EGG_EACH (j, M / 8) {
      const uint o = 8 * (tile * TILES + i) + lane.row, member = 8 * j + lane.column;
      if (o < V && member < members) logits[member * V + o] = y[i][j].x;
      if (o < V && member + 1 < members) logits[(member + 1) * V + o] = y[i][j].y;
    }
}

}  // namespace egg
