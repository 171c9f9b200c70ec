// Products for votes, and of credit with the matrices that pass it on. Included inside each unit's
// namespace, after its Isa.
//
// `count` multiplies tiles of credit or of noise, [n/4][8 outputs][4], by a panel of inputs or of
// noise, [n/4][32 inputs]; `send` multiplies tiles of a matrix, packed by `transposed`, by a panel
// of credit [O/4][32]. Panels and tiles are closed once and used many times. `add` adds what
// `count` counts to votes, whose rows lie `stride` apart.

// votes[o][m] += acc[o][m].
static inline void add_sums(const int32_t (*acc)[kLanes], int outputs, int inputs, int32_t* votes,
                            int64_t stride) {
  for (int o = 0; o < outputs; ++o, votes += stride) {
    int32_t* __restrict to = votes;
    for (int m = 0; m < inputs; ++m) to[m] = wrapping_sum(to[m], acc[o][m]);
  }
}

struct PortableProducts {
  using Panel = Tiled::Prepared;

  static size_t panel_size(int words) { return Tiled::prepared_size(words); }
  static size_t tile_bytes(int words) { return PortableIsa::tile_bytes(words); }

  static void close_credit(const uint32_t* credit, int words, Panel* to) {
    Tiled::prepare(credit, words, to);
  }
  static void send(const int8_t* tile, const Panel* credit, int words, int32_t (*acc)[kLanes]) {
    Tiled::dot(tile, credit, words, acc);
  }

  static void close_tile(int8_t* tile, int words) { Tiled::bias(tile, words); }
  static void close_inputs(const uint32_t* columns, int words, Panel* to) {
    Tiled::prepare(columns, words, to);
  }
  static void count(const int8_t* tile, const Panel* inputs, int words, int32_t (*acc)[kLanes]) {
    Tiled::dot(tile, inputs, words, acc);
  }
  static void add(const int8_t* tile, const Panel* inputs, int words, int32_t* votes,
                  int64_t stride) {
    alignas(64) int32_t acc[kTile][kLanes];
    count(tile, inputs, words, acc);
    add_sums(acc, kTile, kLanes, votes, stride);
  }
};
