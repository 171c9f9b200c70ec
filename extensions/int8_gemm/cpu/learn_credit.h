// Credit of each operation's inputs and leaf, from that of its result. A part of learn.h, which
// includes it.

struct LearnCredit : LearnTape {
  using LearnTape::LearnTape;

  void draw_places(int t) {
    for (int m = 0; m < kLanes; ++m)
      for (int i = 0; i < 4; ++i)
        places[4 * m + i] = learn.words[clamped(m) * T() + t] + static_cast<uint32_t>(i);
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

  // Takes the credit of a result out of its register; where it is clipped it had no effect.
  void take(int reg, int words, const int8_t* __restrict y, bool masked) {
    const int32_t* __restrict from = credit[reg];
    int32_t* __restrict to = c;
    for (int i = 0; i < words * kRow; ++i)
      to[i] = masked && (y[i] == 127 || y[i] == -127) ? 0 : from[i];
    has[reg] = false;
  }

  // Adds `value(i)` to the credit of a register.
  template <typename Value>
  void give(int reg, int words, Value value) {
    int32_t* __restrict to = credit[reg];
    if (has[reg])
      for (int i = 0; i < words * kRow; ++i) to[i] = bounded(to[i] + value(i));
    else
      for (int i = 0; i < words * kRow; ++i) to[i] = bounded(value(i));
    has[reg] = true;
  }

  void pass(int j, int t) {
    const Op& op = stage->ops[j];
    if (op.kind == OpKind::score) return pass_score(op, j, t);
    if (!result_words(*stage, op)) return;
    if (!has[op.out]) return op.kind == OpKind::linear ? keep_none(j, t) : void();
    int n = stage->registers[op.out], words = words_of(n);
    const int8_t* y = reinterpret_cast<const int8_t*>(row + form.of[j]);
    take(op.out, words, y, clipped(op.kind));
    const int8_t* in[3];
    for (int i = 0; i < 3; ++i) in[i] = op.in[i] >= 0 ? read(j, i) : nullptr;
    const int32_t* __restrict of = c;
    switch (op.kind) {
      case OpKind::embed:
        return pass_embed(op, words, t);
      case OpKind::linear:
        return pass_linear(op, j, words, t);
      case OpKind::norm:
        return pass_norm(op, n, in[0]);
      case OpKind::add_bias:
      case OpKind::bias:
        round_to_bytes(op.leaf, words);
        vote_vector(op, n, nullptr);
        [[fallthrough]];
      case OpKind::add:
        for (int i = 0; i < (op.kind == OpKind::bias ? 1 : 2); ++i)
          give(op.in[i], words, [=](int k) { return of[k]; });
        return;
      case OpKind::lookup:
        return pass_lookup(op, words, in[0]);
      case OpKind::forget:
        give(op.in[0], words, [=](int k) { return (of[k] * in[1][k]) >> 8; });
        give(op.in[1], words, [=](int k) { return (of[k] * (in[0][k] + 127)) >> 8; });
        return;
      case OpKind::mix:
        give(op.in[0], words, [=](int k) { return (of[k] * (in[1][k] - in[2][k])) >> 8; });
        give(op.in[1], words, [=](int k) { return (of[k] * (in[0][k] + 127)) >> 8; });
        give(op.in[2], words, [=](int k) { return of[k] - ((of[k] * (in[0][k] + 127)) >> 8); });
        return;
      case OpKind::relu:
        give(op.in[0], words, [=](int k) { return in[0][k] > 0 ? of[k] : 0; });
        return;
      case OpKind::features:
        return pass_features(op, n, words, t);
      case OpKind::concat:
        return pass_concat(op);
      case OpKind::input:
      case OpKind::score:
      case OpKind::output:
      case OpKind::sums:
        return;
    }
  }

  // c rounded to int8 by chance; adds up its size.
  void round_to_bytes(int leaf, int words) {
    const int h = learn.scales[leaf];
    const uint32_t base = static_cast<uint32_t>(leaf) * kNextLeaf;
    int8_t* __restrict to = reinterpret_cast<int8_t*>(small);
    int64_t size = 0;
    for (int w = 0; w < words; ++w) {
      const int32_t* __restrict from = c + w * kRow;
      int32_t sum = 0;
      const uint32_t first = base + 4 * static_cast<uint32_t>(w);
      for (int i = 0; i < kRow; ++i) sum += from[i] < 0 ? -from[i] : from[i];
      if (h == 0)
        for (int i = 0; i < kRow; ++i) to[w * kRow + i] = static_cast<int8_t>(clip(from[i]));
      else
        for (int i = 0; i < kRow; ++i) {
          int32_t chance = static_cast<int32_t>(mixed(places[i] + first) >> (32 - h));
          to[w * kRow + i] = static_cast<int8_t>(clip((from[i] + chance) >> h));
        }
      size += sum;
    }
    learn.sizes[leaf] += size;
  }

  void pass_embed(const Op& op, int words, int t) {
    round_to_bytes(op.leaf, words);
    int cols = cols_of(op);
    const int8_t* bytes = reinterpret_cast<const int8_t*>(small);
    for (int m = 0; m < kLanes; ++m) {
      if (member(m) >= job.members) continue;
      int32_t* z = learn.z[op.leaf] + static_cast<int64_t>(token(job.tokens, m, t)) * cols;
      for (int k = 0; k < cols; ++k) z[k] = wrapping_sum(z[k], bytes[k / 4 * kRow + 4 * m + k % 4]);
    }
  }

  void pass_features(const Op& op, int n, int words, int t) {
    round_to_bytes(op.leaf, words);
    int cols = cols_of(op);
    const int8_t* bytes = reinterpret_cast<const int8_t*>(small);
    for (int m = 0; m < kLanes; ++m) {
      if (member(m) >= job.members) continue;
      const int32_t* shown = job.features + (member(m) * T() + t) * job.plan.indices + op.first;
      for (int i = 0; i < op.lists * op.active; ++i) {
        if (shown[i] < 0) continue;
        int32_t* z = learn.z[op.leaf] + static_cast<int64_t>(shown[i]) * cols;
        for (int k = 0, at = i / op.active * cols; k < cols && at < n; ++k, ++at)
          z[k] = wrapping_sum(z[k], bytes[at / 4 * kRow + 4 * m + at % 4]);
      }
    }
  }

  // The votes of a vector: the sum of its credit, times a factor if there is one.
  void vote_vector(const Op& op, int n, const int8_t* factor) {
    const int8_t* bytes = reinterpret_cast<const int8_t*>(small);
    for (int k = 0; k < n; ++k) {
      int32_t sum = 0;
      for (int m = 0; m < kLanes; ++m) {
        int at = k / 4 * kRow + 4 * m + k % 4;
        sum += bytes[at] * (factor ? factor[at] : 1);
      }
      learn.z[op.leaf][k] = wrapping_sum(learn.z[op.leaf][k], sum);
    }
  }

  void pass_lookup(const Op& op, int words, const int8_t* in) {
    int32_t slope[256];
    const int8_t* table = job.plan.tables[op.table];
    for (int v = -127; v <= 127; ++v) {
      int up = v < 127 ? v + 1 : v, down = v > -127 ? v - 1 : v;
      slope[v & 255] = table[up & 255] - table[down & 255];
    }
    slope[128] = 0;
    const int32_t* __restrict of = c;
    give(op.in[0], words, [&](int k) { return (of[k] * slope[static_cast<uint8_t>(in[k])]) >> 1; });
  }

  void pass_concat(const Op& op) {
    int first = 0;
    for (int i = 0; i < 2; ++i) {
      int n = stage->registers[op.in[i]];
      for (int k = 0; k < words_of(n) * 4; ++k)
        for (int m = 0; m < kLanes; ++m) {
          int from = (first + k) / 4 * kRow + 4 * m + (first + k) % 4;
          part[k / 4 * kRow + 4 * m + k % 4] = k < n ? c[from] : 0;
        }
      const int32_t* __restrict of = part;
      give(op.in[i], words_of(n), [=](int k) { return of[k]; });
      first += n;
    }
  }

  void pass_norm(const Op& op, int n, const int8_t* x_of) {
    int words = words_of(n);
    alignas(64) int32_t mean[kRow], back[kRow], sum[kRow] = {};
    alignas(64) int64_t total[kRow] = {};
    alignas(64) double inverse[kRow];
    const int8_t* __restrict weight = of(op).vector;
    for (int w = 0; w < words; ++w)
      for (int i = 0; i < kRow; ++i) {
        int32_t v = x_of[w * kRow + i];
        sum[i] += 4 * w + (i & 3) < n ? (v < 0 ? -v : v) : 0;
      }
    for (int w = 0; w < words; ++w)
      for (int i = 0; i < kRow; ++i) {
        int32_t a = c[w * kRow + i] * weight[w * kRow + i], v = x_of[w * kRow + i];
        total[i] += static_cast<int64_t>(a) * v;
      }
    for (int m = 0; m < kLanes; ++m) {
      int64_t all = 0, magnitude = 0;
      for (int i = 0; i < 4; ++i) all += total[4 * m + i], magnitude += sum[4 * m + i];
      int64_t d = magnitude / n < 1 ? 1 : magnitude / n, by = d * d * n, quotient = all / by;
      quotient -= quotient * by > all;
      quotient = quotient > kBound ? kBound : quotient < -kBound ? -kBound : quotient;
      for (int i = 0; i < 4; ++i)
        mean[4 * m + i] = static_cast<int32_t>(d), back[4 * m + i] = static_cast<int32_t>(quotient),
                     inverse[4 * m + i] = 1.0 / static_cast<double>(d);
    }
    round_to_bytes(op.leaf, words);
    int8_t* factor = reinterpret_cast<int8_t*>(part);
    for (int w = 0; w < words; ++w)
      for (int i = 0; i < kRow; ++i)
        factor[w * kRow + i] =
            static_cast<int8_t>(clip(floored(16 * x_of[w * kRow + i], mean[i], inverse[i])));
    vote_vector(op, n, factor);
    for (int w = 0; w < words; ++w)
      for (int i = 0; i < kRow; ++i) {
        int at = w * kRow + i, v = x_of[at];
        int32_t own = floored(c[at] * weight[at], mean[i], inverse[i]);
        part[at] = 4 * w + (i & 3) < n ? own - ((v > 0) - (v < 0)) * back[i] : 0;
      }
    const int32_t* __restrict from = part;
    give(op.in[0], words, [=](int k) { return from[k]; });
  }

  // floor(a / m), from a product that is off by one at the most.
  static int32_t floored(int32_t a, int32_t m, double inverse) {
    int32_t q = static_cast<int32_t>(static_cast<double>(a) * inverse);
    q -= q * m > a;
    return q + ((q + 1) * m <= a);
  }

  void pass_linear(const Op& op, int j, int words, int t) {
    round_to_bytes(op.leaf, words);
    keep_credit(j, words, t);
    through(op, words, learn.scales[op.leaf]);
  }

  void keep_credit(int j, int words, int t) {
    size_t size = static_cast<size_t>(words) * kLanes;
    __builtin_memcpy(credits[j] + size * static_cast<size_t>(t), small, size * sizeof(uint32_t));
    voted[j] = true;
  }

  // The last row of a stage may have no credit where the others have.
  void keep_none(int j, int t) {
    size_t size = static_cast<size_t>(words_of(rows_of(stage->ops[j]))) * kLanes;
    __builtin_memset(credits[j] + size * static_cast<size_t>(t), 0, size * sizeof(uint32_t));
  }

  // Int8 credit of a matrix's outputs -> credit of its inputs, where it passes any on.
  void through(const Op& op, int words, int by) {
    const int8_t* w = learn.back[op.leaf];
    if (!w) return;
    int cols = cols_of(op);
    Reduced factor = reduced(cols);
    Isa::prepare(small, words, panel);
    for (int i = 0; i < tiles_of(cols); ++i, w += tile_bytes(static_cast<size_t>(words))) {
      alignas(64) int32_t acc[kTile][kLanes];
      Isa::dot(w, panel, words, acc);
      for (int o = 0; o < kTile; ++o)
        for (int m = 0; m < kLanes; ++m) acc[o][m] = scaled(acc[o][m], factor, by);
      for (int half = 0; half < 2; ++half) {
        int32_t* __restrict to = part + (2 * i + half) * kRow;
        for (int m = 0; m < kLanes; ++m)
          for (int o = 0; o < 4; ++o) to[4 * m + o] = acc[4 * half + o][m];
      }
    }
    const int32_t* __restrict from = part;
    give(op.in[0], words_of(cols), [=](int k) { return from[k]; });
  }

  static int32_t scaled(int32_t r, Reduced factor, int by) {
    int32_t v = clamp(r, -kSumBound, kSumBound) * factor.a;
    if (factor.n >= by) return bounded(v >> (factor.n - by));
    return bounded(bounded(v) * (1 << (by - factor.n)));
  }

  void pass_score(const Op& op, int j, int t) {
    int rows = rows_of(op), words = words_of(rows);
    const uint32_t* logits = credits[j] + static_cast<size_t>(words) * kLanes * t;
    error(op, reinterpret_cast<const int8_t*>(logits), rows, t);
    keep_credit(j, words, t);
    through(op, words, kErrorScale);
  }

  // EXP2 of the logits into `part`, zero beyond them, and its sums.
  void powers(const int8_t* u, int rows, uint64_t* total) {
    constexpr int kFitting = 2048;  // words whose powers, below 2^20, fit 32 bits together
    int words = words_of(rows);
    uint32_t* __restrict to = reinterpret_cast<uint32_t*>(part);
    alignas(64) uint32_t sum[kRow];
    for (int m = 0; m < kLanes; ++m) total[m] = 0;
    for (int first = 0; first < words; first += kFitting) {
      for (uint32_t& one : sum) one = 0;
      for (int w = first; w < words && w < first + kFitting; ++w)
        for (int i = 0; i < kRow; ++i) {
          uint32_t v = static_cast<uint8_t>(u[w * kRow + i]) ^ 128u;
          uint32_t power = job.plan.exact_mantissa[v & 15] >> (27 - (v >> 4));
          to[w * kRow + i] = 4 * w + (i & 3) < rows ? power : 0;
          sum[i] += to[w * kRow + i];
        }
      for (int i = 0; i < kRow; ++i) total[i / 4] += sum[i];
    }
  }

  // 127 (1 at the target less the probability), rounded by chance, into `small`.
  void error(const Op& op, const int8_t* u, int rows, int t) {
    int words = words_of(rows);
    alignas(64) uint64_t total[kLanes];
    alignas(64) uint32_t ratio[kRow], shift[kRow];
    alignas(64) int32_t target[kRow];
    powers(u, rows, total);
    for (int m = 0; m < kLanes; ++m) {
      uint64_t s = total[m];
      uint32_t z = 0;
      while (s >> z >> 24) ++z;
      bool there = member(m) < job.members;
      for (int i = 0; i < 4; ++i) {
        ratio[4 * m + i] = there ? static_cast<uint32_t>((uint64_t{127} << 24) / (s >> z)) : 0;
        shift[4 * m + i] = z;
        target[4 * m + i] = there ? token(job.targets, m, t) - i : -4;
      }
    }
    const uint32_t base = static_cast<uint32_t>(op.leaf) * kNextLeaf;
    int8_t* __restrict to = reinterpret_cast<int8_t*>(small);
    const uint32_t* __restrict chances = reinterpret_cast<const uint32_t*>(part);
    int64_t size = 0;
    for (int w = 0; w < words; ++w) {
      int32_t sum = 0;
      const uint32_t first = base + 4 * static_cast<uint32_t>(w);
      for (int i = 0; i < kRow; ++i) {
        int32_t v = u[w * kRow + i];
        uint32_t chance = mixed(places[i] + first) >> 16;
        uint32_t share = (((chances[w * kRow + i] >> shift[i]) * ratio[i] >> 8) + chance) >> 16;
        int32_t e = (target[i] == 4 * w ? 127 : 0) - static_cast<int32_t>(share);
        int32_t out = (v == 127) & (e > 0), in = (v == -127) & (e < 0);
        e = out | in ? 0 : e;
        sum += e < 0 ? -e : e;
        to[w * kRow + i] = static_cast<int8_t>(e);
      }
      size += sum;
    }
    learn.sizes[op.leaf] += size;
  }
};
