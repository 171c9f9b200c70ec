// What a block of members without noise gave, row by row.

constexpr uint32_t kNextLeaf = 0x9E3779B9u;  // from a leaf's random words to the next one's
constexpr int kErrorScale = 14;              // fraction bits of credit, in units of the error
constexpr int kVoteTokens = 32;              // tokens whose votes are counted at a time
static_assert(kVoteTokens * (kLanes / 4) <= kMostVoteWords);

struct LearnTape : Block {
  // Where a row of a stage's tape has what, in words: the registers x and s as it began, and the
  // results of its operations.
  struct Form {
    size_t x, s, of[kOps], size;
  };

  const LearnJob& learn;
  LearnLists& lists;
  const uint32_t* row = nullptr;  // of the tape
  Form form{};
  int number = 0;           // of the stage
  size_t step = 0;          // words of x at one token
  uint32_t** tapes;         // [stages]: [T] rows
  uint32_t* credits[kOps];  // of a matrix's operation: int8 credit, words [T][O/4][32]
  bool voted[kOps];         // whether it was credited
  int32_t* credit[kRegisters];
  bool has[kRegisters];
  int32_t* handed;  // [T]: credit of x, from the stage after this one
  bool any_handed = false;
  int32_t* c;         // credit of one result
  int8_t* small;      // the same as int8; logits
  uint32_t* scratch;  // of the head's powers
  Products::Panel* panel;
  uint32_t* columns;                  // [n/4][32] words of four tokens' inputs
  size_t vote_tile;                   // bytes of
  int8_t* tiles_a;                    // tiles of eight outputs' credit, in the place of weights
  alignas(64) uint32_t places[kRow];  // random word of a lane's token, plus 0 to 3

  LearnTape(const LearnJob& l, LearnLists& shown, int64_t block, void* scratch)
      : Block(l.job, block, scratch), learn(l), lists(shown) {
    flips = false;
  }

  int T() const { return job.tokens_per_member; }

  // ---- memory --------------------------------------------------------------------------------

  static size_t row_words(int n) { return static_cast<size_t>(tiles_of(n)) * (kTile / 4) * kLanes; }

  static Form form_of(const Stage& s) {
    Form f{};
    f.x = f.size, f.size += row_words(s.registers[0]);
    f.s = f.size, f.size += s.state < 0 ? 0 : row_words(s.registers[1]);
    for (int j = 0; j < s.op_count; ++j) f.of[j] = f.size, f.size += result_words(s, s.ops[j]);
    return f;
  }

  static size_t result_words(const Stage& s, const Op& op) {
    return writes(op.kind) ? row_words(s.registers[op.out]) : 0;
  }

  // The outputs of the widest matrix that multiplies, and the values of the widest register.
  void widest(int* outputs, int* values) const {
    *outputs = *values = 1;
    for (int i = 0; i < job.plan.stage_count; ++i) {
      const Stage& s = job.plan.stages[i];
      for (int r = 0; r < s.register_count; ++r)
        if (s.registers[r] > *values) *values = s.registers[r];
      for (int j = 0; j < s.op_count; ++j)
        if (multiplies(s.ops[j].kind) && rows_of(s.ops[j]) > *outputs) *outputs = rows_of(s.ops[j]);
    }
  }

  void lay_out() {
    int outputs, values, stages = job.plan.stage_count;
    widest(&outputs, &values);
    size_t tokens = static_cast<size_t>(T()), wide = row_words(outputs > values ? outputs : values);
    x = arena.take<uint32_t>(step * tokens + Isa::kPadding);
    tapes = arena.take<uint32_t*>(static_cast<size_t>(stages));
    for (int i = 0; i < stages; ++i) {
      size_t size = form_of(job.plan.stages[i]).size * tokens + Isa::kPadding;
      uint32_t* tape = arena.take<uint32_t>(size);
      if (arena.base) tapes[i] = tape;
    }
    handed = arena.take<int32_t>(4 * step * tokens);
    c = arena.take<int32_t>(4 * wide);
    small = arena.take<int8_t>(4 * wide);
    scratch = arena.take<uint32_t>(4 * wide);
    size_t section = static_cast<size_t>(T() < kVoteTokens ? T() : kVoteTokens) * (kLanes / 4);
    columns = arena.take<uint32_t>(section * kLanes);
    vote_tile = Products::tile_bytes(static_cast<int>(section));
    tiles_a = arena.take<int8_t>(packed_tiles(outputs) * vote_tile);
    size_t longest = section > wide / kLanes ? section : wide / kLanes;
    panel = arena.take<Products::Panel>(Products::panel_size(static_cast<int>(longest)));
  }

  void open_learning() {
    open_stage();
    for (int r = 1; r < stage->register_count; ++r)
      credit[r] = arena.take<int32_t>(4 * row_words(stage->registers[r]));
    for (int j = 0; j < stage->op_count; ++j) {
      const Op& op = stage->ops[j];
      const size_t size = credit_words(op) * static_cast<size_t>(T());
      credits[j] = arena.take<uint32_t>(size ? size + Isa::kPadding : 0);
      voted[j] = false;
    }
  }

  // Of an operation's int8 credit at one token, where it is kept.
  size_t credit_words(const Op& op) const {
    return static_cast<size_t>(multiplies(op.kind) ? words_of(rows_of(op)) : 0) * kLanes;
  }

  int rows_of(const Op& op) const { return job.plan.leaves[op.leaf].rows; }
  int cols_of(const Op& op) const { return job.plan.leaves[op.leaf].cols; }

  // ---- forward -------------------------------------------------------------------------------

  // Registers move along the tape with their results, but for x, which is passed on.
  void record() {
    form = form_of(*stage);
    load_state(job.state_in);
    for (int t = 0; t < T(); ++t) {
      uint32_t* to = tapes[number] + form.size * static_cast<size_t>(t);
      registers[0] = x + step * static_cast<size_t>(t);
      for (int j = 0; j < stage->register_count; ++j) ready[j] = false;
      remember(0, to + form.x);
      if (stage->state >= 0) {
        remember(1, to + form.s);
        registers[1] = to + form.s;
        restart(t);
      }
      for (int j = 0; j < stage->op_count; ++j) {
        const Op& op = stage->ops[j];
        uint32_t* result = to + form.of[j];
        const bool kept = result_words(*stage, op), moves = kept && op.out;
        if (moves && reads(op, op.out)) remember(op.out, result);
        if (moves) registers[op.out] = result;
        run_alone(op, j, t);
        if (kept && !moves) remember(op.out, result);
      }
    }
    store_state();
  }

  static bool reads(const Op& op, int reg) {
    return op.in[0] == reg || op.in[1] == reg || op.in[2] == reg;
  }

  void remember(int reg, uint32_t* to) const {
    __builtin_memcpy(to, registers[reg],
                     static_cast<size_t>(words_of(stage->registers[reg])) * kLanes * 4);
  }

  // An operation without those that are done with its tiles elsewhere.
  void run_alone(const Op& op, int j, int t) {
    if (op.kind == OpKind::score) return score_row(op, j, t);
    if (LearnLists::listed(op)) return gather_lists(op, j, t);
    if (op.kind != OpKind::linear) return run(op, t);
    multiply(op, t, registers[op.out]);
    ready[op.out] = false;
  }

  // What the lists of a row give. A lane without a member has what the last one has.
  void gather_lists(const Op& op, int j, int t) {
    const int8_t *of[kLanes], *first = lists.at(number, j, first_member * T() + t);
    const int64_t step = lists.size_of(op) * T();
    for (int m = 0; m < kLanes; ++m) of[m] = first + (clamped(m) - first_member) * step;
    gather(of, stage->registers[op.out], registers[op.out]);
    ready[op.out] = false;
  }

  void multiply(const Op& op, int t, uint32_t* to) {
    product(op, t, {reinterpret_cast<Places::Words>(to)}, None{});
  }

  // ---- the score -----------------------------------------------------------------------------

  void draw_places(int t) {
    for (int m = 0; m < kLanes; ++m)
      for (int i = 0; i < 4; ++i)
        places[4 * m + i] = learn.words[clamped(m) * T() + t] + static_cast<uint32_t>(i);
  }

  // Row t of an operation's credit.
  int8_t* credit_of(int j, int t) const {
    return reinterpret_cast<int8_t*>(credits[j] +
                                     credit_words(stage->ops[j]) * static_cast<size_t>(t));
  }

  // The members' scores, and the errors of their logits.
  void score_row(const Op& op, int j, int t) {
    const Plan& plan = job.plan;
    int rows = rows_of(op), words = words_of(rows);
    multiply(op, t, reinterpret_cast<uint32_t*>(small));
    alignas(64) uint64_t fine[kLanes], coarse[kLanes];
    LearnIsa::powers(small, rows, words, plan.exact_mantissa, plan.score_bits, scratch, fine,
                     coarse);
    alignas(64) int32_t logs[kLanes];
    log2_scores(fine, logs);
    ErrorLanes lanes;
    for (int m = 0; m < kLanes; ++m) {
      bool there = member(m) < job.members;
      int target = token(job.targets, m, t);
      uint64_t s = coarse[m];
      uint32_t z = 0;
      while (s >> z >> 24) ++z;
      uint32_t ratio = there ? static_cast<uint32_t>((uint64_t{127} << 24) / (s >> z)) : 0;
      for (int i = 0; i < 4; ++i) {
        lanes.ratio[4 * m + i] = ratio, lanes.shift[4 * m + i] = z;
        lanes.target[4 * m + i] = there ? target - i : -4;
      }
      if (!there) continue;
      int32_t hit = small[target / 4 * kRow + 4 * m + target % 4] + 128;
      int32_t value = (hit << (plan.score_bits - 4)) - logs[m];
      job.scores[member(m) * T() + t] = static_cast<int16_t>(value);
    }
    draw_places(t);
    const uint32_t base = static_cast<uint32_t>(op.leaf) * kNextLeaf;
    learn.sizes[op.leaf] +=
        LearnIsa::errors(small, scratch, words, lanes, places, base, credit_of(j, t));
  }

  // What operation j read as its i-th input.
  const int8_t* read(int j, int i) const {
    int reg = stage->ops[j].in[i];
    size_t at = reg ? form.s : form.x;
    for (int k = j - 1; k >= 0; --k)
      if (stage->ops[k].out == reg && result_words(*stage, stage->ops[k])) {
        at = form.of[k];
        break;
      }
    return reinterpret_cast<const int8_t*>(row + at);
  }
};
