// Products of credit: with the matrices that pass it on, and with the inputs that it votes with.
// Included inside each unit's namespace, after its Isa.
//
// `send` multiplies tiles of such a matrix, packed as weights are, by a panel of credit [O/4][32];
// `count` multiplies tiles of credit, [n/4][8 outputs][4], by a panel of inputs, [n/4][32 inputs].
// Panels and tiles are closed once and used many times.

struct PortableProducts {
  using Panel = Isa::Prepared;

  static size_t panel_size(int words) { return Isa::prepared_size(words); }
  static size_t tile_bytes(int words) {
    return kTile * sizeof(int32_t) + static_cast<size_t>(words) * kTile * 4;
  }

  static void close_credit(const uint32_t* credit, int words, Panel* to) {
    Isa::prepare(credit, words, to);
  }
  static void send(const int8_t* tile, const Panel* credit, int words, int32_t (*acc)[kLanes]) {
    Isa::dot(tile, credit, words, acc);
  }

  static void close_tile(int8_t* tile, int words) { Isa::bias(tile, words); }
  static void close_inputs(const uint32_t* columns, int words, Panel* to) {
    Isa::prepare(columns, words, to);
  }
  static void count(const int8_t* tile, const Panel* inputs, int words, int32_t (*acc)[kLanes]) {
    Isa::dot(tile, inputs, words, acc);
  }

  // Whether the forward pass has a product of its own, in place of Isa::tile.
  static constexpr bool kForward = false;

  static size_t lists_size(int) { return 0; }
  static void close_weights(const int8_t*, int, int, int32_t*) {}
  static void multiply(const int8_t* w, const int32_t*, const Panel* x, int words,
                       int32_t (*acc)[kLanes]) {
    Isa::dot(w, x, words, acc);
  }
};
