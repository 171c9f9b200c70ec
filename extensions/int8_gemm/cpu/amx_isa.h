// Products on matrix tiles: Tiles has eight of 16 rows of 64 bytes, and Elements what is done
// element by element, with the `piece` of an epilogue and the `diagonal` of sums.
//
// Weights are the A operand, activations the B operand: sixteen rows of a register, [K/4][32 lanes]
// of words, are two B tiles that lie side by side, and the sums come out as [16 outputs][16 lanes].
// Signed times signed: there is no bias, and registers are multiplied where they lie. Weights and
// noise are zero beyond K, so what a register has there does not matter.

constexpr int kStep = 64;   // inputs of a tile
constexpr int kGroup = 32;  // outputs that are multiplied at a time: two A tiles
constexpr size_t kTileBytes = 16 * kStep;

template <int n>
using Index = std::integral_constant<int, n>;

static inline int steps_of(int words) { return (4 * words + kStep - 1) / kStep; }
static inline int groups_of(int tiles) { return (tiles * kTile + kGroup - 1) / kGroup; }

template <typename Tiles, typename Elements>
struct AmxIsa : Elements {
  using Prepared = uint32_t;  // the register
  using Noise = int8_t;       // [K/64][16 pairs][64]

  static constexpr int kTilesOfGroup = kGroup / kTile;
  static constexpr bool kInPlace = true, kNoiseRows = true, kFlips = false, kDotsFirst = false;
  static constexpr size_t kPadding = (kStep / 4 - 1) * kLanes;

  struct Session {
    Session() { Tiles::open(); }
    ~Session() { Tiles::close(); }
    Session(const Session&) = delete;
  };
  static void resume() { Tiles::open_again(); }

  static size_t prepared_size(int) { return 0; }
  static size_t noise_size(int words) { return static_cast<size_t>(steps_of(words)) * kTileBytes; }
  static void prepare(const uint32_t*, int, Prepared*) {}     // kInPlace: never called
  static void prepare_noise(const uint32_t*, int, Noise*) {}  // keep_noise does it

  // [O/32][K/64] times two A tiles, [16][64] each; of odd groups from the last inputs to the first.
  static size_t weight_bytes(int rows, int cols) {
    size_t groups = static_cast<size_t>(groups_of(tiles_of(rows)));
    return groups * static_cast<size_t>(steps_of(words_of(cols))) * 2 * kTileBytes;
  }
  static void pack(const int8_t* src, int rows, int cols, int8_t* to) {
    const int steps = steps_of(words_of(cols));
    for (int o = 0; o < rows; ++o, src += cols)
      for (int s = 0; s < steps; ++s) {
        int count = cols - s * kStep < kStep ? cols - s * kStep : kStep;
        int group = o / kGroup, at = group % 2 ? steps - 1 - s : s;
        size_t row = (static_cast<size_t>(group) * steps + at) * kGroup + o % kGroup;
        __builtin_memcpy(to + row * kStep, src + s * kStep, static_cast<size_t>(count));
      }
  }

  // Row p of the 16 pairs' B, k values, where lane_dot finds it.
  static void keep_noise(const int8_t* row, int p, int k, int stride, Noise* to) {
    for (int s = 0; s < steps_of(words_of(k)); ++s) {
      const int8_t* from = row + s * kStep * stride;
      int8_t* __restrict at = to + s * kTileBytes + static_cast<size_t>(p) * kStep;
      int count = k - s * kStep < kStep ? k - s * kStep : kStep;
      if (count == kStep && stride == 1) {
        __builtin_memcpy(at, from, kStep);
        continue;
      }
      for (int i = 0; i < count; ++i) at[i] = from[i * stride];
      for (int i = count; i < kStep; ++i) at[i] = 0;
    }
  }

  // x.B of every lane: the diagonals of what sixteen outputs more would be.
  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    alignas(64) int32_t sums[2][kPairs][kPairs];
    Tiles::template zero<0>(), Tiles::template zero<1>();
    for (int s = 0; s < steps_of(words); ++s, x += kStep / 4 * kLanes, b += kTileBytes) {
      Tiles::template load<4>(b, kStep);
      Tiles::template load<6>(x, kLanes * 4);
      Tiles::template load<7>(x + kPairs, kLanes * 4);
      Tiles::template multiply<0, 4, 6>();
      Tiles::template multiply<1, 4, 7>();
    }
    Tiles::template store<0>(sums[0], kPairs * 4);
    Tiles::template store<1>(sums[1], kPairs * 4);
    for (int i = 0; i < 2; ++i) Elements::diagonal(sums[i], out + i * kPairs);
  }

  // kStep inputs of kGroup outputs and all lanes, added to tiles 0 to 3: of A rows lie `apart`
  // bytes from each other. `slot(Index<q>)` follows the q-th of four products.
  template <typename Slot>
  static inline __attribute__((always_inline)) void step(const int8_t* a, long apart,
                                                         const uint32_t* x, Slot slot) {
    Tiles::template load<4>(a, apart);
    Tiles::template load<6>(x, kLanes * 4);
    Tiles::template multiply<0, 4, 6>();
    slot(Index<0>{});
    Tiles::template load<7>(x + kPairs, kLanes * 4);
    Tiles::template multiply<1, 4, 7>();
    slot(Index<1>{});
    Tiles::template load<5>(a + 16 * apart, apart);
    Tiles::template multiply<2, 5, 6>();
    slot(Index<2>{});
    Tiles::template multiply<3, 5, 7>();
    slot(Index<3>{});
  }

  // kGroup outputs of all lanes; `slot(s, Index<q>)` follows the products of step s. back: from the
  // last inputs to the first, as those that the group before read last may still be in the first
  // cache.
  template <typename Slot>
  static inline __attribute__((always_inline)) void multiply(const int8_t* w, const Prepared* x,
                                                             int steps, bool back, Slot slot,
                                                             int32_t (*acc)[kLanes]) {
    long next = kStep / 4 * kLanes;
    if (back) x += (steps - 1) * next, next = -next;
    Tiles::template zero<0>(), Tiles::template zero<1>();
    Tiles::template zero<2>(), Tiles::template zero<3>();
    for (int s = 0; s < steps; ++s, w += 2 * kTileBytes, x += next)
      step(w, kStep, x, [&](auto q) __attribute__((always_inline)) { slot(s, q); });
    Tiles::template store<0>(acc[0], kLanes * 4);
    Tiles::template store<1>(acc[0] + kPairs, kLanes * 4);
    Tiles::template store<2>(acc[16], kLanes * 4);
    Tiles::template store<3>(acc[16] + kPairs, kLanes * 4);
  }

  static int64_t peak(int64_t rounds) {
    Tiles::open();
    Tiles::template zero<0>(), Tiles::template zero<1>();
    Tiles::template zero<2>(), Tiles::template zero<3>();
    Tiles::template zero<4>(), Tiles::template zero<5>();
    Tiles::template zero<6>(), Tiles::template zero<7>();
    for (int64_t i = 0; i < rounds; ++i) {
      Tiles::template multiply<0, 4, 6>();
      Tiles::template multiply<1, 4, 7>();
      Tiles::template multiply<2, 5, 6>();
      Tiles::template multiply<3, 5, 7>();
    }
    Tiles::close();
    return rounds * 4 * 16 * 16 * 64;
  }
};

// The ways to divide that there are, see Scale. high: by a power of two of at least 256.
struct Way {
  bool power, early, high;
};

// The kinds of noise, see LowRank: none, of rank 1 in 16 bits, on the nodes in 16 bits, or another.
enum class Noisy { none, pairs, nodes, other };
static inline Noisy kind_of(const LowRank& noise) {
  if (noise.fits) return Noisy::pairs;
  if (!noise.rank && noise.pairs) return Noisy::nodes;
  return noise.rank || noise.node ? Noisy::other : Noisy::none;
}

template <typename Isa>
struct AmxMatrix {
  // A call of what follows a tile, or null: that may be long, and would be inlined in every slot of
  // every Weave.
  struct Call {
    void* done;
    void (*of)(void* done, int tile);
  };

  // The epilogue of one group, in pieces of four outputs x 16 lanes, is woven between the products
  // of the next: tiles are multiplied beside the vector units. A tile has four pieces, and a group
  // four tiles, of which `share` are done in a step.
  template <Way way, Noisy kind, int share>
  struct Weave {
    // Copies, which no assembly can change: what pieces read of them stays in registers.
    const LowRank noise;
    const Scale by;
    const Places places;
    const Call call;
    int tiles, steps;                        // of all groups; of one
    const int32_t (*acc)[kLanes] = nullptr;  // the sums of the group before
    int first = 0, left = 0;                 // its tiles

    void begin(int group, const int32_t (*sums)[kLanes]) {
      first = group * Isa::kTilesOfGroup, acc = sums;
      left = tiles - first < Isa::kTilesOfGroup ? tiles - first : Isa::kTilesOfGroup;
    }

    template <int q>
    inline __attribute__((always_inline)) void slot(int step) {
      const int tile = share * step + q * share / 4;
      if (tile < left) pieces<q * share % 4, share>(tile);
    }

    void finish() {
      for (int tile = 0; tile < left; ++tile) pieces<0, 4>(tile);
    }

    template <int from, int count>
    inline __attribute__((always_inline)) void pieces(int tile) {
      const int i = first + tile;
      pieces<from, count>(acc + tile * kTile, i * kTile, places.at(i));
      if (from + count == 4 && call.of) call.of(call.done, i);
    }

    template <int j, int count>
    inline __attribute__((always_inline)) void pieces(const int32_t (*sums)[kLanes], int o,
                                                      uint32_t (*out)[kLanes]) {
      constexpr int w = j / 2, m = j % 2 * kPairs;
      Isa::template piece<way, kind>(sums + 4 * w, noise, o + 4 * w, m, by, out[w] + m);
      if constexpr (count > 1) pieces<j + 1, count - 1>(sums, o, out);
    }
  };

  template <bool, typename Done>
  static void product(const int8_t* w, const uint32_t* x, int words, int tiles,
                      const LowRank& noise, const Scale& by, const Places& places, Done done) {
    Call call{&done, [](void* of, int tile) { (*static_cast<Done*>(of))(tile); }};
    if (done.nothing()) call.of = nullptr;
    woven(w, x, words, tiles, noise, by, places, call);
  }

  static void woven(const int8_t* w, const uint32_t* x, int words, int tiles, const LowRank& noise,
                    const Scale& by, const Places& places, const Call& call) {
    const int steps = steps_of(words);
    auto by_kind = [&]<Way way, int share, Noisy kind>() {
      run(Weave<way, kind, share>{noise, by, places, call, tiles, steps}, w, x);
    };
    auto weave = [&]<Way way, int share>() {
      switch (kind_of(noise)) {
        case Noisy::none:
          return by_kind.template operator()<way, share, Noisy::none>();
        case Noisy::pairs:
          return by_kind.template operator()<way, share, Noisy::pairs>();
        case Noisy::nodes:
          return by_kind.template operator()<way, share, Noisy::nodes>();
        case Noisy::other:
          return by_kind.template operator()<way, share, Noisy::other>();
      }
    };
    // A group's four tiles are done within its steps, of which few inputs have less than four. Up
    // to 192 inputs roots are at most 13: all are early, and powers at most 8. Beyond, powers are
    // at least 16.
    static_assert(3 * kStep >= 13 * 13 && 3 * kStep < 14 * 14);
    constexpr Way other{false, true, false}, low{true, true, false};
    if (steps == 1)
      by.power ? weave.template operator()<low, 4>() : weave.template operator()<other, 4>();
    else if (steps < 4)
      by.power ? weave.template operator()<low, 2>() : weave.template operator()<other, 2>();
    else if (by.power)
      by.early ? weave.template operator()<Way{true, true, true}, 1>()
               : weave.template operator()<Way{true, false, true}, 1>();
    else
      by.early ? weave.template operator()<other, 1>()
               : weave.template operator()<Way{false, false, false}, 1>();
  }

  template <typename Work>
  static void run(Work work, const int8_t* w, const uint32_t* x) {
    alignas(64) int32_t acc[2][kGroup][kLanes];
    const int groups = groups_of(work.tiles);
    for (int g = 0; g < groups; ++g, w += static_cast<size_t>(work.steps) * 2 * kTileBytes) {
      Isa::multiply(
          w, x, work.steps, g % 2 == 1,
          [&](int step, auto q) __attribute__((always_inline)) { work.template slot<q>(step); },
          acc[g % 2]);
      work.begin(g, acc[g % 2]);
    }
    Work(work).finish();  // a copy: what a function is given is read from memory again
  }

  // The sums of every tile, without noise, go to `take(index, acc)`.
  template <typename Take>
  static void sums(const int8_t* w, const uint32_t* x, int words, int tiles, Take take) {
    const int steps = steps_of(words);
    for (int g = 0; g < groups_of(tiles); ++g, w += static_cast<size_t>(steps) * 2 * kTileBytes) {
      alignas(64) int32_t acc[kGroup][kLanes];
      Isa::multiply(w, x, steps, g % 2 == 1, [](int, auto) {}, acc);
      for (int i = 0; i < Isa::kTilesOfGroup && g * Isa::kTilesOfGroup + i < tiles; ++i)
        take(g * Isa::kTilesOfGroup + i, acc + i * kTile);
    }
  }
};

// Votes on tiles: credit or noise of outputs is the A operand, in rows an eighth of a tile's bytes
// apart once it is closed, and a panel of inputs is the B operand. Credit is sent as activations
// are multiplied: the matrix lies as the weights of a layer from its outputs to its inputs.
template <typename Tiles, typename Isa, typename Base>
struct AmxProducts : Base {
  using Panel = typename Base::Panel;  // of words

  static constexpr int kTiles = kGroup / kTile;  // what lies behind the last is multiplied in vain
  static constexpr int kWords = kStep / 4;

  // A row has room for its words and for one of the sums that others keep before a tile's words.
  static size_t tile_bytes(int words) {
    return kTile * ((4 * static_cast<size_t>(words + 1) + kStep - 1) / kStep * kStep);
  }
  static size_t panel_size(int words) {
    return panel_words(words) * kLanes * sizeof(uint32_t) / sizeof(Panel);
  }
  static size_t panel_words(int words) { return static_cast<size_t>(steps_of(words)) * kWords; }

  // Words [words][8], behind those sums, to rows, zero beyond `words`, so that what a panel has
  // there does not matter.
  static void close_tile(int8_t* tile, int words, size_t bytes) {
    const int stride = static_cast<int>(bytes / kTile / sizeof(uint32_t));
    alignas(64) uint32_t from[kMostVoteWords + kWords][kTile];
    const size_t row = sizeof from[0], count = static_cast<size_t>(words);
    __builtin_memcpy(from, tile + row, count * row);
    __builtin_memset(from[words], 0, (panel_words(words) - count) * row);
    for (int s = 0; s < steps_of(words); ++s) {
      const int8_t* src[kWords];
      for (int i = 0; i < kWords; ++i) src[i] = reinterpret_cast<int8_t*>(from[s * kWords + i]);
      Isa::transpose_words(src, kTile, reinterpret_cast<uint32_t*>(tile) + s * kWords, stride);
    }
  }

  static void close_inputs(const uint32_t* columns, int words, Panel* to) {
    __builtin_memcpy(to, columns, static_cast<size_t>(words) * kLanes * sizeof(uint32_t));
  }

  static size_t back_bytes(int rows, int cols) { return Isa::weight_bytes(cols, rows); }

  // Blocks of 16 x 16 are turned; what they have beyond the matrix is zero.
  static void pack_back(const int8_t* src, int rows, int cols, int8_t* to) {
    constexpr int kSide = Piece<16>::kColumns;
    const int steps = steps_of(words_of(rows));
    for (int o = 0; o < rows; o += kSide, src += kSide * static_cast<int64_t>(cols))
      for (int k = 0; k < cols; k += kSide) {
        alignas(64) int8_t turned[kSide * kSide];
        Isa::transpose(Piece<kSide>(src + k, cols, rows - o, cols - k).row, turned);
        const int group = k / kGroup, s = o / kStep, at = group % 2 ? steps - 1 - s : s;
        int8_t* row =
            to + ((static_cast<size_t>(group) * steps + at) * kGroup + k % kGroup) * kStep;
        for (int i = 0; i < kSide; ++i, row += kStep)
          __builtin_memcpy(row + o % kStep, turned + i * kSide, kSide);
      }
  }

  template <typename Take>
  static void send_all(const int8_t* w, const uint32_t* credit, int words, int tiles, Take take) {
    AmxMatrix<Isa>::sums(w, credit, words, tiles, take);
  }

  // What Base has is of tiles that are closed otherwise.
  static void count(const int8_t*, const Panel*, int, int32_t (*)[kLanes]) = delete;
  static void send(const int8_t*, const Panel*, int, int32_t (*)[kLanes]) = delete;
  static void add(const int8_t*, const Panel*, int, int32_t*, int64_t) = delete;

  // Votes of up to 32 columns, whose rows lie `stride` apart. Where all are there, sums begin as
  // what they are added to.
  static void add_panel(const int8_t* tiles, size_t bytes, const Panel* panel, int words, int rows,
                        int columns, int32_t* votes, int64_t stride) {
    const long by = static_cast<long>(bytes / kTile);
    const uint32_t* inputs = reinterpret_cast<const uint32_t*>(panel);
    for (int row = 0; row < rows; row += kGroup, tiles += kGroup * by, votes += kGroup * stride) {
      if (rows - row >= kGroup && columns == kLanes) {
        add_group(tiles, by, inputs, words, votes, static_cast<long>(stride));
        continue;
      }
      alignas(64) int32_t acc[kGroup][kLanes] = {};
      add_group(tiles, by, inputs, words, acc[0], kLanes);
      add_sums(acc, rows - row < kGroup ? rows - row : kGroup, columns, votes, stride);
    }
  }

  static void add_group(const int8_t* a, long by, const uint32_t* b, int words, int32_t* votes,
                        long stride) {
    int32_t* const at[4] = {votes, votes + 16, votes + 16 * stride, votes + 16 * stride + 16};
    const long apart = stride * static_cast<long>(sizeof *votes);
    Tiles::template load<0>(at[0], apart), Tiles::template load<1>(at[1], apart);
    Tiles::template load<2>(at[2], apart), Tiles::template load<3>(at[3], apart);
    for (int s = 0; s < steps_of(words); ++s, a += kStep, b += kWords * kLanes)
      Isa::step(a, by, b, [](auto) {});
    Tiles::template store<0>(at[0], apart), Tiles::template store<1>(at[1], apart);
    Tiles::template store<2>(at[2], apart), Tiles::template store<3>(at[3], apart);
  }
};
