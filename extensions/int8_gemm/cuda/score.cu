// u = linear(x) + 128; log-likelihood = S/16 u_c - LOG2[sum EXP2[u]] in 1/S bit. Logits are not
// stored.
//
// SCORE_BITS, EXACT, EXP2 (its last 16 entries, or its first 16 if exact) and the type Total (64
// bits where the sum needs them) are generated.

namespace egg {

// EXP2[u] = floor(2^(SCORE_BITS + u / 16)) is its entry for 240 + u % 16, halved 15 - u / 16 times
// and floored.
__device__ inline uint32_t power(const uint32_t* exp2, uint32_t u) {
  return exp2[u % 16] >> (15 - u / 16);
}

// The summand: that, or for exact losses the entry for u % 16, doubled u / 16 times.
__device__ inline Total summand(const uint32_t* exp2, uint32_t u) {
  return EXACT ? Total(exp2[u % 16]) << (u / 16) : Total(power(exp2, u));
}

__device__ inline void load_exp2(uint32_t* exp2, Lane lane) {
  if (lane.thread < 16) exp2[lane.thread] = EXP2[lane.thread];
}

__device__ inline uint32_t shuffled(uint32_t v, int mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}

__device__ inline uint64_t shuffled(uint64_t v, int mask) {
  const uint32_t low = shuffled(uint32_t(v), mask), high = shuffled(uint32_t(v >> 32), mask);
  return (uint64_t(high) << 32) | uint64_t(low);
}

// A lane's sums for its members, and the targets.
struct Likelihood {
  Total sums[M / 8][2];
  int targets[M / 8][2];
};

__device__ inline void begin(Likelihood& mine, const int32_t* targets, uint32_t T, uint32_t members,
                             Lane lane) {
#pragma unroll
  for (int j = 0; j < M / 8; ++j)
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const uint32_t member = 8 * j + 2 * lane.quad + p;
      mine.sums[j][p] = 0;
      mine.targets[j][p] = targets[min(member, members - 1) * T];
    }
}

template <int V>
__device__ inline void score(Likelihood& mine, int* hits, const uint32_t* exp2,
                             const uint2 (&y)[M / 8], uint32_t tile, Lane lane) {
  const int o = 32 * tile + 4 * lane.group;
#pragma unroll
  for (int j = 0; j < M / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (o + e >= V) continue;
      const uint32_t member = 8 * j + 2 * lane.quad;
      const int even = byte_plus(y[j].x, e, 128), odd = byte_plus(y[j].y, e, 128);
      mine.sums[j][0] += summand(exp2, even);
      mine.sums[j][1] += summand(exp2, odd);
      if (mine.targets[j][0] == o + e) hits[member] = even;
      if (mine.targets[j][1] == o + e) hits[member + 1] = odd;
    }
}

// parts[warp][member]: over the eight lanes that hold a member's logits.
__device__ inline void gather(Total* parts, const Likelihood& mine, Lane lane) {
#pragma unroll
  for (int j = 0; j < M / 8; ++j)
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      Total sum = mine.sums[j][p];
      for (int mask = 4; mask < 32; mask *= 2) sum += shuffled(sum, mask);
      if (lane.group == 0) parts[lane.warp * M + 8 * j + 2 * lane.quad + p] = sum;
    }
}

static_assert(M <= THREADS, "a thread finishes a member");

__device__ inline void finish(int16_t* scores, const Total* parts, const int* hits, uint32_t T,
                              uint32_t members, Lane lane) {
  const uint32_t m = lane.thread;
  if (m < min(uint32_t(M), members)) {
    uint64_t total = 0;
    for (uint32_t part = 0; part < WARPS; ++part) total += parts[part * M + m];
    scores[m * T] = int16_t(hits[m] * (1 << (SCORE_BITS - 4)) - log2_score(total));
  }
}

// For exact losses: sums over the vocabulary, and the targets' logits.
__device__ inline void finish(uint64_t* totals, int8_t* logits, const Total* parts, const int* hits,
                              uint32_t T, uint32_t members, Lane lane) {
  const uint32_t m = lane.thread;
  if (m < min(uint32_t(M), members)) {
    uint64_t total = 0;
    for (uint32_t part = 0; part < WARPS; ++part) total += parts[part * M + m];
    totals[m * T] = total;
    logits[m * T] = int8_t(hits[m] - 128);
  }
}

// The logits themselves, [members][V], for drawing text.
template <int V>
__device__ inline void store_logits(int8_t* logits, const uint2 (&y)[M / 8], uint32_t tile,
                                    uint32_t members, Lane lane) {
  for (int j = 0; j < M / 8; ++j)
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t o = 32 * tile + 4 * lane.group + e, member = 8 * j + 2 * lane.quad;
      if (o < V && member < members) logits[member * V + o] = int8_t(byte_of(y[j].x, e));
      if (o < V && member + 1 < members) logits[(member + 1) * V + o] = int8_t(byte_of(y[j].y, e));
    }
}

}  // namespace egg
