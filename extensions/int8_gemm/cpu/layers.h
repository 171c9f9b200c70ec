// The operations of one stage on a block's registers, but for the score, and the recurrent state.

constexpr int kLogitTiles = 32;  // of which a block keeps the logits, see Places
static_assert((kLogitTiles & (kLogitTiles - 1)) == 0);

struct Layers : Members {
  Arena arena;
  uint32_t* x;  // [T][D/4][32]: activations passed between stages
  uint32_t* registers[kRegisters];
  Isa::Prepared* prepared[kRegisters];
  bool ready[kRegisters];
  const Stage* stage;
  int64_t streams[kLanes];  // where each member's tokens begin
  LeafNoise noise[kOps];    // of the stage's operations
  Tape tape;
  Features features;
  World world;
  bool flips;         // whether what products alone read is written as they take it
  uint32_t* swapped;  // a vector or a row of noise as one token has it
  alignas(64) uint32_t minus[kLanes], twice[kLanes];
  int32_t (*xb)[kLanes];  // [r]: signed x.B
  alignas(64) uint32_t logits[kLogitTiles][kTile / 4][kLanes];

  Layers(const Job& j, int64_t block, void* scratch)
      : Members{j, block * kLanes},
        arena{static_cast<char*>(scratch)},
        tape(*this, arena),
        features(*this, arena),
        world(*this, arena),
        flips(Isa::kFlips) {
    for (int m = 0; m < kLanes; ++m) streams[m] = stream(m);
  }

  int32_t token(const int32_t* of, int lane, int t) const { return of[streams[lane] + t]; }

  LeafNoise& of(const Op& op) { return noise[&op - stage->ops]; }

  // ---- a stage -------------------------------------------------------------------------------

  // Each lane's word of every row, or its pair's other one where its noise is turned at token t.
  const uint32_t* turn(const Op& op, const uint32_t* from, int words, int t) {
    turned(op.leaf, t, minus);
    for (int w = 0; w < words; ++w, from += kLanes)
      for (int p = 0; p < kPairs; ++p) {
        uint32_t change = from[p] ^ from[p + kPairs];
        swapped[w * kLanes + p] = from[p] ^ (change & minus[p]);
        swapped[w * kLanes + p + kPairs] = from[p + kPairs] ^ (change & minus[p + kPairs]);
      }
    return swapped;
  }

  const int8_t* vector(const Op& op, int n, int t) {
    if (!nodes() || silent(op)) return of(op).vector;
    const uint32_t* plain = reinterpret_cast<const uint32_t*>(of(op).vector);
    return reinterpret_cast<const int8_t*>(turn(op, plain, words_of(n), t));
  }

  // A part's noise is asked for while the one before it runs its last token, some slices with every
  // tile, so that it is in the cache when the part opens: its slices lie anywhere in the table, and
  // each would be waited for in turn.
  struct Ahead {
    const Stage* of;
    int tiles, tile, slices;  // of the last token, and those that are done; asked for
  } ahead{};

  void begin_asking(const Stage* next, int tiles) {
    ahead = {job.starts ? next : nullptr, tiles, 0, 0};
  }

  // Of one token of this part, as `product` counts them.
  int tiles() const {
    int sum = 0;
    for (int j = 0; j < stage->op_count; ++j) {
      const Op& op = stage->ops[j];
      if (op.kind == OpKind::linear || op.kind == OpKind::score)
        sum += tiles_of(job.plan.leaves[op.leaf].rows);
    }
    return sum;
  }

  void ask(int tiles) {
    ahead.tile += tiles;
    const int all = ahead.of->op_count * kPairs;
    const int upto = ahead.tile < ahead.tiles ? all * ahead.tile / ahead.tiles : all;
    for (; ahead.slices < upto; ++ahead.slices) {
      const Op& op = ahead.of->ops[ahead.slices / kPairs];
      if (op.leaf < 0 || op.kind == OpKind::features || silent(op)) continue;
      const auto [at, count] = noise_read(op);
      prefetch(slice(op.leaf, ahead.slices % kPairs) + at, count);
    }
  }

  void end_asking() {
    if (ahead.of) ask(ahead.tiles);
    ahead.of = nullptr;
  }

  struct Bytes {
    int64_t first, count;
  };

  // What an operation reads of a pair's slice.
  Bytes noise_read(const Op& op) const {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    const int64_t all = slice_bytes(leaf, job.rank), inputs = int64_t{leaf.cols} * job.rank;
    const bool few = leaf.rows > 64 * job.tokens_per_member;  // an embedding's rows that are read
    if (op.kind == OpKind::embed) return {0, nodes() || few ? inputs : all};
    if (nodes() && leaf.cols) return {inputs, all - inputs};
    return {0, all};
  }

  void open_stage() {
    for (int i = 0; i < stage->register_count; ++i) {
      int words = tiles_of(stage->registers[i]) * (kTile / 4);
      size_t size = static_cast<size_t>(words) * kLanes + Isa::kPadding;
      if (i > 0) registers[i] = arena.take<uint32_t>(size);
      prepared[i] = arena.take<Isa::Prepared>(Isa::prepared_size(words));
    }
    for (int i = 0; i < stage->op_count; ++i)
      if (stage->ops[i].leaf >= 0) noise[i] = Loader(*this, arena).load(stage->ops[i]);
  }

  // ---- recurrent state -----------------------------------------------------------------------

  void load_state(const int8_t* from) {
    if (stage->state < 0) return;
    const int8_t* src[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      src[lane] = from + clamped(lane) * job.plan.state_size + stage->state;
    gather(src, job.plan.width, registers[1]);
  }

  void store_state() {
    if (stage->state < 0) return;
    scatter_to(job.state_out + stage->state, job.plan.state_size, job.plan.width, registers[1]);
  }

  // Words to every member's row, which lie `stride` bytes apart.
  void scatter_to(int8_t* to, int64_t stride, int n, const uint32_t* words) {
    int8_t* dst[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      dst[lane] = member(lane) < job.members ? to + member(lane) * stride : nullptr;
    scatter(words, n, dst);
  }

  // The document mark 0 zeroes a member's state.
  void restart(int t) {
    if (stage->state < 0) return;
    uint32_t keep[kLanes], all = ~0u;
    for (int m = 0; m < kLanes; ++m) all &= keep[m] = token(job.tokens, m, t) ? ~0u : 0u;
    if (!all) clear_state(keep);
  }

  void clear_state(const uint32_t* keep) {
    for (int w = 0; w < words_of(job.plan.width); ++w)
      for (int m = 0; m < kLanes; ++m) registers[1][w * kLanes + m] &= keep[m];
    ready[1] = false;
  }

  // ---- operations ----------------------------------------------------------------------------

  int8_t* bytes(int reg) { return reinterpret_cast<int8_t*>(registers[reg]); }

  // The operation's first input for a product, which never replaces it: see Program's check and
  // chain.
  const Isa::Prepared* prepare(const Op& op, int n) {
    const int reg = op.in[0];
    if (Isa::kInPlace) return reinterpret_cast<const Isa::Prepared*>(registers[reg]);
    if (!ready[reg]) Isa::prepare(registers[reg], words_of(n), prepared[reg]);
    ready[reg] = true;
    return prepared[reg];
  }

  // What an operation multiplies, as Isa::credit takes it.
  const uint32_t* inputs(const Op& op) const {
    const int reg = op.in[0];
    return Isa::kFlips ? reinterpret_cast<const uint32_t*>(prepared[reg]) : registers[reg];
  }

  // Whether an operation writes what `prepare` would make of its result, and where.
  bool flipped(const Op& op) const { return flips && op.multiplied; }
  int8_t* written(const Op& op) {
    return flipped(op) ? reinterpret_cast<int8_t*>(prepared[op.out]) : bytes(op.out);
  }

  void embed(const Op& op, int t) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int words = words_of(leaf.cols), r = rank();
    const int8_t* row[kLanes];
    for (int m = 0; m < kLanes; ++m)
      row[m] =
          job.weights + leaf.offset + static_cast<int64_t>(token(job.tokens, m, t)) * words * 4;
    Isa::transpose_words(row, words, registers[op.out], kLanes);
    Isa::transpose_words(row + kPairs, words, registers[op.out] + kPairs, kLanes);
    if (r) embed_noise(op, t, words);
    row_noise(op, t, words);
  }

  // Adds noise that is on the outputs of an embedding or of features.
  void row_noise(const Op& op, int t, int words) {
    if (!nodes() || silent(op)) return;
    const int8_t* noise = reinterpret_cast<const int8_t*>(turn(op, of(op).row, words, t));
    Isa::add(bytes(op.out), noise, words * 4 * kLanes, bytes(op.out));
  }

  void input(const Op& op, int n, int t) {
    const int8_t* src[kLanes];
    for (int m = 0; m < kLanes; ++m)
      src[m] = job.world ? world.row(m) : job.inputs + (clamped(m) * job.tokens_per_member + t) * n;
    gather(src, n, registers[op.out]);
    at_least(bytes(op.out), -127, words_of(n) * 4 * kLanes, bytes(op.out));
  }

  void embed_noise(const Op& op, int t, int words) {
    int r = job.rank, d = job.plan.leaves[op.leaf].cols;
    for (int p = 0; p < kPairs; ++p) {
      const int8_t* a = of(op).slices[p] + r * d;
      const int64_t plus = token(job.tokens, p, t), minus = token(job.tokens, p + kPairs, t);
      for (int j = 0; j < r; ++j) {
        xb[j][p] = a[plus * r + j];
        xb[j][p + kPairs] = -a[minus * r + j];
      }
    }
    Isa::embed_noise(xb, of(op).raw, r, words, job.shift, registers[op.out]);
  }

  // The noise of one linear leaf at token t, for its first tile.
  inline __attribute__((always_inline)) LowRank open(const Op& op, const Isa::Prepared* x, int t) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int words = words_of(leaf.cols), r = rank(), tiles = tiles_of(leaf.rows);
    LowRank noise{xb,    of(op).a,     static_cast<size_t>(tiles) * kTile * kPairs,
                  r,     job.shift,    nullptr,
                  minus, of(op).pairs, twice,
                  false, nullptr,      nullptr};
    if (job.credit == Credit::weights && credited(op.leaf, CreditKind::inputs))
      noise.projection = tape.projection[op.leaf] + t * kPairs;
    if (Isa::kDotsFirst && r && noise.pairs) {
      noise.b = of(op).b;
    } else if (r) {
      const size_t one = Isa::noise_size(words);
      for (int j = 0; j < r; ++j)
        Isa::lane_dot(x, of(op).b + one * j, words, xb[j]), noise.found(j);
      if (noise.pairs) noise.fits = Isa::twice(noise, of(op).by);
    }
    if (nodes() && !silent(op)) {
      noise.node = of(op).node;
      turned(op.leaf, t, minus);
    }
    return noise;
  }

  // Inputs of a leaf that credit needs, to be kept with so many tiles.
  Tape::Keeping keeping(const Op& op, int t, int tiles) const {
    if (!credited(op.leaf, CreditKind::inputs)) return {};
    return tape.keeping(op.leaf, t, inputs(op), words_of(job.plan.leaves[op.leaf].cols), tiles);
  }

  // Nothing follows.
  struct None {
    void operator()(int) const {}
  };

  // What follows each tile of a product: `done(index)`, beside what may be due for any.
  template <typename Done>
  struct After {
    Layers& layers;
    Tape::Keeping inputs;
    Done done;

    bool nothing() const { return std::is_same_v<Done, None> && !layers.ahead.of && !inputs.words; }
    inline __attribute__((always_inline)) void operator()(int i) {
      if (layers.ahead.of) layers.ask(1);
      inputs.keep();
      done(i);
    }
  };

  // One linear leaf, tile by tile into their places, as `prepare` makes them if flip; `done(index)`
  // follows each.
  template <bool flip = false, typename Done>
  void product(const Op& op, int t, const Places& places, Done done) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    const Isa::Prepared* x = prepare(op, leaf.cols);
    const int tiles = tiles_of(leaf.rows);
    Matrix::template product<flip>(job.weights + leaf.offset, x, words_of(leaf.cols), tiles,
                                   open(op, x, t), of(op).by, places,
                                   After<Done>{*this, keeping(op, t, tiles), done});
  }

  // Where `size` bytes of an output go, by lane: to the caller or the world, or nowhere. Whether
  // they go anywhere.
  bool output_rows(const Op& op, int t, int64_t size, int8_t** to) const {
    if (!job.outputs && !(job.world && op.place == 0)) return false;
    for (int m = 0; m < kLanes; ++m) {
      int8_t* row = job.world ? world.output(m)
                              : static_cast<int8_t*>(job.outputs[op.place]) +
                                    (member(m) * job.tokens_per_member + t) * size;
      to[m] = member(m) < job.members ? row : nullptr;
    }
    return true;
  }

  // The same, undivided and unclipped, to who takes it.
  void sums(const Op& op, int t) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int8_t* to[kLanes];
    bool give = output_rows(op, t, int64_t{leaf.rows} * 4, to);
    if (!give && !job.credit_kind) return;
    const Isa::Prepared* x = prepare(op, leaf.cols);
    LowRank noise = open(op, x, t);
    keeping(op, t, 1).keep();
    if (!give) return;
    auto take = [&](int i, int32_t (*acc)[kLanes]) {
      PortableIsa::add_noise(acc, noise);
      if (noise.a) noise.a += kTile * kPairs;
      if (noise.node) noise.node += kTile * kPairs;
      int first = i * kTile, count = leaf.rows - first < kTile ? leaf.rows - first : kTile;
      for (int m = 0; m < kLanes; ++m) {
        if (!to[m]) continue;
        int32_t* values = reinterpret_cast<int32_t*>(to[m]) + first;
        for (int o = 0; o < count; ++o) values[o] = acc[o][m];
      }
    };
    Matrix::sums(job.weights + leaf.offset, x, words_of(leaf.cols), tiles_of(leaf.rows), take);
  }

  void output(const Op& op, int t) {
    int8_t* to[kLanes];
    int n = stage->registers[op.in[0]];
    if (output_rows(op, t, n, to)) scatter(registers[op.in[0]], n, to);
  }

  void linear(const Op& op, int t) {
    if (op.chain) return linear_chain(op, t);
    const Places places{reinterpret_cast<Places::Words>(written(op))};
    flipped(op) ? product<Isa::kFlips>(op, t, places, None{}) : product(op, t, places, None{});
  }

  // The same with the bias and the relu that follow it.
  void linear_chain(const Op& op, int t) {
    using Words = Places::Words;
    const Op &next = (&op)[1], &last = (&op)[op.chain];
    int n = stage->registers[op.out], words = words_of(n);
    const int8_t* bias = next.kind == OpKind::bias ? vector(next, n, t) : nullptr;
    bool relu = last.kind == OpKind::relu;
    Words out = reinterpret_cast<Words>(registers[last.out]);
    product(op, t, {out}, [&](int i) {
      int first = i * (kTile / 4), count = words - first < kTile / 4 ? 1 : kTile / 4;
      int8_t* y = reinterpret_cast<int8_t*>(out[first]);
      if (bias) Isa::add(y, bias + first * 4 * kLanes, count * 4 * kLanes, y);
      if (relu) at_least(y, 0, count * 4 * kLanes, y);
    });
    ready[last.out] = false;
  }
};
