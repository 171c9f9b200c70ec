// The primitives of token credit that an instruction set may replace, in portable C++. Lanes here
// are the 16 pairs.

// Draws a token of the prediction of each pair's first member while the tiles of its logits pass
// by: it is in the tile of `index`, whose logits are `chosen` and weigh `weight`, of `total` so
// far. How `total` lies is a unit's own.
struct Offers {
  alignas(64) uint64_t total[kPairs];
  alignas(64) uint32_t chosen[2][kPairs], weight[kPairs], index[kPairs], seed[kPairs];
};

// How a leaf's score differences become its credit: what is kept of later ones, in 1/16, and the
// shifts to 1/256 bit and on to the credit's unit.
struct Discount {
  int32_t kept, finer, unit;
};

// Tokens that Isa::credit is given at once, at most: their inputs fit a core's cache.
constexpr int kCreditTokens = 32;

struct PortableCredit {
  // A whole number below n, n < 2^44, from the first twenty bits of a random word.
  static uint64_t below(uint64_t n, uint32_t random) { return (n * (random >> 12)) >> 20; }

  // Adds a tile's EXP2 to sum[32], as Isa::exp2_sum. It replaces what was chosen of the tiles
  // before it with a probability that follows its weight.
  template <typename Isa>
  static void offer(Offers& of, uint32_t (*words)[kLanes], int tile, int count, const Plan& plan,
                    uint32_t* sum) {
    alignas(64) uint32_t part[kLanes] = {};
    Isa::exp2_sum(words, count, plan, part);
    for (int m = 0; m < kLanes; ++m) sum[m] += part[m];
    // In steps of one width each, so that they vectorise.
    alignas(64) uint32_t random[kPairs];
    alignas(64) uint64_t bound[kPairs], limit[kPairs];
    for (int p = 0; p < kPairs; ++p) random[p] = mixed(of.seed[p] + static_cast<uint32_t>(tile));
    for (int p = 0; p < kPairs; ++p) limit[p] = part[p];
    for (int p = 0; p < kPairs; ++p) of.total[p] += limit[p];
    for (int p = 0; p < kPairs; ++p) bound[p] = below(of.total[p], random[p]);
    for (int p = 0; p < kPairs; ++p) bound[p] = bound[p] < limit[p] ? ~uint64_t{0} : 0;
    alignas(64) uint32_t take[kPairs];
    for (int p = 0; p < kPairs; ++p) take[p] = static_cast<uint32_t>(bound[p]);
    auto choose = [&](uint32_t* kept, const uint32_t* offered) {
      for (int p = 0; p < kPairs; ++p) kept[p] ^= (kept[p] ^ offered[p]) & take[p];
    };
    choose(of.chosen[0], words[0]), choose(of.chosen[1], words[1]), choose(of.weight, part);
    for (int p = 0; p < kPairs; ++p)
      of.index[p] ^= (of.index[p] ^ static_cast<uint32_t>(tile)) & take[p];
  }

  // The tokens drawn, once all tiles were offered.
  static void drawn(const Offers& of, const Plan& plan, int32_t* token) {
    for (int p = 0; p < kPairs; ++p) {
      uint64_t at = below(of.weight[p], mixed(~of.seed[p]));
      for (int o = 0;; ++o) {
        const uint32_t u = ((of.chosen[o / 4][p] >> 8 * (o % 4)) & 255u) ^ 128u;
        token[p] = static_cast<int32_t>(of.index[p]) * kTile + o;
        if (at < static_cast<uint32_t>(plan.exp2[u])) break;
        at -= static_cast<uint32_t>(plan.exp2[u]);
      }
    }
  }

  // Credit with the noise's sign, of at most 32 tokens from the last to the first: the discounted
  // score differences from each token on. r[16]: those from the tokens after these on, and then
  // those from the first of these on. Bit t of a pair's `signs` turns the noise of the t-th.
  static void discount(const int32_t (*difference)[kPairs], const uint8_t (*marks)[kPairs],
                       const uint32_t* signs, int tokens, const Discount& by, int32_t* r,
                       int8_t (*credit)[kPairs]) {
    const int32_t half = (1 << by.unit) >> 1;
    for (int t = tokens - 1; t >= 0; --t) {
      alignas(64) int32_t v[kPairs];
      alignas(16) int8_t c[kPairs];
      for (int p = 0; p < kPairs; ++p) {
        r[p] = (difference[t][p] << by.finer) + ((by.kept * r[p]) >> 4);
        v[p] = (r[p] + half) >> by.unit;
      }
      for (int p = 0; p < kPairs; ++p) v[p] = signs[p] >> t & 1 ? -v[p] : v[p];
      for (int p = 0; p < kPairs; ++p) c[p] = static_cast<int8_t>(clip(v[p]));
      __builtin_memcpy(credit[t], c, sizeof c);
      // A document's first score is no credit for the token before it.
      for (int p = 0; p < kPairs; ++p) r[p] = marks[t][p] ? 0 : r[p];
    }
  }

  // sum[w] += the credit of each pair at every token x the bytes of its w-th word there; x: words
  // [tokens][words][16], as Tape::keeping has them. What of four bytes and 16 pairs lies where in a
  // sum is a unit's own.
  static void credit(const uint32_t* x, int words, const int8_t (*c)[kPairs], int tokens,
                     int32_t (*sum)[4][kPairs]) {
    size_t stride = static_cast<size_t>(words) * kPairs;
    for (int w = 0; w < words; ++w) credit_word(x + w * kPairs, stride, c, tokens, sum[w]);
  }

  static void credit_word(const uint32_t* x, size_t stride, const int8_t (*c)[kPairs], int tokens,
                          int32_t (*sum)[kPairs]) {
    for (int t = 0; t < tokens; ++t, x += stride)
      for (int j = 0; j < 4; ++j)
        for (int p = 0; p < kPairs; ++p) sum[j][p] += c[t][p] * byte_at(x[p], j);
  }

  // Such a sum, rounded by `shift` and clipped, as a word of every pair.
  static void credit_bytes(const int32_t (*sum)[kPairs], int shift, uint32_t* to) {
    for (int p = 0; p < kPairs; ++p) to[p] = 0;
    for (int j = 0; j < 4; ++j)
      for (int p = 0; p < kPairs; ++p)
        to[p] |= (static_cast<uint32_t>(clip(rounded(sum[j][p], shift))) & 255u) << 8 * j;
  }
};
