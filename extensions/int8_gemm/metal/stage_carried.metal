// The terms of errors carried back, staged by fours of members, which lie side by side.

namespace egg {

EGG_FUNCTION char4 four_members(const device int8_t* rows, uint row, uint term) {
  return *reinterpret_cast<const device char4*>(rows + row * M + term % M);
}

// As the template of vote_product.metal, for which it is taken.
template <typename Shared>
EGG_FUNCTION void stage(Shared left, Shared right, Tile tile, CarriedTerms terms, uint from,
                        uint end, uint thread_index) {
  for (uint at = thread_index; at < SIDE * DEPTH / 4; at += THREADS) {
    const uint c = at / (DEPTH / 4), i = at % (DEPTH / 4) * 4, term = from + i, token = term / M;
    char4 a, b;
    a.x = a.y = a.z = a.w = b.x = b.y = b.z = b.w = 0;
    if (term < end && tile.row + c < tile.O)
      a = four_members(terms.credits, token * terms.credit_rows + terms.credit_row + tile.row + c,
                       term);
    if (term < end && tile.column + c < tile.K)
      b = four_members(terms.tape, token * terms.rows + terms.row + tile.column + c, term);
    Shared to = left + c * LEFT + i, below = right + i * RIGHT + c;
    to[0] = a.x;
    to[1] = a.y;
    to[2] = a.z;
    to[3] = a.w;
    below[0] = b.x;
    below[RIGHT] = b.y;
    below[2 * RIGHT] = b.z;
    below[3 * RIGHT] = b.w;
  }
}

}  // namespace egg
