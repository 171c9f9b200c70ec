// A token drawn from the own prediction of each pair's member 2p, for the readout.
//
// Tiles of eight logits are gone through; each takes the place of the one kept with the odds of its
// weight. LOGITS, the bytes from one pair's logits to the next one's, comes first in the source.

namespace egg {

// A whole number below n.
EGG_FUNCTION ulong below(ulong n, uint chance) { return (n * ulong(chance >> 12)) >> 20; }

template <int V, int TILES, typename Logits>
EGG_FUNCTION void keep_logits(Logits logits, thread char2 (&y)[TILES][M / 8], uint tile,
                              Lane lane) {
  EGG_EACH (i, TILES) {
    const uint o = 8 * (tile * TILES + i) + lane.row;
    if (o >= V) continue;
    EGG_EACH (j, M / 8) logits[(4 * j + lane.column / 2) * LOGITS + o] = y[i][j].x;
  }
}

// EXP2 of the logits of a tile.
template <int V, typename Logits>
EGG_FUNCTION uint weight(Logits logits, uint tile) {
  uint sum = 0;
  for (uint o = 8 * tile; o < min(8 * tile + 8, uint(V)); ++o) sum += EXP2[int(logits[o]) + 128];
  return sum;
}

// One simdgroup, lanes along the tiles.
template <int V, typename Logits>
EGG_FUNCTION uint kept_tile(Logits logits, uint chance, Lane lane) {
  constexpr uint COUNT = (V + 7) / 8;
  ulong before = 0;
  uint kept = 0;
  for (uint from = 0; from < COUNT; from += 32) {
    const uint tile = from + lane.index, w = tile < COUNT ? weight<V>(logits, tile) : 0;
    uint up_to = w, all = w;
    for (uint mask = 1; mask < 32; mask *= 2) {
      const uint other = simd_shuffle_xor(all, ushort(mask));
      if (lane.index & mask) up_to += other;
      all += other;
    }
    if (below(before + up_to, mixed(chance + tile)) < w) kept = tile;
    before += all;
  }
  for (uint mask = 1; mask < 32; mask *= 2) kept = max(kept, simd_shuffle_xor(kept, ushort(mask)));
  return kept;
}

template <int V, typename Logits>
EGG_FUNCTION int drawn(Logits logits, uint chance, Lane lane) {
  const uint tile = kept_tile<V>(logits, chance, lane);
  uint at = uint(below(weight<V>(logits, tile), mixed(~chance))), o = 8 * tile;
  for (uint w = EXP2[int(logits[o]) + 128]; at >= w; w = EXP2[int(logits[o]) + 128]) {
    at -= w;
    ++o;
  }
  return int(o);
}

// moved[pair][token]: the row that the input is added to, and the one that it is taken from; -1 is
// none. A logit at the clip follows its row no more.
template <int V, typename Logits, typename Hits>
EGG_FUNCTION void draw(device int32_t* moved, const device int32_t* targets,
                       const device uint32_t* draws, Logits logits, Hits hits, uint T, uint members,
                       Lane lane) {
  for (uint m = 2 * lane.simdgroup; m < min(uint(M), members); m += 2 * SIMDGROUPS) {
    const int token = drawn<V>(logits + m / 2 * LOGITS, draws[m / 2 * T], lane);
    const int target = targets[m * T];
    if (lane.index == 0) {
      moved[m * T] = token == target || hits[m] == 255 ? -1 : target;
      moved[m * T + 1] = token == target ? -1 : token;
    }
  }
}

}  // namespace egg
