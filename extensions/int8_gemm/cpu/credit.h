// Token credit in a block: the layers' inputs, kept until the scores exist, and then each pair's
// credit per leaf. Lanes here are the 16 pairs; inputs are those of members 2i. See
// docs/estimators.md for the arithmetic.

struct Tape : Members {
  uint32_t** inputs_of;                  // [leaves]: inputs of a linear leaf, words [T][K/4][16]
  int32_t** projection;                  // [leaves]: x.B [T][16], where the weights carry the noise
  int32_t (*score_difference)[kPairs];   // [T]: score of member 2i less that of member 2i + 1, or
                                         // the value given in its place; in groups less the mean
  int32_t (*second_difference)[kPairs];  // [T]: in groups, that of member 2i + 1
  int8_t (*credit)[kPairs];              // [T]: of one leaf
  int8_t* rows;                          // [16]: the head's inputs of every pair
  uint8_t (*marks)[kPairs];              // [T]: 1 where a document begins
  int32_t (*sums)[4][kPairs];            // [K/4]: of one leaf's inputs
  uint32_t* rounds;                      // [K/4][16]: the same as words of bytes

  Tape(const Members& who, Arena& arena) : Members(who) {
    if (!job.credit_kind) return;
    const Plan& plan = job.plan;
    size_t leaves = static_cast<size_t>(plan.leaf_count);
    size_t tokens = static_cast<size_t>(job.tokens_per_member);
    inputs_of = arena.take<uint32_t*>(leaves);
    projection = arena.take<int32_t*>(leaves);
    score_difference = arena.take<int32_t[kPairs]>(tokens);
    if (job.group) second_difference = arena.take<int32_t[kPairs]>(tokens);
    credit = arena.take<int8_t[kPairs]>(tokens);
    int widest = 0;
    for (size_t i = 0; i < leaves; ++i)
      if (plan.leaves[i].cols > widest) widest = plan.leaves[i].cols;
    rows = arena.take<int8_t>(static_cast<size_t>(words_of(widest)) * 4 * kPairs);
    sums = arena.take<int32_t[4][kPairs]>(static_cast<size_t>(words_of(widest)));
    rounds = arena.take<uint32_t>(static_cast<size_t>(words_of(widest)) * kPairs);
    marks = arena.take<uint8_t[kPairs]>(tokens);
    for (size_t i = 0; i < leaves; ++i) {
      if (job.credit_kind[i] != CreditKind::inputs) continue;
      size_t words = static_cast<size_t>(words_of(plan.leaves[i].cols));
      uint32_t* inputs = arena.take<uint32_t>(tokens * words * kPairs);
      int32_t* products = nodes() ? nullptr : arena.take<int32_t>(tokens * kPairs);
      if (arena.base) inputs_of[i] = inputs, projection[i] = products;
    }
  }

  // Inputs that are kept while they are multiplied, some words with every tile: stored all at once
  // they would wait for memory.
  struct Keeping {
    const uint32_t* from = nullptr;
    uint32_t* to = nullptr;
    int words = 0, each = 0, kept = 0;

    inline __attribute__((always_inline)) void keep() {
      for (int last = kept + each < words ? kept + each : words; kept < last; ++kept)
        __builtin_memcpy(to + kept * kPairs, from + kept * kLanes, kPairs * sizeof(uint32_t));
    }
  };
  Keeping keeping(int leaf, int t, const uint32_t* x, int words, int tiles) const {
    uint32_t* to = inputs_of[leaf] + static_cast<size_t>(t) * words * kPairs;
    return {x, to, words, (words + tiles - 1) / tiles};
  }

  Discount discount(int leaf) const {
    return {job.discounts[leaf], 8 - job.plan.score_bits, job.unit_shift};
  }

  // Credit of one leaf: the discounted score differences from each token on, first in 1/256 bit,
  // times the noise's sign.
  void discounted_by_signs(int leaf) const {
    alignas(64) int32_t r[kPairs] = {};
    alignas(64) uint32_t turns[kPairs];
    for (int first = (job.tokens_per_member - 1) / 32 * 32; first >= 0; first -= 32) {
      const int rest = job.tokens_per_member - first;
      signs(job.owners[leaf], first, turns);
      Isa::discount(score_difference + first, marks + first, turns, rest < 32 ? rest : 32,
                    discount(leaf), r, credit + first);
    }
  }

  // The same times the noise's size.
  // Loops over pairs are kept apart and on arrays of their own, so that they vectorise.
  template <typename Coefficient>
  void discounted(int leaf, Coefficient coefficient) const {
    alignas(64) int32_t r[kPairs] = {};
    const auto [kept, finer, unit] = discount(leaf);
    const int32_t half = (1 << unit) >> 1;
    for (int t = job.tokens_per_member - 1; t >= 0; --t) {
      alignas(64) int32_t v[kPairs];
      alignas(16) int8_t c[kPairs];
      for (int p = 0; p < kPairs; ++p) {
        r[p] = (score_difference[t][p] << finer) + ((kept * r[p]) >> 4);
        v[p] = (r[p] + half) >> unit;
      }
      coefficient(t, v);
      for (int p = 0; p < kPairs; ++p) c[p] = static_cast<int8_t>(clip(v[p]));
      __builtin_memcpy(credit[t], c, sizeof c);
      // A document's first score is no credit for the token before it.
      for (int p = 0; p < kPairs; ++p) r[p] = marks[t][p] ? 0 : r[p];
    }
  }

  // The same in groups, from both members of a pair, each by its own sign.
  void discounted_each(int leaf) const {
    alignas(64) int32_t r[2][kPairs] = {};
    const auto [kept, finer, unit] = discount(leaf);
    const int32_t half = (1 << unit) >> 1;
    for (int t = job.tokens_per_member - 1; t >= 0; --t) {
      alignas(64) uint32_t minus[kLanes];
      alignas(64) int32_t v[2][kPairs];
      alignas(16) int8_t c[kPairs];
      turned(job.owners[leaf], t, minus);
      for (int p = 0; p < kPairs; ++p) {
        r[0][p] = (score_difference[t][p] << finer) + ((kept * r[0][p]) >> 4);
        r[1][p] = (second_difference[t][p] << finer) + ((kept * r[1][p]) >> 4);
        for (int i = 0; i < 2; ++i) v[i][p] = (r[i][p] + half) >> unit;
      }
      for (int p = 0; p < kPairs; ++p)
        c[p] = static_cast<int8_t>(
            clip((minus[p] ? -v[0][p] : v[0][p]) - (minus[p + kPairs] ? -v[1][p] : v[1][p])));
      __builtin_memcpy(credit[t], c, sizeof c);
      for (int p = 0; p < kPairs; ++p) r[0][p] = marks[t][p] ? 0 : r[0][p];
      for (int p = 0; p < kPairs; ++p) r[1][p] = marks[t][p] ? 0 : r[1][p];
    }
  }

  // A token's scores less the mean of each group, rounded down: it is common to all its members.
  void compare(int t, const int32_t* score) const {
    const int pairs = job.group / 2;
    for (int first = 0; first < kPairs; first += pairs) {
      int32_t sum = 0;
      for (int p = first; p < first + pairs; ++p) sum += score[p] + score[p + kPairs];
      int32_t mean = sum >> (31 - __builtin_clz(static_cast<unsigned>(job.group)));
      for (int p = first; p < first + pairs; ++p) {
        score_difference[t][p] = score[p] - mean;
        second_difference[t][p] = score[p + kPairs] - mean;
      }
    }
  }

  // sum_t credit x_t, to the pairs' rows.
  void inputs(int leaf, int8_t* const* rows) const {
    int cols = job.plan.leaves[leaf].cols, words = words_of(cols), last = job.tokens_per_member;
    size_t stride = static_cast<size_t>(words) * kPairs;
    __builtin_memset(sums, 0, static_cast<size_t>(words) * sizeof *sums);
    for (int t = 0; t < last; t += kCreditTokens)
      Isa::credit(inputs_of[leaf] + t * stride, words, credit + t,
                  last - t < kCreditTokens ? last - t : kCreditTokens, sums);
    for (int w = 0; w < words; ++w)
      Isa::credit_bytes(sums[w], job.credit_shift + 4, rounds + w * kPairs);
    scatter(rounds, cols, rows, kPairs, kPairs);
  }

  // The credit of a leaf at every token, to `credit`.
  void weigh(int i) {
    const Leaf& leaf = job.plan.leaves[i];
    if (job.group) return discounted_each(i);
    if (nodes()) return discounted_by_signs(i);
    if (job.credit_kind[i] == CreditKind::inputs) {
      int shift = 5 + 31 - __builtin_clz(static_cast<unsigned>(isqrt(leaf.cols)));
      return discounted(i, [&](int t, int32_t* v) {
        const int32_t* x = projection[i] + t * kPairs;
        for (int p = 0; p < kPairs; ++p) {
          int64_t product = (int64_t{v[p]} * x[p]) >> shift;
          v[p] = static_cast<int32_t>(product < -127 ? -127 : product > 127 ? 127 : product);
        }
      });
    }
    if (job.credit_kind[i] == CreditKind::tokens) {
      const int32_t* tokens[kPairs];
      for (int p = 0; p < kPairs; ++p) tokens[p] = job.tokens + stream(p);
      return discounted(i, [&](int t, int32_t* v) {
        // What is larger is clipped whatever it is multiplied by, but for 0.
        constexpr int32_t kMost = 1 << 12;
        for (int p = 0; p < kPairs; ++p)
          v[p] = (clamp(v[p], -kMost, kMost) * slice(i, p)[leaf.cols + tokens[p][t]]) >> 4;
      });
    }
    discounted(i, [](int, int32_t*) {});
  }

  // The credit of a leaf, summed as its kind asks, to the pairs' rows.
  void settle(int i, int8_t* const* rows) const {
    CreditKind kind = job.credit_kind[i];
    if (kind == CreditKind::inputs) return inputs(i, rows);
    alignas(64) int32_t sum[kPairs] = {};
    for (int t = 0; t < job.tokens_per_member; ++t)
      for (int p = 0; p < kPairs; ++p)
        if (kind == CreditKind::scalar)
          sum[p] += credit[t][p];
        else if (rows[p])
          rows[p][t] = credit[t][p];
    for (int p = 0; kind == CreditKind::scalar && p < kPairs; ++p)
      if (rows[p]) *rows[p] = static_cast<int8_t>(clip(rounded(sum[p], job.credit_shift)));
  }

  // Documents' marks, and the values given in place of scores.
  void mark() const {
    const int count = job.tokens_per_member;
    for (int p = 0; p < kPairs; ++p) {
      const int32_t* tokens = job.tokens + stream(p);
      for (int t = 0; t < count; ++t) marks[t][p] = tokens[t] == 0;
      for (int t = 0; job.values && t < count; ++t)
        score_difference[t][p] = job.values[pair(p) * count + t];
    }
  }

  // The credit of all leaves, once all tokens are scored and marked.
  void close() {
    for (int i = 0; i < job.plan.leaf_count; ++i) {
      CreditKind kind = job.credit_kind[i];
      if (kind == CreditKind::none || kind == CreditKind::readout) continue;
      int8_t* rows[kPairs];
      for (int p = 0; p < kPairs; ++p) {
        int64_t at = (first_member / 2 + p) * job.credit_size + job.credit_at[i];
        rows[p] = member(p) < job.members ? job.credits + at : nullptr;
      }
      weigh(i);
      settle(i, rows);
    }
  }
};
