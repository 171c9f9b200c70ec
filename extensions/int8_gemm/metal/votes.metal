// Votes of whole sequences: sum_i f_i A_i B_i^T of matrices, sum_i f_i n1 n2 of vectors.
//
// A term is one column of one pair's A and B. Constants RANK and CLT come first in the source.

namespace egg {

inline int value(int v) { return CLT ? v : (v > 0) - (v < 0); }

// What vote_product.metal multiplies: term i of row o, and of column k.
struct PairTerms {
  const device int8_t *fitness, *table;
  const device int32_t* starts;
  uint pairs;
};

inline int left_of(PairTerms terms, Tile tile, uint o, uint i) {
  const uint pair = i / RANK;
  const device int8_t* A = terms.table + terms.starts[tile.leaf * terms.pairs + pair];
  return int(terms.fitness[pair]) * value(A[RANK * (tile.K + o) + i % RANK]);
}

inline int right_of(PairTerms terms, Tile tile, uint k, uint i) {
  const device int8_t* B = terms.table + terms.starts[tile.leaf * terms.pairs + i / RANK];
  return value(B[k * RANK + i % RANK]);
}

// The vote of one element of a vector leaf from pairs begin .. end - 1.
inline int vector_vote(uint leaf, uint element, const device int8_t* fitness,
                       const device int8_t* table, const device int32_t* starts, uint pairs,
                       uint begin, uint end) {
  uint total = 0;
  for (uint pair = begin; pair < end; ++pair) {
    const device int8_t* two = table + starts[leaf * pairs + pair] + 2 * element;
    total += uint(int(fitness[pair]) * value(int(two[0]) * int(two[1])));
  }
  return int(total);
}

}  // namespace egg
