// Noise on the outputs of layers ("nodes"), with a new sign at every token; weights.metal has the
// same functions for the other kind. SHIFTS of the stage's leaves come first in the source.

namespace egg {

constant constexpr int SILENT = 63;  // the shift of a leaf without noise of its own

EGG_FUNCTION Turns turns(Noise noise, uint leaf, uint member) {
  const uint pair = min(noise.first + member / 2, noise.pairs - 1);
  return turns_of(noise.signs[(leaf * noise.pairs + pair) * noise.words + noise.t / 32], noise.t);
}

// n for the even member and -n for the odd one, or either's opposite.
EGG_FUNCTION int2 turned_each(int n, Turns turn) {
  int2 v;
  v.x = turn.first ? -n : n;
  v.y = turn.second ? n : -n;
  return v;
}

// Element i of a vector leaf as both members of a pair see it: clip(w +- (n1 n2 >> shift)).
EGG_FUNCTION int2 perturbed(const device int8_t* w, Noise noise, uint leaf, uint member, uint i) {
  int2 v;
  v.x = v.y = w[i];
  const int shift = SHIFTS[leaf];
  if (shift == SILENT) return v;
  const device int8_t* two = slice(noise, leaf, member) + 2 * i;
  const int2 n = turned_each(int(two[0]) * int(two[1]), turns(noise, leaf, member));
  v.x = clip(v.x + (n.x >> shift));
  v.y = clip(v.y + (n.y >> shift));
  return v;
}

// The noise added to rows of an embedding, whatever the token: B.
struct RowNoise {
  const device int8_t* B;
  int shift;
  Turns turn;
};

template <int D>
EGG_FUNCTION RowNoise row_noise(Noise noise, uint leaf, uint member, uint, uint) {
  RowNoise mine;
  mine.B = slice(noise, leaf, member);
  mine.shift = SHIFTS[leaf];
  mine.turn = turns(noise, leaf, member);
  return mine;
}

EGG_FUNCTION int2 on_row(RowNoise mine, uint k) {
  return turned_each(mine.shift == SILENT ? 0 : rounded(mine.B[k], mine.shift), mine.turn);
}

// The noise added to the sums of a matrix: A in units of an output's last bit.
struct SumNoise {
  const device int8_t* A;
  int shift;
  Turns turn;
};

template <int K>
EGG_FUNCTION SumNoise sum_noise(Noise noise, uint leaf, uint member) {
  SumNoise mine;
  mine.A = slice(noise, leaf, member) + K;
  mine.shift = SHIFTS[leaf];
  mine.turn = turns(noise, leaf, member);
  return mine;
}

template <int DIVISOR, typename Sums>
EGG_FUNCTION int2 on_sum(SumNoise mine, Sums, uint, uint o) {
  const int n = mine.shift == SILENT ? 0 : rounded(DIVISOR * int(mine.A[o]), mine.shift);
  return turned_each(n, mine.turn);
}

}  // namespace egg
