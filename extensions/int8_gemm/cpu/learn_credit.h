// Credit of each operation's inputs and leaf, from that of its result.
//
// Operations take their result's credit row by row (four values of all lanes), and only then give
// credit to that row of their inputs, of which one may be the register of the result.

struct LearnCredit : LearnTape {
  using LearnTape::LearnTape;

  // The credit of a result, which the operation takes out of its register.
  struct ResultCredit {
    const int32_t* from;
    const int8_t* y;  // the result where it is clipped, or null
    bool last;        // of a final operation: credit may pull values back from the clip

    void row(int w, int32_t* __restrict of) const {
      LearnIsa::take(from + w * kRow, y && !last ? y + w * kRow : nullptr, of);
      if (!y || !last) return;
      const int8_t* __restrict at = y + w * kRow;
      for (int i = 0; i < kRow; ++i) {
        const bool stuck = (at[i] == 127 && of[i] > 0) || (at[i] == -127 && of[i] < 0);
        of[i] = stuck ? 0 : of[i];
      }
    }
  };

  // Where credit of an input goes, and whether it has some already.
  struct InputCredit {
    int32_t* to;
    bool adds;

    // A row of it; what is there afterwards is within the bounds, `value(i)` need not be.
    template <typename Value>
    void row(int w, Value value) const {
      int32_t* __restrict at = to + w * kRow;
      if (adds)
        for (int i = 0; i < kRow; ++i) at[i] = bounded(at[i] + value(i));
      else
        for (int i = 0; i < kRow; ++i) at[i] = bounded(value(i));
    }
  };

  InputCredit give(int reg) {
    InputCredit to{credit[reg], has[reg]};
    has[reg] = true;
    return to;
  }

  // The state before a document's first row is zero whatever the rows before it do.
  void forget_documents(int t) {
    int32_t* s = credit[1];
    int words = words_of(stage->registers[1]);
    for (int m = 0; m < kLanes; ++m)
      if (!token(job.tokens, m, t))
        for (int w = 0; w < words; ++w)
          for (int i = 0; i < 4; ++i) s[w * kRow + 4 * m + i] = 0;
  }

  static bool clipped(OpKind kind) {
    return kind == OpKind::linear || kind == OpKind::norm || kind == OpKind::add ||
           kind == OpKind::add_bias || kind == OpKind::bias || kind == OpKind::features;
  }

  void pass(int j, int t) {
    const Op& op = stage->ops[j];
    if (op.kind == OpKind::score) return pass_score(op, j, t);
    if (op.kind == OpKind::output || op.kind == OpKind::sums)
      return learn.errors ? pass_error(op, j, t) : void();
    if (!result_words(*stage, op)) return;
    if (!has[op.out]) return keep_none(j, t);
    has[op.out] = false;
    int n = stage->registers[op.out], words = words_of(n);
    const int8_t* y = reinterpret_cast<const int8_t*>(row + form.of[j]);
    const ResultCredit c{credit[op.out], clipped(op.kind) ? y : nullptr, op.last};
    const int8_t* in[3];
    for (int i = 0; i < 3; ++i) in[i] = op.in[i] >= 0 ? read(j, i) : nullptr;
    switch (op.kind) {
      case OpKind::embed:
        return pass_embed(op, c, words, t);
      case OpKind::linear:
        return pass_linear(op, c, j, words, t);
      case OpKind::norm:
        return pass_norm(op, c, n, in[0]);
      case OpKind::add:
      case OpKind::add_bias:
      case OpKind::bias:
        return pass_sum(op, c, n);
      case OpKind::lookup:
        return pass_lookup(op, c, words, in[0]);
      case OpKind::forget:
        return pass_forget(op, c, words, in[0], in[1]);
      case OpKind::mix:
        return pass_mix(op, c, words, in[0], in[1], in[2]);
      case OpKind::relu:
        return pass_relu(op, c, words, in[0]);
      case OpKind::features:
        return pass_features(op, c, j, n, words, t);
      case OpKind::concat:
        return pass_concat(op, c);
      case OpKind::input:
      case OpKind::score:
      case OpKind::output:
      case OpKind::sums:
        return;
    }
  }

  // ---- leaves --------------------------------------------------------------------------------

  // A row of credit rounded to int8 by chance; its size.
  int64_t round_row(const Op& op, const int32_t* of, int w, int8_t* to) const {
    const uint32_t base = static_cast<uint32_t>(op.leaf) * kNextLeaf;
    return LearnIsa::round(of, places, base + 4 * static_cast<uint32_t>(w), learn.scales[op.leaf],
                           to + w * kRow);
  }

  void round_to_bytes(const Op& op, const ResultCredit& c, int words, int8_t* to) {
    int64_t size = 0;
    for (int w = 0; w < words; ++w) {
      alignas(64) int32_t of[kRow];
      c.row(w, of);
      size += round_row(op, of, w, to);
    }
    learn.sizes[op.leaf] += size;
  }

  // The credit of every member's token, int8 [32][cols].
  void pass_embed(const Op& op, const ResultCredit& c, int words, int t) {
    round_to_bytes(op, c, words, small);
    int cols = cols_of(op);
    int8_t* rows = reinterpret_cast<int8_t*>(scratch);
    int8_t* to[kLanes];
    for (int m = 0; m < kLanes; ++m) to[m] = rows + m * cols;
    scatter(reinterpret_cast<const uint32_t*>(small), cols, to);
    for (int m = 0; m < kLanes; ++m) {
      if (member(m) >= job.members) continue;
      int32_t* z = learn.z[op.leaf] + static_cast<int64_t>(token(job.tokens, m, t)) * cols;
      Isa::add_bytes(to[m], cols, z);
    }
  }

  // The credit of every member's lists takes the place of what they gave.
  void pass_features(const Op& op, const ResultCredit& c, int j, int n, int words, int t) {
    round_to_bytes(op, c, words, small);
    int8_t* to[kLanes];
    list_credit(j, t, to);
    scatter(reinterpret_cast<const uint32_t*>(small), n, to);
  }

  // Where it goes; null in lanes without a member.
  void list_credit(int j, int t, int8_t** to) const {
    int8_t* first = lists.at(number, j, first_member * T() + t);
    const int64_t step = lists.size_of(stage->ops[j]) * T();
    for (int m = 0; m < kLanes; ++m)
      to[m] = member(m) < job.members ? first + (member(m) - first_member) * step : nullptr;
  }

  // The votes of four values of a vector: the sums of their credit, times a factor if there is one.
  void vote_row(const Op& op, int n, int w, const int8_t* bytes, const int8_t* factor) const {
    int32_t sum[4];
    factor ? LearnIsa::vote(bytes, factor, sum) : LearnIsa::total(bytes, sum);
    int32_t* z = learn.z[op.leaf] + 4 * w;
    for (int i = 0; i < 4 && 4 * w + i < n; ++i) z[i] = wrapping_sum(z[i], sum[i]);
  }

  void pass_linear(const Op& op, const ResultCredit& c, int j, int words, int t) {
    round_to_bytes(op, c, words, credit_of(j, t));
    voted[j] = true;
    through(op, j, t, learn.scales[op.leaf]);
  }

  // Its errors were made with its scores.
  void pass_score(const Op& op, int j, int t) {
    voted[j] = true;
    through(op, j, t, kErrorScale);
  }

  // The caller's error of an output: credit of its register or, of sums, of its leaf.
  void pass_error(const Op& op, int j, int t) {
    const bool sums = op.kind == OpKind::sums;
    const int n = job.plan.outputs[op.place].size, words = words_of(n);
    int64_t at = 0;
    for (int i = 0; i < op.place; ++i) at += job.plan.outputs[i].size;
    int8_t* to = sums ? credit_of(j, t) : small;
    const int8_t *of_lane[kLanes], *none = reinterpret_cast<const int8_t*>(scratch);
    __builtin_memset(scratch, 0, static_cast<size_t>(n));
    for (int m = 0; m < kLanes; ++m) {
      const int64_t row = member(m) * T() + t;
      of_lane[m] = member(m) < job.members ? learn.errors + row * learn.errors_size + at : none;
    }
    gather(of_lane, n, reinterpret_cast<uint32_t*>(to));
    int64_t size = 0;
    for (int w = 0; w < words; ++w) {
      int32_t of_row = 0;
      for (int i = w * kRow; i < (w + 1) * kRow; ++i) of_row += to[i] < 0 ? -to[i] : to[i];
      size += of_row;
    }
    if (sums) {
      learn.sizes[op.leaf] += size;
      return pass_score(op, j, t);
    }
    const InputCredit of = give(op.in[0]);
    for (int w = 0; w < words; ++w) {
      const int8_t* __restrict e = to + w * kRow;
      of.row(w, [&](int i) { return e[i] * (1 << kErrorScale); });
    }
  }

  // The last row of a stage may have no credit where the others have. What lists gave to it is no
  // credit.
  void keep_none(int j, int t) {
    const Op& op = stage->ops[j];
    if (op.kind == OpKind::linear)
      __builtin_memset(credit_of(j, t), 0, credit_words(op) * sizeof(uint32_t));
    if (!LearnLists::listed(op)) return;
    int8_t* to[kLanes];
    list_credit(j, t, to);
    for (int m = 0; m < kLanes; ++m)
      if (to[m]) __builtin_memset(to[m], 0, static_cast<size_t>(stage->registers[op.out]));
  }

  // Int8 credit of a matrix's outputs -> credit of its inputs, where it passes any on.
  void through(const Op& op, int j, int t, int by) {
    const int8_t* w = learn.back[op.leaf];
    if (!w) return;
    const int cols = cols_of(op);
    const Reduced factor = reduced(cols, by);
    const InputCredit to = give(op.in[0]);
    send(w, reinterpret_cast<const uint32_t*>(credit_of(j, t)), words_of(rows_of(op)),
         tiles_of(cols), [&](int i, int32_t (*acc)[kLanes]) {
           LearnIsa::spread(acc, factor, to.adds, to.to + 2 * i * kRow);
         });
  }

  // The sums of every tile of a packed matrix go to `take(index, acc)`, which may change them. A
  // template, so that units have the one way or the other.
  template <typename By = Products, typename Take>
  void send(const int8_t* w, const uint32_t* of, int words, int tiles, Take take) {
    if constexpr (By::kTiles > 1) {
      By::send_all(w, of, words, tiles, take);
    } else {
      By::close_credit(of, words, panel);
      for (int i = 0; i < tiles; ++i, w += PortableIsa::tile_bytes(words)) {
        alignas(64) int32_t acc[kTile][kLanes];
        By::send(w, panel, words, acc);
        take(i, acc);
      }
    }
  }

  // ---- operations on single values ------------------------------------------------------------

  void pass_sum(const Op& op, const ResultCredit& c, int n) {
    const bool voting = op.kind != OpKind::add, one = op.kind == OpKind::bias;
    const InputCredit a = give(op.in[0]), b = one ? a : give(op.in[1]);
    // What is within the bounds is given as it is, where that is not added to.
    const bool adds = a.adds || (!one && b.to == a.to);
    int64_t size = 0;
    for (int w = 0; w < words_of(n); ++w) {
      alignas(64) int32_t own[kRow];
      int32_t* of = adds ? own : a.to + w * kRow;
      c.row(w, of);
      if (adds) a.row(w, [&](int i) { return of[i]; });
      if (!one) b.row(w, [&](int i) { return of[i]; });
      if (!voting) continue;
      size += round_row(op, of, w, small);
      vote_row(op, n, w, small + w * kRow, nullptr);
    }
    if (voting) learn.sizes[op.leaf] += size;
  }

  void pass_forget(const Op& op, const ResultCredit& c, int words, const int8_t* f,
                   const int8_t* s) {
    const InputCredit of_f = give(op.in[0]), of_s = give(op.in[1]);
    for (int w = 0; w < words; ++w, f += kRow, s += kRow) {
      alignas(64) int32_t of[kRow];
      c.row(w, of);
      of_f.row(w, [&](int i) { return (of[i] * s[i]) >> 8; });
      of_s.row(w, [&](int i) { return (of[i] * (f[i] + 127)) >> 8; });
    }
  }

  void pass_mix(const Op& op, const ResultCredit& c, int words, const int8_t* f, const int8_t* h,
                const int8_t* s) {
    const InputCredit of_f = give(op.in[0]), of_h = give(op.in[1]), of_s = give(op.in[2]);
    for (int w = 0; w < words; ++w, f += kRow, h += kRow, s += kRow) {
      alignas(64) int32_t of[kRow], part[kRow];
      c.row(w, of);
      for (int i = 0; i < kRow; ++i) part[i] = (of[i] * (f[i] + 127)) >> 8;
      of_f.row(w, [&](int i) { return (of[i] * (h[i] - s[i])) >> 8; });
      of_h.row(w, [&](int i) { return part[i]; });
      of_s.row(w, [&](int i) { return of[i] - part[i]; });
    }
  }

  void pass_relu(const Op& op, const ResultCredit& c, int words, const int8_t* x) {
    const InputCredit to = give(op.in[0]);
    for (int w = 0; w < words; ++w)
      LearnIsa::pass_positive(c.from + w * kRow, x + w * kRow, to.adds, to.to + w * kRow);
  }

  void pass_lookup(const Op& op, const ResultCredit& c, int words, const int8_t* x) {
    int32_t slope[256];
    const int8_t* table = job.plan.tables[op.table];
    for (int v = -127; v <= 127; ++v) {
      int up = v < 127 ? v + 1 : v, down = v > -127 ? v - 1 : v;
      slope[v & 255] = table[up & 255] - table[down & 255];
    }
    slope[128] = 0;
    const InputCredit to = give(op.in[0]);
    for (int w = 0; w < words; ++w, x += kRow) {
      alignas(64) int32_t of[kRow];
      c.row(w, of);
      to.row(w, [&](int i) { return (of[i] * slope[static_cast<uint8_t>(x[i])]) >> 1; });
    }
  }

  void pass_concat(const Op& op, const ResultCredit& of) {
    int words = words_of(stage->registers[op.out]), first = 0;
    __builtin_memcpy(c, of.from, static_cast<size_t>(words) * kRow * sizeof(int32_t));
    for (int i = 0; i < 2; ++i) {
      int n = stage->registers[op.in[i]];
      const InputCredit to = give(op.in[i]);
      for (int k = 0; k < words_of(n) * 4; ++k)
        for (int m = 0; m < kLanes; ++m) {
          int at = k / 4 * kRow + 4 * m + k % 4, from = (first + k) / 4 * kRow + 4 * m;
          int32_t v = k < n ? c[from + (first + k) % 4] : 0;
          to.to[at] = to.adds ? bounded(to.to[at] + v) : v;
        }
      first += n;
    }
  }

  // ---- the norm ------------------------------------------------------------------------------

  // Of every lane, four times: m, 1 / m and what all values give back to each.
  struct Mean {
    alignas(64) int32_t m[kRow], back[kRow];
    alignas(64) float inverse[kRow];
    alignas(64) int32_t half[kRow];
    alignas(64) uint32_t reciprocal[kRow];

    void set(int lane, int32_t mean, int32_t given) {
      const Divisor d = divisor(mean);
      for (int i = 4 * lane; i < 4 * lane + 4; ++i) {
        m[i] = mean, back[i] = given, inverse[i] = 1.0f / static_cast<float>(mean);
        half[i] = d.half, reciprocal[i] = d.reciprocal;
      }
    }
  };

  // Rounds the credit, and finds the means.
  void norm_sums(const Op& op, const ResultCredit& c, int n, const int8_t* x, const int8_t* weight,
                 Mean& mean) {
    constexpr int kFitting = 64;  // words whose parts of products fit 32 bits together
    int words = words_of(n);
    alignas(64) int32_t magnitude[kLanes];
    LearnIsa::magnitudes(x, n, magnitude);
    alignas(64) int64_t total[kLanes] = {};
    int64_t size = 0;
    for (int first = 0; first < words; first += kFitting) {
      alignas(64) int32_t high[kRow] = {}, low[kRow] = {};
      for (int w = first; w < words && w < first + kFitting; ++w) {
        alignas(64) int32_t of[kRow];
        const int8_t *v = x + w * kRow, *by = weight + w * kRow;
        c.row(w, of);
        size += round_row(op, of, w, small);
        for (int i = 0; i < kRow; ++i) {
          int32_t a = of[i] * by[i];
          high[i] += (a >> 12) * v[i], low[i] += (a & 4095) * v[i];
        }
      }
      for (int i = 0; i < kRow; ++i) total[i / 4] += int64_t{high[i]} * 4096 + low[i];
    }
    learn.sizes[op.leaf] += size;
    for (int m = 0; m < kLanes; ++m) {
      int64_t d = mean_of(magnitude[m], n), by = d * d * n;
      int64_t quotient = total[m] / by;
      quotient -= quotient * by > total[m];
      quotient = quotient > kBound ? kBound : quotient < -kBound ? -kBound : quotient;
      mean.set(m, static_cast<int32_t>(d), static_cast<int32_t>(quotient));
    }
  }

  void pass_norm(const Op& op, const ResultCredit& c, int n, const int8_t* x) {
    const int8_t* __restrict weight = of(op).vector;
    Mean mean;
    norm_sums(op, c, n, x, weight, mean);
    const InputCredit to = give(op.in[0]);
    for (int w = 0; w < words_of(n); ++w) {
      alignas(64) int32_t of[kRow], own[kRow];
      alignas(64) int8_t factor[kRow];
      const int8_t *v = x + w * kRow, *by = weight + w * kRow;
      for (int i = 0; i < kRow; ++i)
        factor[i] = static_cast<int8_t>(divide(16 * v[i], mean.half[i], mean.reciprocal[i]));
      vote_row(op, n, w, small + w * kRow, factor);
      c.row(w, of);
      for (int i = 0; i < kRow; ++i)
        own[i] = floored(of[i] * by[i], mean.m[i], mean.inverse[i]) -
                 ((v[i] > 0) - (v[i] < 0)) * mean.back[i];
      if (4 * w + 4 > n)
        for (int i = 0; i < kRow; ++i) own[i] = 4 * w + (i & 3) < n ? own[i] : 0;
      to.row(w, [&](int i) { return own[i]; });
    }
  }

  // floor(a / m), |a| below 2^29 and m below 2^7: a quotient in single precision, which is wrong by
  // less than 2^8 / m, then what it leaves; a half keeps that off the whole numbers, and 1024 above
  // zero.
  static int32_t floored(int32_t a, int32_t m, float inverse) {
    int32_t q = static_cast<int32_t>(static_cast<float>(a) * inverse);
    int32_t rest = a - q * m + 1024 * m;
    return q - 1024 + static_cast<int32_t>((static_cast<float>(rest) + 0.5f) * inverse);
  }
};
