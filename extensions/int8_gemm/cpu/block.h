// The block interpreter: 32 members run all T tokens through the whole program.
//
// A register of K bytes is kept as words [K/4][32 lanes] of four neighbouring bytes, so elementwise
// work is layout-free, a tile of eight outputs makes two words per lane, and a word is one operand
// of a dot-product instruction. Sums wrap: they are formed in uint32_t. All loops over lanes are
// meant for the vectoriser.

struct Block : Layers {
  using Layers::Layers;

  // ---- the score -----------------------------------------------------------------------------

  // Head and log-likelihood in one pass: logits are summed tile by tile, and of the last
  // kLogitTiles tiles they are kept, where targets are looked up.
  void score(const Op& op, int t) {
    alignas(64) uint64_t total[kLanes] = {};
    alignas(64) uint32_t sum[kLanes] = {};
    alignas(64) int32_t target[kLanes], hit[kLanes] = {};
    const Plan& plan = job.plan;
    for (int m = 0; m < kLanes; ++m) target[m] = token(job.targets, m, t);
    int rows = plan.leaves[op.leaf].rows, last = tiles_of(rows) - 1;
    const int fitting = (1 << (16 - plan.score_bits)) / kTile - 1;
    Offers offers{};
    const uint32_t* draws = job.readout ? job.draws + t : nullptr;
    for (int p = 0; draws && p < kPairs; ++p)
      offers.seed[p] = draws[pair(p) * job.tokens_per_member];
    auto count = [&](int i) { return i < last ? kTile : rows - last * kTile; };
    auto weigh = [&](int i) __attribute__((always_inline)) {
      auto& words = logits[i % kLogitTiles];
      if (job.totals)
        Isa::exact_sum(words, count(i), plan, total);
      else if (job.readout)
        Isa::template offer<Isa>(offers, words, i, count(i), plan, sum);
      else
        Isa::exp2_sum(words, count(i), plan, sum);
      // 4096 terms below 2^20 fit 32 bits, or 256 below 2^24.
      if ((i & fitting) == fitting || i == last)
        for (int m = 0; m < kLanes; ++m) total[m] += sum[m], sum[m] = 0;
    };
    // Tiles are weighed late, while the products of the next one go on.
    const int late = job.readout ? Isa::kOffered : 1;
    product(op, t, {logits[0], kLogitTiles - 1}, [&](int i) __attribute__((always_inline)) {
      if (i % late == 0)
        for (int j = i - late; i && j < i; ++j) weigh(j);
      if (i % kLogitTiles == kLogitTiles - 1 || i == last)
        find_targets(target, i - i % kLogitTiles, hit);
      if (job.logits) keep_logits(logits[i % kLogitTiles], t, i * kTile, count(i));
    });
    for (int j = last / late * late; j <= last; ++j) weigh(j);
    if (job.totals) return keep_likelihoods(total, hit, t);
    uint32_t clipped = 0;  // pairs whose target has the highest possible logit
    for (int p = 0; p < kPairs; ++p) clipped |= static_cast<uint32_t>(hit[p] == 255) << p;
    alignas(64) int32_t logs[kLanes];
    log2_scores(total, logs);
    for (int m = 0; m < kLanes; ++m) hit[m] = (hit[m] << (plan.score_bits - 4)) - logs[m];
    for (int m = 0; job.scores && m < kLanes; ++m)
      if (member(m) < job.members)
        job.scores[member(m) * job.tokens_per_member + t] = static_cast<int16_t>(hit[m]);
    if (!job.credit_kind) return;
    if (job.group) tape.compare(t, hit);
    for (int p = 0; !job.values && !job.group && p < kPairs; ++p)
      tape.score_difference[t][p] = hit[p] - hit[p + kPairs];
    if (!job.readout) return;
    alignas(64) int32_t drawn[kPairs];
    Isa::drawn(offers, plan, drawn);
    read(op, target, clipped, drawn);
  }

  // The logits + 128 of the lanes whose targets are among the tiles from `first` on.
  void find_targets(const int32_t* target, int first, int32_t* hit) const {
    const int begin = first * kTile;
    uint32_t here = 0;
    for (int m = 0; m < kLanes; ++m) {
      const uint32_t o = static_cast<uint32_t>(target[m] - begin);
      here |= static_cast<uint32_t>(o < kLogitTiles * kTile) << m;
    }
    for (; here; here &= here - 1) {
      const int m = __builtin_ctz(here), o = target[m] - begin;
      hit[m] = byte_at(logits[o / kTile][o % kTile / 4][m], o % 4) + 128;
    }
  }

  // The head's inputs are added to the target's row of the readout and subtracted from that of the
  // token drawn. At the limit of the clip the target's logit no longer follows its row.
  void read(const Op& op, const int32_t* target, uint32_t clipped, const int32_t* drawn) {
    const int cols = job.plan.leaves[op.leaf].cols, stride = words_of(cols) * 4;
    int8_t* rows[kPairs];
    for (int p = 0; p < kPairs; ++p) rows[p] = tape.rows + p * stride;
    scatter(inputs(op), cols, rows, kPairs);
    constexpr uint8_t kFlip = Isa::kFlips ? 128 : 0;
    for (int p = 0; p < kPairs && member(p) < job.members; ++p) {
      if (drawn[p] == target[p]) continue;
      const int8_t* __restrict x = rows[p];
      int32_t* __restrict to = job.readout + static_cast<int64_t>(target[p]) * cols;
      int32_t* __restrict from = job.readout + static_cast<int64_t>(drawn[p]) * cols;
      auto input = [&](int k) { return static_cast<int8_t>(static_cast<uint8_t>(x[k]) ^ kFlip); };
      if (clipped >> p & 1)
        for (int k = 0; k < cols; ++k) from[k] = wrapping_sum(from[k], -input(k));
      else
        for (int k = 0; k < cols; ++k) {
          const int32_t v = input(k);
          to[k] = wrapping_sum(to[k], v), from[k] = wrapping_sum(from[k], -v);
        }
    }
  }

  // floor(S log2(n / S)), S = 2^score_bits: the fraction is the number of breakpoints passed. A few
  // are passed one after another by all lanes, many are halved.
  void log2_scores(const uint64_t* n, int32_t* out) const {
    const uint64_t* breakpoints = job.plan.log2_breakpoints;
    const int bits = job.plan.score_bits, last = (1 << bits) - 1;
    alignas(64) uint64_t top[kLanes], fraction[kLanes] = {};
    for (int m = 0; m < kLanes; ++m) {
      const int zeros = __builtin_clzll(n[m]);
      top[m] = n[m] << zeros;
      out[m] = (63 - zeros - bits) << bits;
    }
    if (last <= 16)
      for (int i = 0; i < last; ++i) {
        const uint64_t from = breakpoints[i];
        for (int m = 0; m < kLanes; ++m) fraction[m] += top[m] >= from;
      }
    else
      for (int m = 0; m < kLanes; ++m)
        for (int step = 1 << bits >> 1; step; step >>= 1)
          if (top[m] >= breakpoints[fraction[m] + step - 1]) fraction[m] += step;
    for (int m = 0; m < kLanes; ++m) out[m] += static_cast<int32_t>(fraction[m]);
  }

  void keep_likelihoods(const uint64_t* total, const int32_t* hit, int t) const {
    for (int m = 0; m < kLanes; ++m) {
      if (member(m) >= job.members) continue;
      int64_t at = member(m) * job.tokens_per_member + t;
      job.totals[at] = total[m], job.hits[at] = static_cast<int8_t>(hit[m] - 128);
    }
  }

  void keep_logits(uint32_t (*words)[kLanes], int t, int first, int count) {
    for (int m = 0; m < kLanes; ++m) {
      if (member(m) >= job.members) continue;
      int8_t* dst = job.logits + (member(m) * job.tokens_per_member + t) * job.plan.vocabulary;
      for (int o = 0; o < count; ++o)
        dst[first + o] = static_cast<int8_t>(byte_at(words[o / 4][m], o % 4));
    }
  }

  void norm(const Op& op, int n, int t) {
    Isa::norm(registers[op.in[0]], vector(op, n, t), n, written(op), flipped(op));
  }

  // A kind without a case is a compiler's error (-Werror=switch), so there is no default.
  void run(const Op& op, int t) {
    int n = stage->registers[op.out], count = words_of(n) * 4 * kLanes;
    int8_t* y = bytes(op.out);  // may be an input
    const int8_t* in[3];
    for (int i = 0; i < 3; ++i) in[i] = op.in[i] >= 0 ? bytes(op.in[i]) : nullptr;
    switch (op.kind) {
      case OpKind::embed:
        embed(op, t);
        break;
      case OpKind::linear:
        linear(op, t);
        break;
      case OpKind::norm:
        norm(op, n, t);
        break;
      case OpKind::add:
        Isa::add(in[0], in[1], count, y);
        break;
      case OpKind::add_bias:
        Isa::add_bias(in[0], in[1], vector(op, n, t), count, y);
        break;
      case OpKind::lookup:
        lookup(in[0], job.plan.tables[op.table], count, y);
        break;
      case OpKind::forget:
        Isa::forget(in[0], in[1], count, written(op), flipped(op));
        break;
      case OpKind::mix:
        Isa::mix(in[0], in[1], in[2], count, y,
                 flipped(op) ? reinterpret_cast<int8_t*>(prepared[op.out]) : nullptr);
        break;
      case OpKind::input:
        input(op, n, t);
        break;
      case OpKind::features:
        features.run(op, t, registers[op.out]);
        row_noise(op, t, words_of(n));
        break;
      case OpKind::bias:
        Isa::add(in[0], vector(op, n, t), count, y);
        break;
      case OpKind::relu:
        at_least(in[0], 0, count, y);
        break;
      case OpKind::concat:
        concat(registers[op.in[0]], stage->registers[op.in[0]], registers[op.in[1]],
               stage->registers[op.in[1]], registers[op.out]);
        break;
      // Those that follow write no register.
      case OpKind::score:
        return job.outputs ? void() : score(op, t);
      case OpKind::output:
        return output(op, t);
      case OpKind::sums:
        return sums(op, t);
    }
    ready[op.out] = flipped(op);
  }

  static void lookup(const int8_t* x, const int8_t* table, int count, int8_t* y) {
    for (int i = 0; i < count; ++i) y[i] = table[static_cast<uint8_t>(x[i])];
  }

  // Some tokens at a time, in them part by part, and there token by token: a part's weights and
  // noise and the activations of these tokens stay in cache. Without memory (base null) nothing is
  // computed: the arena only learns how much it needs.
  void run_all() {
    if (job.world) return run_world();
    int block_tokens = clamp(job.block_tokens, 1, job.tokens_per_member);
    if (nodes()) take_swapped();
    size_t step = static_cast<size_t>(tiles_of(job.plan.width)) * (kTile / 4) * kLanes;
    x = arena.take<uint32_t>(step * block_tokens + Isa::kPadding);
    xb = arena.take<int32_t[kLanes]>(job.rank);
    size_t mark = arena.used, peak = mark;
    if (arena.base) begin_asking(job.plan.parts, 0), end_asking();
    for (int first = 0; first < job.tokens_per_member; first += block_tokens) {
      for (int i = 0; i < job.plan.part_count; ++i) {
        stage = &job.plan.parts[i];
        arena.used = mark;
        open_stage();
        peak = arena.used > peak ? arena.used : peak;
        if (!arena.base) continue;
        const int last = clamp(first + block_tokens, 0, job.tokens_per_member);
        run_part(first, last, step, i + 1 < job.plan.part_count ? stage + 1 : nullptr);
      }
    }
    arena.used = peak;
    if (job.credit_kind && arena.base) tape.mark(), tape.close();
  }

  // What a stage has while another one runs.
  struct StageContext {
    uint32_t* registers[kRegisters];
    Isa::Prepared* prepared[kRegisters];
    LeafNoise noise[kOps];
  };

  // Members that meet a world: all stages row by row, each with its noise laid out once.
  void run_world() {
    int stages = job.plan.stage_count;
    if (nodes()) take_swapped();
    size_t size = static_cast<size_t>(tiles_of(job.plan.width)) * (kTile / 4) * kLanes;
    x = arena.take<uint32_t>(size + Isa::kPadding);
    xb = arena.take<int32_t[kLanes]>(job.rank);
    StageContext* contexts = arena.take<StageContext>(static_cast<size_t>(stages));
    for (int i = 0; i < stages; ++i) {
      stage = &job.plan.stages[i];
      open_stage();
      if (!arena.base) continue;
      load_state(job.state_in);
      if (stages > 1) keep(contexts[i]);
    }
    if (!arena.base) return;
    world.begin();
    for (int t = 0; t < job.tokens_per_member; ++t) {
      world.observe(t);
      Isa::resume();
      for (int i = 0; i < stages; ++i) {
        if (stages > 1) resume(i, contexts[i]);
        run_row(t);
      }
      world.act(t);
    }
    for (int i = 0; i < stages; ++i) {
      if (stages > 1) resume(i, contexts[i]);
      store_state();
    }
    world.settle(tape);
    if (job.credit_kind) tape.close();
  }

  void keep(StageContext& to) const {
    __builtin_memcpy(to.registers, registers, sizeof registers);
    __builtin_memcpy(to.prepared, prepared, sizeof prepared);
    __builtin_memcpy(to.noise, noise, sizeof noise);
  }

  void resume(int i, const StageContext& from) {
    stage = &job.plan.stages[i];
    __builtin_memcpy(registers, from.registers, sizeof registers);
    __builtin_memcpy(prepared, from.prepared, sizeof prepared);
    __builtin_memcpy(noise, from.noise, sizeof noise);
  }

  void run_row(int t) {
    registers[0] = x;
    for (int j = 0; j < stage->register_count; ++j) ready[j] = false;
    uint32_t keep[kLanes];
    if (stage->state >= 0 && !world.going_on(t, keep)) clear_state(keep);
    for (int j = 0; j < stage->op_count; j += 1 + stage->ops[j].chain) run(stage->ops[j], t);
  }

  // Of the widest vector, embedding's row or features.
  void take_swapped() {
    int widest = features.widest > job.plan.width ? features.widest : job.plan.width;
    for (int i = 0; i < job.plan.leaf_count; ++i) {
      const Leaf& leaf = job.plan.leaves[i];
      if (leaf.cols == 0 && leaf.rows > widest) widest = leaf.rows;
    }
    swapped = arena.take<uint32_t>(static_cast<size_t>(words_of(widest)) * kLanes);
  }

  // Tokens first .. last - 1. The noise of the part that follows is asked for with the tiles of the
  // last token: sooner, this part's weights could push it out of the cache again.
  void run_part(int first, int last, size_t step, const Stage* next) {
    load_state(first ? job.state_out : job.state_in);
    for (int t = first; t < last; ++t) {
      registers[0] = x + step * (t - first);
      // The state stays as it was left.
      for (int j = 0; j < stage->register_count; ++j)
        if (j != 1 || t == first) ready[j] = false;
      restart(t);
      if (t + 1 == last) begin_asking(next, tiles());
      for (int j = 0; j < stage->op_count; j += 1 + stage->ops[j].chain) run(stage->ops[j], t);
    }
    end_asking();
    store_state();
  }
};

static size_t block_bytes(const Job& job) {
  Block sizing(job, 0, nullptr);
  sizing.run_all();
  return sizing.arena.used;
}

static void block(const Job& job, int64_t index, void* scratch) {
  [[maybe_unused]] const Isa::Session session;
  Block(job, index, scratch).run_all();
}
