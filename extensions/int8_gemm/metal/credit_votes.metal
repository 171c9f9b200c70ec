// Token-credited votes: sum_p A u^T of matrices, u from the sums of credit x input; sum_p c n of
// vectors, n their own noise or the A of the matrix that owns it.

namespace egg {

// What vote_product.metal multiplies: A lies `at` bytes into the slice, sums [pairs][K] from
// `first` on.
struct CreditTerms {
  const device int8_t* table;
  const device int32_t *starts, *sums;
  uint pairs, at, first;
  int shift;
};

inline int left_of(CreditTerms terms, Tile tile, uint o, uint i) {
  return terms.table[terms.starts[tile.leaf * terms.pairs + i] + terms.at + o];
}

inline int right_of(CreditTerms terms, Tile tile, uint k, uint i) {
  return clip(rounded(terms.sums[terms.first + i * tile.K + k], terms.shift));
}

// The vote of one element of a vector from pairs begin .. end - 1. at: of A in the owner's slice,
// or -1 for products of two bytes.
inline int vector_vote(uint leaf, uint element, int at, const device int8_t* credits,
                       const device int8_t* table, const device int32_t* starts, uint pairs,
                       uint begin, uint end) {
  uint total = 0;
  for (uint pair = begin; pair < end; ++pair) {
    const device int8_t* mine = table + starts[leaf * pairs + pair];
    const int n = at < 0 ? int(mine[2 * element]) * int(mine[2 * element + 1])
                         : int(mine[uint(at) + element]);
    total += uint(int(credits[pair]) * n);
  }
  return int(total);
}

}  // namespace egg
