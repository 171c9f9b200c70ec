// Votes of errors carried back: credit in int8 times inputs, over all tokens and members of whole
// threadgroups; those that are not there have no credit.

namespace egg {

// The terms that vote_product multiplies: term i is member i % M of row i / M of the launch, which
// left `rows` rows of values and `credit_rows` of credit. row, credit_row: the leaf's first ones.
struct CarriedTerms {
  const EGG_DEVICE int8_t *tape, *credits;
  uint32_t rows, credit_rows, row, credit_row;
};

EGG_FUNCTION int left_of(CarriedTerms terms, Tile tile, uint32_t o, uint32_t i) {
  const uint32_t first = (i / M * terms.credit_rows + terms.credit_row) * M;
  return terms.credits[first + place(o, i % M)];
}

EGG_FUNCTION int right_of(CarriedTerms terms, Tile tile, uint32_t k, uint32_t i) {
  return terms.tape[(i / M * terms.rows + terms.row) * M + place(k, i % M)];
}

}  // namespace egg
