// A token drawn from the own prediction of each pair's member 2p, for the readout.
//
// Tiles of eight logits are gone through; each takes the place of the one kept with the odds of its
// weight. LOGITS, the bytes from one pair's logits to the next one's, comes first in the source.

namespace egg {

// A whole number below n.
__device__ inline uint64_t below(uint64_t n, uint32_t chance) {
  return (n * uint64_t(chance >> 12)) >> 20;
}

template <int V>
__device__ inline void keep_logits(uint32_t* logits, const uint2 (&y)[M / 8], uint32_t tile,
                                   Lane lane) {
  const uint32_t quad = 8 * tile + lane.group;
  if (4 * quad >= V) return;
#pragma unroll
  for (int j = 0; j < M / 8; ++j) logits[(4 * j + lane.quad) * (LOGITS / 4) + quad] = y[j].x;
}

// EXP2 of one logit of a pair.
__device__ inline uint32_t weight_of(const uint32_t* exp2, const uint32_t* logits, uint32_t o) {
  return power(exp2, uint32_t(byte_of(logits[o / 4], o % 4) + 128));
}

// EXP2 of the logits of a tile.
template <int V>
__device__ inline uint32_t weight(const uint32_t* exp2, const uint32_t* logits, uint32_t tile) {
  uint32_t sum = 0;
  for (uint32_t o = 8 * tile; o < min(8 * tile + 8, uint32_t(V)); ++o)
    sum += weight_of(exp2, logits, o);
  return sum;
}

// One warp, lanes along the tiles.
template <int V>
__device__ inline uint32_t kept_tile(const uint32_t* exp2, const uint32_t* logits, uint32_t chance,
                                     Lane lane) {
  constexpr uint32_t COUNT = (V + 7) / 8;
  uint64_t before = 0;
  uint32_t kept = 0;
  for (uint32_t from = 0; from < COUNT; from += 32) {
    const uint32_t tile = from + lane.index;
    const uint32_t w = tile < COUNT ? weight<V>(exp2, logits, tile) : 0;
    uint32_t up_to = w, all = w;
    for (int mask = 1; mask < 32; mask *= 2) {
      const uint32_t other = shuffled(all, mask);
      if (lane.index & uint32_t(mask)) up_to += other;
      all += other;
    }
    if (below(before + up_to, mixed(chance + tile)) < w) kept = tile;
    before += all;
  }
  for (int mask = 1; mask < 32; mask *= 2) kept = max(kept, shuffled(kept, mask));
  return kept;
}

template <int V>
__device__ inline int drawn(const uint32_t* exp2, const uint32_t* logits, uint32_t chance,
                            Lane lane) {
  const uint32_t tile = kept_tile<V>(exp2, logits, chance, lane);
  uint32_t at = uint32_t(below(weight<V>(exp2, logits, tile), mixed(~chance))), o = 8 * tile;
  for (uint32_t w = weight_of(exp2, logits, o); at >= w; w = weight_of(exp2, logits, o)) {
    at -= w;
    ++o;
  }
  return int(o);
}

// moved[pair][token]: the row that the input is added to, and the one that it is taken from; -1 is
// none. A logit at the clip follows its row no more.
template <int V>
__device__ inline void draw(int32_t* moved, const int32_t* targets, const uint32_t* draws,
                            const uint32_t* logits, const uint32_t* exp2, const int* hits,
                            uint32_t T, uint32_t members, Lane lane) {
  for (uint32_t m = 2 * lane.warp; m < min(uint32_t(M), members); m += 2 * WARPS) {
    const int token = drawn<V>(exp2, logits + m / 2 * (LOGITS / 4), draws[m / 2 * T], lane);
    const int target = targets[m * T];
    if (lane.index == 0) {
      moved[m * T] = token == target || hits[m] == 255 ? -1 : target;
      moved[m * T + 1] = token == target ? -1 : token;
    }
  }
}

}  // namespace egg
