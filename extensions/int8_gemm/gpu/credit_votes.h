// Token-credited votes: sum_p A u^T of matrices, u from the sums of credit x input; sum_p c n of
// vectors, n their own noise or the A of the matrix that owns it.

namespace egg {

// The terms that vote_product multiplies: A lies `at` bytes into the slice, sums [pairs][K] from
// `first` on.
struct CreditTerms {
  const EGG_DEVICE int8_t* table;
  const EGG_DEVICE int32_t *starts, *sums;
  uint32_t pairs, at, first;
  int shift;
};

EGG_FUNCTION int left_of(CreditTerms terms, Tile tile, uint32_t o, uint32_t i) {
  return terms.table[terms.starts[tile.leaf * terms.pairs + i] + terms.at + o];
}

EGG_FUNCTION int right_of(CreditTerms terms, Tile tile, uint32_t k, uint32_t i) {
  return clip(rounded(terms.sums[terms.first + i * tile.K + k], terms.shift));
}

// The vote of one element of a vector from pairs begin .. end - 1. at: of A in the owner's slice,
// or -1 for products of two bytes.
EGG_FUNCTION int vector_vote(uint32_t leaf, uint32_t element, int at,
                             const EGG_DEVICE int8_t* credits, const EGG_DEVICE int8_t* table,
                             const EGG_DEVICE int32_t* starts, uint32_t pairs, uint32_t begin,
                             uint32_t end) {
  uint32_t total = 0;
  for (uint32_t pair = begin; pair < end; ++pair) {
    const EGG_DEVICE int8_t* mine = table + starts[leaf * pairs + pair];
    const int n = at < 0 ? int(mine[2 * element]) * int(mine[2 * element + 1])
                         : int(mine[uint32_t(at) + element]);
    total += uint32_t(int(credits[pair]) * n);
  }
  return int(total);
}

}  // namespace egg
