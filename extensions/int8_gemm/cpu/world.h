// The worlds of a block's members (eggroll_world.h), which it steps row by row.

struct World : Members {
  char* mine;                // [32] members' memories, `stride` apart
  int8_t* inputs;            // [32] rows, `shown` apart
  int8_t* outputs;           // [32] rows of what the network puts out, `given` apart
  uint8_t (*flags)[kLanes];  // [T]: what observe answered
  size_t stride, shown, given;

  World(const Members& who, Arena& arena) : Members(who) {
    if (!job.world) return;
    size_t width = job.plan.outputs[0].wide ? sizeof(int32_t) : 1;
    stride = lines(static_cast<size_t>(job.world->bytes));
    shown = lines(static_cast<size_t>(job.plan.inputs));
    given = lines(static_cast<size_t>(job.plan.outputs[0].size) * width);
    mine = arena.take<char>(kLanes * stride);
    inputs = arena.take<int8_t>(kLanes * shown);
    outputs = arena.take<int8_t>(kLanes * given);
    flags = arena.take<uint8_t[kLanes]>(static_cast<size_t>(job.tokens_per_member));
  }

  // Whole cache lines, so that no two members share one.
  static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

  bool is(int lane) const { return member(lane) < job.members; }
  char* of(int lane) const { return mine + static_cast<size_t>(lane) * stride; }
  int8_t* row(int lane) const { return inputs + static_cast<size_t>(lane) * shown; }
  int8_t* output(int lane) const { return outputs + static_cast<size_t>(lane) * given; }
  int32_t* values(int lane) const { return job.worth + member(lane) * job.tokens_per_member; }

  void begin() const {
    __builtin_memset(mine, 0, kLanes * stride);
    for (int m = 0; m < kLanes; ++m)
      if (is(m)) job.world->begin(job.shared, of(m), job.keys[member(m)]);
  }

  void observe(int t) const {
    __builtin_memset(inputs, 0, kLanes * shown);
    for (int m = 0; m < kLanes; ++m)
      flags[t][m] =
          is(m) ? world_flag(job.world->observe(job.shared, of(m), t, row(m))) : kWorldIdle;
  }

  void act(int t) const {
    for (int m = 0; m < kLanes; ++m)
      if (flags[t][m] != kWorldIdle) job.world->act(job.shared, of(m), t, output(m));
  }

  // All ones where a member's state goes on; whether all do.
  bool going_on(int t, uint32_t* keep) const {
    uint32_t all = ~0u;
    for (int m = 0; m < kLanes; ++m) all &= keep[m] = flags[t][m] == kWorldBegins ? 0u : ~0u;
    return all;
  }

  // What the rows were worth, to the caller and, as credit, to the tape.
  void settle(const Tape& tape) const {
    int rows = job.tokens_per_member;
    for (int m = 0; m < kLanes; ++m) {
      if (!is(m)) continue;
      world_value(*job.world, job.shared, of(m), rows, values(m));
      for (int t = 0; t < rows; ++t) job.active[member(m) * rows + t] = flags[t][m] != kWorldIdle;
    }
    for (int p = 0; job.credit_kind && p < kPairs; ++p) {
      for (int t = 0; t < rows; ++t) {
        tape.marks[t][p] = flags[t][p] == kWorldBegins;
        bool counts = is(p) && flags[t][p] != kWorldIdle;
        tape.score_difference[t][p] = counts ? credit(values(p)[t], values(p + kPairs)[t]) : 0;
      }
    }
  }

  // As fitness.scaled has it.
  int32_t credit(int32_t plus, int32_t minus) const {
    double v = __builtin_rint((static_cast<double>(plus) - static_cast<double>(minus)) * job.by);
    return static_cast<int32_t>(v < -kValue ? -kValue : v > kValue ? kValue : v);
  }
};
