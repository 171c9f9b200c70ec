// u = linear(x) + 128; log-likelihood = S/16 u_c - LOG2[sum EXP2[u]] in 1/S bit. Logits are not
// stored.
//
// SCORE_BITS, EXP2 and the type Total (64 bits where the sum needs them) are generated.

namespace egg {

inline uint shuffled(uint v, ushort mask) { return simd_shuffle_xor(v, mask); }

inline ulong shuffled(ulong v, ushort mask) {
  const uint low = simd_shuffle_xor(uint(v), mask), high = simd_shuffle_xor(uint(v >> 32), mask);
  return (ulong(high) << 32) | ulong(low);
}

// The sum over the eight lanes that hold one column.
inline Total over_rows(Total v) {
  v += shuffled(v, 2);
  v += shuffled(v, 4);
  return v + shuffled(v, 16);
}

// A lane's sums for its members, and the targets.
struct Likelihood {
  Total sums[M / 8][2];
  int targets[M / 8][2];
};

inline void begin(thread Likelihood& mine, const device int32_t* targets, uint T, uint members,
                  Lane lane) {
  for (uint j = 0; j < M / 8; ++j)
    for (uint s = 0; s < 2; ++s) {
      const uint member = 8 * j + lane.column + s;
      mine.sums[j][s] = 0;
      mine.targets[j][s] = targets[min(member, members - 1) * T];
    }
}

template <int V, int TILES, typename Hits>
inline void score(thread Likelihood& mine, Hits hits, thread char2 (&y)[TILES][M / 8], uint tile,
                  Lane lane) {
  for (uint i = 0; i < TILES; ++i) {
    const int o = 8 * (tile * TILES + i) + lane.row;
    if (o >= V) continue;
    for (uint j = 0; j < M / 8; ++j) {
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
inline void gather(Parts parts, thread Likelihood& mine, Lane lane) {
  for (uint j = 0; j < M / 8; ++j)
    for (uint s = 0; s < 2; ++s) {
      const Total sum = over_rows(mine.sums[j][s]);
      if (lane.row == 0) parts[lane.simdgroup * M + 8 * j + lane.column + s] = sum;
    }
}

template <typename Parts, typename Hits>
inline void finish(device int16_t* scores, Parts parts, Hits hits, uint T, uint members,
                   Lane lane) {
  for (uint m = lane.in_group; m < min(uint(M), members); m += THREADS) {
    ulong total = 0;
    for (uint part = 0; part < SIMDGROUPS; ++part) total += parts[part * M + m];
    scores[m * T] = int16_t(hits[m] * (1 << (SCORE_BITS - 4)) - log2_score(total));
  }
}

// For exact losses: sums over the vocabulary, and the targets' logits.
template <typename Parts, typename Hits>
inline void finish(device uint64_t* totals, device int8_t* logits, Parts parts, Hits hits, uint T,
                   uint members, Lane lane) {
  for (uint m = lane.in_group; m < min(uint(M), members); m += THREADS) {
    ulong total = 0;
    for (uint part = 0; part < SIMDGROUPS; ++part) total += parts[part * M + m];
    totals[m * T] = total;
    logits[m * T] = int8_t(hits[m] - 128);
  }
}

// The logits themselves, [members][V], for drawing text.
template <int V, int TILES>
inline void store_logits(device int8_t* logits, thread char2 (&y)[TILES][M / 8], uint tile,
                         uint members, Lane lane) {
  for (uint i = 0; i < TILES; ++i)
    for (uint j = 0; j < M / 8; ++j) {
      const uint o = 8 * (tile * TILES + i) + lane.row, member = 8 * j + lane.column;
      if (o < V && member < members) logits[member * V + o] = y[i][j].x;
      if (o < V && member + 1 < members) logits[(member + 1) * V + o] = y[i][j].y;
    }
}

}  // namespace egg
