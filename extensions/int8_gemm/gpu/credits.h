// The credit of every token of a pair to its leaves: discounted differences of the members' scores,
// times the sign of the noise, or its projection x B where weights have noise.
//
// A thread goes through the tokens of one pair from the last one back, for one credit: what leaves
// with the same noise and discount share. The type Score is generated: int16_t, or int32_t where
// the differences of other values take the place of scores.

namespace egg {

// The factor of a discounted score difference.
enum { BY_SIGN, BY_ONE, BY_ROW, BY_SUM };

struct Credit {
  int way, discount;
  uint32_t leaf;  // whose signs or slice they are
  uint32_t at;    // BY_ROW: where A begins in the slice; BY_SUM: its place in projections
  int shift;      // BY_SUM: of the product
};

EGG_FUNCTION Credit credit_of(const EGG_DEVICE int32_t* w) {
  Credit credit;
  credit.way = w[0];
  credit.discount = w[1];
  credit.leaf = w[2];
  credit.at = w[3];
  credit.shift = w[4];
  return credit;
}

// Everything of the pairs: scores [2 pairs][T], tokens the same, signs [leaves][pairs][words],
// projections x B [products][T][lanes]; lanes are the pairs of whole threadgroups.
struct Pairs {
  const EGG_DEVICE Score* scores;
  const EGG_DEVICE int32_t *tokens, *signs, *starts, *projections;
  const EGG_DEVICE int8_t* table;
  uint32_t pairs, lanes, T, words;
  int unit, unit_shift;  // of a score in 1/256 bit; from that to the unit of credit
};

EGG_FUNCTION int factor(Credit credit, Pairs of, uint32_t pair, uint32_t lane, uint32_t t) {
  if (credit.way == BY_SIGN) {
    const uint32_t word = of.signs[(credit.leaf * of.pairs + pair) * of.words + t / 32];
    return (word >> (t % 32)) & 1 ? -1 : 1;
  }
  if (credit.way == BY_ROW) {
    const uint32_t token = of.tokens[2 * pair * of.T + t];
    return of.table[of.starts[credit.leaf * of.pairs + pair] + credit.at + token];
  }
  return credit.way == BY_SUM ? of.projections[(credit.at * of.T + t) * of.lanes + lane] : 1;
}

// clip(v >> shift)
EGG_FUNCTION int clipped(int64_t v, int shift) {
  const int64_t w = v >> shift;
  return int(w < -127 ? -127 : w > 127 ? 127 : w);
}

// given[t * lanes] are the credits of a pair's tokens; returns their sum.
EGG_FUNCTION int weigh(EGG_DEVICE int8_t* given, Credit credit, Pairs of, uint32_t lane) {
  const uint32_t pair = min(lane, of.pairs - 1);
  const EGG_DEVICE Score* score = of.scores + 2 * pair * of.T;
  const EGG_DEVICE int32_t* tokens = of.tokens + 2 * pair * of.T;
  int after = 0, sum = 0;
  for (uint32_t back = 0; back < of.T; ++back) {
    const uint32_t t = of.T - 1 - back;
    const int d = int(score[t]) - int(score[of.T + t]);
    const int r = of.unit * d + ((credit.discount * after) >> 4);
    const int64_t product = int64_t(rounded(r, of.unit_shift)) * factor(credit, of, pair, lane, t);
    const int c = clipped(product, credit.shift);
    given[t * of.lanes] = int8_t(c);
    sum += c;
    after = tokens[t] != 0 ? r : 0;  // a document's first token owes nothing to the one before
  }
  return sum;
}

}  // namespace egg
