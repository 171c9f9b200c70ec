// The credit of every token of a pair whose members are compared with the mean of their group: each
// member's discounted score beyond the mean, times the sign of its own noise. Follows credits.h.

namespace egg {

// given[t * lanes] are the credits of a pair's tokens; returns their sum.
EGG_FUNCTION int weigh_both(EGG_DEVICE int8_t* given, Credit credit, Pairs of, uint32_t group,
                            uint32_t lane) {
  const uint32_t pair = min(lane, of.pairs - 1), first = 2 * pair / group * group;
  const EGG_DEVICE int32_t* tokens = of.tokens + 2 * pair * of.T;
  int after[2] = {0, 0}, sum = 0;
  for (uint32_t back = 0; back < of.T; ++back) {
    const uint32_t t = of.T - 1 - back;
    int mean = 0, value[2];
    for (uint32_t m = 0; m < group; ++m) mean += int(of.scores[(first + m) * of.T + t]);
    mean = (mean - (mean % int(group) + int(group)) % int(group)) / int(group);  // rounded down
    const uint32_t word = of.signs[(credit.leaf * of.pairs + pair) * of.words + t / 32];
    const Turns turn = turns_of(word, t);
    for (int i = 0; i < 2; ++i) {
      const int d = int(of.scores[(2 * pair + i) * of.T + t]) - mean;
      after[i] = of.unit * d + ((credit.discount * after[i]) >> 4);
      value[i] = rounded(after[i], of.unit_shift);
    }
    const int c =
        clipped((turn.first ? -value[0] : value[0]) + (turn.second ? value[1] : -value[1]), 0);
    given[t * of.lanes] = int8_t(c);
    sum += c;
    // A document's first token owes nothing to the one before.
    for (int i = 0; i < 2; ++i) after[i] = tokens[t] != 0 ? after[i] : 0;
  }
  return sum;
}

}  // namespace egg
