// Credit carried back: a block of 32 members without noise runs all T tokens, remembers what every
// operation gave, and then hands the errors of its scores back, operation by operation. What lists
// of sparse features give and get is found for a group of blocks at once.
// docs/estimators.md has the arithmetic.
//
// Credit lies as activations do, [K/4][32][4], in int32; it is zero beyond K and in lanes without
// a member.

struct Learner : LearnCredit {
  using LearnCredit::LearnCredit;

  void learn_all() {
    step = row_words(job.plan.width);
    lay_out();
    size_t mark = arena.used, peak = mark;
    int stages = job.plan.stage_count;
    for (int i = 0; i < 2 * stages; ++i) {  // there and back
      number = i < stages ? i : 2 * stages - 1 - i;
      stage = &job.plan.stages[number];
      arena.used = mark;
      open_learning();
      peak = arena.used > peak ? arena.used : peak;
      if (arena.base) i < stages ? record() : carry_back();
      if (arena.base && learn.rating && i + 1 == stages) rate(*learn.rating);
    }
    arena.used = peak;
  }

  // The errors of all rows, from their targets.
  void rate(const Rating& by) const {
    const Plan& plan = job.plan;
    int target = 0, error = 0;
    for (int o = 0; o < plan.output_count; ++o) {
      const auto [n, wide] = plan.outputs[o];
      const uint32_t word = static_cast<uint32_t>(plan.leaf_count + o) * kNextLeaf;
      int32_t* u = reinterpret_cast<int32_t*>(scratch);
      RatedRow row{plan.exact_mantissa, n, wide, u, scratch + n, nullptr, 0, nullptr, by.sigmoids};
      for (int m = 0; m < kLanes; ++m) {
        if (member(m) >= job.members) continue;
        const int64_t first = member(m) * T();
        const uint32_t* words = learn.words + first;
        uint64_t* lost = by.lost + first * plan.output_count + o;
        row.target = by.targets + first * by.targets_size + target;
        row.errors = by.errors + first * learn.errors_size + error;
        for (int t = 0; t < T(); ++t) {
          values(o, first + t, by.divisors[o], u);
          row.word = words[t] + word;
          lost[int64_t{t} * plan.output_count] = row.rate(by.losses[o]);
          row.target += by.targets_size, row.errors += learn.errors_size;
        }
      }
      target += by.losses[o] == Loss::none ? 0 : by.losses[o] == Loss::softmax ? 1 : n, error += n;
    }
  }

  // What output `o` has of a row, in 1/16.
  void values(int o, int64_t row, int32_t divisor, int32_t* u) const {
    const auto [n, wide] = job.plan.outputs[o];
    const int8_t* narrow = static_cast<const int8_t*>(job.outputs[o]) + row * n;
    const int32_t* sums = static_cast<const int32_t*>(job.outputs[o]) + row * n;
    for (int k = 0; k < n; ++k) u[k] = wide ? floor_divided(sums[k], divisor) : narrow[k];
  }

  void carry_back() {
    form = form_of(*stage);
    for (int r = 0; r < stage->register_count; ++r) has[r] = false;
    bool handing = false;
    for (int t = T() - 1; t >= 0; --t) {
      row = tapes[number] + form.size * static_cast<size_t>(t);
      credit[0] = handed + 4 * step * static_cast<size_t>(t);
      has[0] = any_handed;
      draw_places(t);
      for (int j = stage->op_count - 1; j >= 0; --j) pass(j, t);
      if (number && !has[0]) __builtin_memset(credit[0], 0, 4 * step * sizeof(int32_t));
      handing |= has[0];
      for (int r = 2; r < stage->register_count; ++r) has[r] = false;
      has[1] = has[1] && stage->state >= 0;
      if (has[1]) forget_documents(t);
    }
    any_handed = handing;
    for (int j = 0; j < stage->op_count; ++j)
      if (voted[j]) count_votes(j);
  }

  // ---- votes ---------------------------------------------------------------------------------

  // Z [O, K] += sum over tokens and lanes of credit x input, on the tiles of the forward pass: the
  // credit of eight outputs in the place of weights, 32 inputs in that of members.
  void count_votes(int j) {
    const Op& op = stage->ops[j];
    int rows = rows_of(op), cols = cols_of(op), words = words_of(rows);
    for (int first = 0; first < T(); first += kVoteTokens) {
      int tokens = T() - first < kVoteTokens ? T() - first : kVoteTokens, n = tokens * (kLanes / 4);
      const uint32_t* from = credits[j] + static_cast<size_t>(words) * kLanes * first;
      for (int t = 0; t < tokens; ++t)
        for (int w = 0; w < tiles_of(rows) * 2; ++w) {
          uint32_t* tile_at = reinterpret_cast<uint32_t*>(
              tiles_a + static_cast<size_t>(w / 2) * vote_tile + kTile * sizeof(int32_t));
          turn(w < words ? from + (static_cast<size_t>(t) * words + w) * kLanes : nullptr,
               tile_at + t * (kLanes / 4) * kTile + w % 2 * 4, kTile);
        }
      for (int i = 0; i < tiles_of(rows); ++i)
        Products::close_tile(tiles_a + static_cast<size_t>(i) * vote_tile, n, vote_tile);
      for (int k = 0; k < cols; k += kLanes) {
        for (int t = 0; t < tokens; ++t) {
          row = tapes[number] + form.size * static_cast<size_t>(first + t);
          const uint32_t* inputs = reinterpret_cast<const uint32_t*>(read(j, 0));
          for (int w = 0; w < kLanes / 4; ++w)
            turn(k / 4 + w < words_of(cols) ? inputs + (k / 4 + w) * kLanes : nullptr,
                 columns + t * (kLanes / 4) * kLanes + 4 * w, kLanes);
        }
        Products::close_inputs(columns, n, panel);
        count_tiles(tiles_a, vote_tile, panel, n, rows, cols, k, learn.z[op.leaf]);
      }
    }
  }

  // Null is zeros.
  static void turn(const uint32_t* from, uint32_t* to, int stride) {
    if (from) return LearnIsa::turn(from, to, stride);
    for (int g = 0; g < kLanes / 4; ++g, to += stride) __builtin_memset(to, 0, 16);
  }
};

template <typename By = Products>
static size_t back_bytes(int rows, int cols) {
  if constexpr (By::kTiles > 1)
    return By::back_bytes(rows, cols);
  else
    return turned_bytes(rows, cols);
}

template <typename By = Products>
static void pack_back(const int8_t* src, int rows, int cols, int8_t* to) {
  if constexpr (By::kTiles > 1)
    By::pack_back(src, rows, cols, to);
  else
    pack_turned<Isa>(src, rows, cols, to);
}

// The scratch memory of a group of blocks is that of its lists and of one block.
static size_t learn_bytes(const LearnJob& job) {
  Arena arena{nullptr};
  LearnLists lists(job, 0, arena);
  arena.take<char>(0);
  Learner sizing(job, lists, 0, nullptr);
  sizing.learn_all();
  return arena.used + sizing.arena.used;
}

// False, without votes, if a list names a row that there is not.
static bool learn(const LearnJob& job, int64_t group, void* scratch) {
  [[maybe_unused]] const Isa::Session session;
  Arena arena{static_cast<char*>(scratch)};
  const int64_t first = group * job.blocks;
  LearnLists lists(job, first, arena);
  if (!lists.give()) return false;
  void* of_block = arena.take<char>(0);
  for (int64_t i = first; i < first + job.blocks && i * kLanes < job.job.members; ++i)
    Learner(job, lists, i, of_block).learn_all();
  lists.take(job.z);
  return true;
}
