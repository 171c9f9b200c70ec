// Votes of whole sequences: sum_i f_i A_i B_i^T of matrices, sum_i f_i n1 n2 of vectors.
//
// A term is one column of one pair's A and B. Constants RANK and CLT come first in the source.

namespace egg {

EGG_FUNCTION int value(int v) { return CLT ? v : (v > 0) - (v < 0); }

// The terms that vote_product multiplies: term i of row o, and of column k.
struct PairTerms {
  const EGG_DEVICE int8_t *fitness, *table;
  const EGG_DEVICE int32_t* starts;
  uint32_t pairs;
};

EGG_FUNCTION int left_of(PairTerms terms, Tile tile, uint32_t o, uint32_t i) {
  const uint32_t pair = i / RANK;
  const EGG_DEVICE int8_t* A = terms.table + terms.starts[tile.leaf * terms.pairs + pair];
  return int(terms.fitness[pair]) * value(A[RANK * (tile.K + o) + i % RANK]);
}

EGG_FUNCTION int right_of(PairTerms terms, Tile tile, uint32_t k, uint32_t i) {
  const EGG_DEVICE int8_t* B = terms.table + terms.starts[tile.leaf * terms.pairs + i / RANK];
  return value(B[k * RANK + i % RANK]);
}

// The vote of one element of a vector leaf from pairs begin .. end - 1.
EGG_FUNCTION int vector_vote(uint32_t leaf, uint32_t element, const EGG_DEVICE int8_t* fitness,
                             const EGG_DEVICE int8_t* table, const EGG_DEVICE int32_t* starts,
                             uint32_t pairs, uint32_t begin, uint32_t end) {
  uint32_t total = 0;
  for (uint32_t pair = begin; pair < end; ++pair) {
    const EGG_DEVICE int8_t* two = table + starts[leaf * pairs + pair] + 2 * element;
    total += uint32_t(int(fitness[pair]) * value(int(two[0]) * int(two[1])));
  }
  return int(total);
}

}  // namespace egg
