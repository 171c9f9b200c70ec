// Lists of sparse features of a group of blocks that learn: what their rows give to all blocks
// before these run, and get of them afterwards. So lists are read as they lie, and a leaf's rows
// and votes are in a cache as long as it is their turn.

struct LearnLists {
  static constexpr int kListsOfRow = 4;  // that make sums of a leaf's row in 16 bits pay
  static constexpr int kSome = 16;       // lists between two looks at how large these may be

  const Job& job;
  const int32_t* index;   // or null, see LearnJob
  int64_t most;           // members of a group
  int64_t first, rows;    // of the group
  int8_t** values;        // [stages]: int8 [rows][lists][cols], one operation's after another's
  int32_t** counts;       // [stages]: [rows][lists], the same: of a list's indices, if all that are
                          // none stand behind them, else -1
  int16_t* sum;           // [cols]
  int32_t* room;          // [kListRoom]
  int16_t* narrow;        // [leaf's rows][cols]: votes of a leaf of few rows, half as many bytes
  uint16_t* sizes;        // [cols]: what no vote in that column exceeds
  bool ascending = true;  // all lists, which name no row twice then

  // So many blocks from number `block` on.
  LearnLists(const LearnJob& l, int64_t block, Arena& arena)
      : job(l.job), index(l.index), most(int64_t{l.blocks} * kLanes), first(block * kLanes * T()) {
    const int64_t left = job.members - block * kLanes;
    rows = (left < most ? left : most) * T();
    const int stages = job.plan.stage_count;
    values = arena.take<int8_t*>(static_cast<size_t>(stages));
    counts = arena.take<int32_t*>(static_cast<size_t>(stages));
    int widest = 0;
    size_t largest = 0;  // of leaves of few rows
    for (int i = 0; i < stages; ++i) {
      const Stage& s = job.plan.stages[i];
      size_t n = 0, lists = 0;
      for (int j = 0; j < s.op_count; ++j) {
        if (!listed(s.ops[j])) continue;
        const int cols = cols_of(s.ops[j]);
        const size_t votes = few(s.ops[j]) ? votes_of(s.ops[j]) : 0;
        widest = cols > widest ? cols : widest, largest = votes > largest ? votes : largest;
        lists += static_cast<size_t>(s.ops[j].lists), n += static_cast<size_t>(size_of(s.ops[j]));
      }
      const size_t all = static_cast<size_t>(most * T());
      int8_t* v = arena.take<int8_t>(n * all);
      int32_t* c = arena.take<int32_t>(lists * all);
      if (arena.base) values[i] = v, counts[i] = c;
    }
    sum = arena.take<int16_t>(static_cast<size_t>(widest));
    room = arena.take<int32_t>(widest ? kListRoom : 0);
    narrow = arena.take<int16_t>(largest);
    sizes = arena.take<uint16_t>(static_cast<size_t>(widest));
  }

  // What the rows of all operations give; false, and not all of it, where a span's list names a row
  // that there is not.
  bool give() {
    bool ok = true;
    each([&](const Op& op, int list, int8_t* to, int32_t* count) {
      const Leaf& leaf = job.plan.leaves[op.leaf];
      const int8_t* weights = job.weights + leaf.offset;
      const int cols = leaf.cols, active = op.active, down = op.shift;
      const int64_t step = words_of(cols) * 4;
      each_list(op, list, [&](const int32_t* of, int n) {
        ActiveRows found = n < 0 ? Isa::active_rows(of, active, room) : ActiveRows{of, n};
        const bool rises = Isa::ascend(found);
        ascending &= rises;
        if (n > 0 && !(rises ? of[0] >= 0 && of[n - 1] < leaf.rows : Isa::within(found, leaf.rows)))
          ok = false, found.count = 0;
        *count++ = found.row == of ? found.count : -1;
        Isa::give_rows(weights, step, found, cols, down, sum, to);
        to += cols;
      });
    });
    return ok;
  }

  // z[row] += what stands where the row's values did, for every list with that row.
  void take(int32_t* const* z) {
    each([&](const Op& op, int list, const int8_t* from, const int32_t* count) {
      const int cols = cols_of(op);
      const bool narrows = ascending && few(op);
      int32_t* votes = z[op.leaf];
      if (narrows) begin(op);
      int seen = 0;
      each_list(op, list, [&](const int32_t* of, int) {
        const int n = *count++;
        const ActiveRows found = n < 0 ? Isa::active_rows(of, op.active, room) : ActiveRows{of, n};
        if (narrows) {
          if (++seen % kSome == 0 && near_limit(cols)) flush(op, votes), begin(op);
          Isa::add_to_rows(from, cols, found, narrow);
          add_sizes(from, cols, sizes);
        } else {
          Isa::add_to_rows(from, cols, found, votes);
        }
        from += cols;
      });
      if (narrows) flush(op, votes);
    });
  }

  // An operation's values of a row.
  int8_t* at(int stage, int j, int64_t row) const {
    int8_t* of = values[stage];
    const Op* ops = job.plan.stages[stage].ops;
    for (int k = 0; k < j; ++k)
      if (listed(ops[k])) of += rows * size_of(ops[k]);
    return of + (row - first) * size_of(ops[j]);
  }

  static bool listed(const Op& op) { return op.kind == OpKind::features; }
  int64_t size_of(const Op& op) const { return int64_t{op.lists} * cols_of(op); }

 private:
  int T() const { return job.tokens_per_member; }
  int cols_of(const Op& op) const { return job.plan.leaves[op.leaf].cols; }
  int rows_of(const Op& op) const { return job.plan.leaves[op.leaf].rows; }

  bool few(const Op& op) const {
    return int64_t{rows_of(op)} * kListsOfRow <= most * T() * op.lists;
  }

  size_t votes_of(const Op& op) const {
    return static_cast<size_t>(rows_of(op)) * static_cast<size_t>(cols_of(op));
  }

  void begin(const Op& op) {
    __builtin_memset(narrow, 0, votes_of(op) * sizeof *narrow);
    __builtin_memset(sizes, 0, static_cast<size_t>(cols_of(op)) * sizeof *sizes);
  }

  // Apart from `take`, where the compiler would have to ask whether these overlap.
  static void add_sizes(const int8_t* __restrict from, int n, uint16_t* __restrict to) {
    for (int k = 0; k < n; ++k)
      to[k] = static_cast<uint16_t>(to[k] + (from[k] < 0 ? -from[k] : from[k]));
  }

  // Whether the next lists may be too much for 16 bits.
  bool near_limit(int cols) const {
    int largest = 0;
    for (int k = 0; k < cols; ++k) largest = sizes[k] > largest ? sizes[k] : largest;
    return largest > 32767 - kSome * 127;
  }

  // Narrow votes are added to the others.
  void flush(const Op& op, int32_t* __restrict votes) {
    const size_t n = votes_of(op);
    const int16_t* __restrict from = narrow;
    for (size_t i = 0; i < n; ++i) votes[i] = wrapping_sum(votes[i], from[i]);
  }

  // each(operation, its first list, its values, its counts)
  template <typename Each>
  void each(Each each) const {
    int list = 0;
    for (int i = 0; i < job.plan.stage_count; ++i) {
      const Stage& s = job.plan.stages[i];
      int32_t* count = counts[i];
      for (int j = 0; j < s.op_count; ++j) {
        if (!listed(s.ops[j])) continue;
        each(s.ops[j], list, at(i, j, first), count);
        count += rows * s.ops[j].lists, list += s.ops[j].lists;
      }
    }
  }

  // each(list, its size); of one that may have -1s the size is -1.
  template <typename Each>
  void each_list(const Op& op, int list, Each each) const {
    const int64_t step = index ? 2 * lists_of(job.plan) : job.plan.indices;
    const int32_t* of_row = job.features + first * step + (index ? 2 * list : op.first);
    for (int64_t row = 0; row < rows; ++row, of_row += step)
      for (int l = 0; l < op.lists; ++l)
        if (index)
          each(index + of_row[2 * l], of_row[2 * l + 1]);
        else
          each(of_row + l * op.active, -1);
  }
};
