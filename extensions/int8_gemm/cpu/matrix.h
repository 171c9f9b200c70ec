// Products of a linear leaf's weights with a block's inputs. Included after its Isa inside the
// namespace of each unit that multiplies tile by tile; amx_isa.h has the other way.

struct TileMatrix {
  // Tile by tile into `place(index)`, words [2][32]; `done(index)` follows each. See
  // Layers::product.
  template <bool flip, typename Place, typename Done>
  static inline __attribute__((always_inline)) void product(const int8_t* w, const Isa::Prepared* x,
                                                            int words, int tiles, LowRank noise,
                                                            const Scale& by, Place place,
                                                            Done done) {
    for (int i = 0; i < tiles; ++i, w += Isa::tile_bytes(words)) {
      Isa::template tile<flip>(w, x, words, noise, by, place(i));
      if (noise.a) noise.a += kTile * kPairs;
      if (noise.pairs) noise.pairs += kTile / 2 * kPairs;
      if (noise.node) noise.node += kTile * kPairs;
      done(i);
    }
  }

  // The sums of every tile, without noise, go to `take(index, acc)`.
  template <typename Take>
  static void sums(const int8_t* w, const Isa::Prepared* x, int words, int tiles, Take take) {
    for (int i = 0; i < tiles; ++i, w += Isa::tile_bytes(words)) {
      alignas(64) int32_t acc[kTile][kLanes];
      Isa::dot(w, x, words, acc);
      take(i, acc);
    }
  }
};
