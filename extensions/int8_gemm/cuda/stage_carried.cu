// The terms of errors carried back, staged by words: a thread takes four members of four features.

namespace egg {

// Four members of features `first` .. `first` + 3, from row `row` on, at a term: a word for each
// feature.
__device__ inline uint4 four_members(const int8_t* rows, uint32_t row, uint32_t first,
                                     uint32_t term) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(rows + row * M);
  words += (first / 8 * M + term % M) * 2 + first / 4 % 2;
  return turned_over(make_uint4(words[0], words[2], words[4], words[6]));
}

// As the template of vote_product.cu. Features past an edge may be anything: no vote is made of
// them.
__device__ inline void stage(uint32_t* left, uint32_t* right, Tile tile, CarriedTerms terms,
                             uint32_t from, uint32_t end, uint32_t thread) {
#pragma unroll 2
  for (uint32_t at = thread; at < SIDE * DEPTH / 16; at += THREADS) {
    const uint32_t quad = at / 2 % (DEPTH / 4), c = at / (DEPTH / 2) * 8 + at % 2 * 4;
    const uint32_t term = from + 4 * quad, token = term / M;
    uint4 a = make_uint4(0, 0, 0, 0), b = a;
    if (term < end && tile.row + c < tile.O)
      a = four_members(terms.credits, token * terms.credit_rows + terms.credit_row, tile.row + c,
                       term);
    if (term < end && tile.column + c < tile.K)
      b = four_members(terms.tape, token * terms.rows + terms.row, tile.column + c, term);
    *reinterpret_cast<uint4*>(left + quad * LINE + c) = a;
    *reinterpret_cast<uint4*>(right + quad * LINE + c) = b;
  }
}

}  // namespace egg
