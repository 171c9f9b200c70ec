// Noise on weights, A B^T for the whole sequence; nodes.metal has the same functions for the other
// kind.

namespace egg {

// Element i of a vector leaf as both members of a pair see it: clip(w +- (n1 n2 >> SHIFT)).
EGG_FUNCTION int2 perturbed(const device int8_t* w, Noise noise, uint leaf, uint member, uint i) {
  int2 v;
  v.x = v.y = w[i];
  if (PERTURBED) {
    const device int8_t* two = slice(noise, leaf, member) + 2 * i;
    const int product = int(two[0]) * int(two[1]);
    v.x = clip(v.x + (product >> SHIFT));
    v.y = clip(v.y + (-product >> SHIFT));
  }
  return v;
}

// The noise added to rows of an embedding, a pair's: A[t] B^T >> SHIFT.
struct RowNoise {
  const device int8_t *B, *even, *odd;
};

template <int D>
EGG_FUNCTION RowNoise row_noise(Noise noise, uint leaf, uint member, uint even, uint odd) {
  RowNoise mine;
  mine.B = slice(noise, leaf, member);
  mine.even = mine.B + RANK * (D + even);
  mine.odd = mine.B + RANK * (D + odd);
  return mine;
}

EGG_FUNCTION int2 on_row(RowNoise mine, uint k) {
  uint plus = 0, minus = 0;
  for (uint q = 0; q < RANK; ++q) {
    plus += times(mine.even[q], mine.B[k * RANK + q]);
    minus -= times(mine.odd[q], mine.B[k * RANK + q]);
  }
  int2 v;
  v.x = int(plus) >> SHIFT;
  v.y = int(minus) >> SHIFT;
  return v;
}

// The noise added to the sums of a matrix, a pair's: (x B) A^T >> SHIFT.
struct SumNoise {
  const device int8_t* A;
};

template <int K>
EGG_FUNCTION SumNoise sum_noise(Noise noise, uint leaf, uint member) {
  SumNoise mine;
  mine.A = slice(noise, leaf, member) + RANK * K;
  return mine;
}

template <int DIVISOR, typename Sums>
EGG_FUNCTION int2 on_sum(SumNoise mine, Sums sums, uint member, uint o) {
  uint even = 0, odd = 0;
  for (uint q = 0; q < RANK; ++q) {
    const int a = mine.A[o * RANK + q];
    even += times(sums[q * M + member], a);
    odd += times(sums[q * M + member + 1], a);
  }
  int2 v;
  v.x = int(even) >> SHIFT;
  v.y = int(odd) >> SHIFT;
  return v;
}

}  // namespace egg
