// What every token of a pair is worth to its leaves: discounted differences of the members' scores,
// times the sign of the noise or what the noise of the weights met there.
//
// A thread goes through the tokens of one pair from the last one back, for one credit: what leaves
// with the same noise and discount share.

namespace egg {

// What a gain is multiplied with.
constant constexpr int BY_SIGN = 0, BY_ONE = 1, BY_ROW = 2, BY_SUM = 3;

struct Credit {
  int way, discount;
  uint leaf;  // whose signs or slice they are
  uint at;    // BY_ROW: where A begins in the slice; BY_SUM: its place in met
  int shift;  // BY_SUM: of the product
};

inline Credit credit_of(const device int32_t* w) {
  Credit credit;
  credit.way = w[0];
  credit.discount = w[1];
  credit.leaf = w[2];
  credit.at = w[3];
  credit.shift = w[4];
  return credit;
}

// Everything of the pairs: scores [2 pairs][T], tokens the same, signs [leaves][pairs][words], met
// [products][T][lanes]; lanes are the pairs of whole threadgroups.
struct Pairs {
  const device int16_t* scores;
  const device int32_t *tokens, *signs, *starts, *met;
  const device int8_t* table;
  uint pairs, lanes, T, words;
};

inline int factor(Credit credit, Pairs of, uint pair, uint lane, uint t) {
  if (credit.way == BY_SIGN) {
    const uint word = of.signs[(credit.leaf * of.pairs + pair) * of.words + t / 32];
    return (word >> (t % 32)) & 1 ? -1 : 1;
  }
  if (credit.way == BY_ROW) {
    const uint token = of.tokens[2 * pair * of.T + t];
    return of.table[of.starts[credit.leaf * of.pairs + pair] + credit.at + token];
  }
  return credit.way == BY_SUM ? of.met[(credit.at * of.T + t) * of.lanes + lane] : 1;
}

// clip(v >> shift)
inline int clipped(long v, int shift) {
  const long w = v >> shift;
  return int(w < -127 ? -127 : w > 127 ? 127 : w);
}

// given[t * lanes] are the credits of a pair's tokens; returns their sum.
inline int weigh(device int8_t* given, Credit credit, Pairs of, uint lane) {
  const uint pair = min(lane, of.pairs - 1);
  const device int16_t* score = of.scores + 2 * pair * of.T;
  const device int32_t* tokens = of.tokens + 2 * pair * of.T;
  int after = 0, sum = 0;
  for (uint back = 0; back < of.T; ++back) {
    const uint t = of.T - 1 - back;
    const int d = int(score[t]) - int(score[of.T + t]);
    const int r = 16 * d + ((credit.discount * after) >> 4);
    const long product = long(rounded(r, 4)) * long(factor(credit, of, pair, lane, t));
    const int c = clipped(product, credit.shift);
    given[t * of.lanes] = int8_t(c);
    sum += c;
    after = tokens[t] != 0 ? r : 0;  // a document's first token owes nothing to the one before
  }
  return sum;
}

}  // namespace egg
