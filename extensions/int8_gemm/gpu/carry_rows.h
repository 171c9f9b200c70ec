// Entries of rows.h for errors carried back: the credit that a member's row had for a token, or for
// an index of a list that it was shown.

namespace egg {

// Entry (p T + t) `indices` + i: index i of member p's row t; `active` of them are a list, of
// `columns` values. The credit begins with row `row` of the `rows` that each token has.
struct Carried {
  const EGG_DEVICE int8_t* credits;
  uint32_t T, rows, row, indices, active, columns;
};

EGG_FUNCTION int value_of(Carried from, uint32_t entry, uint32_t column) {
  const uint32_t at = entry / from.indices, list = entry % from.indices / from.active;
  const uint32_t p = at / from.T, token = p / M * from.T + at % from.T;
  const EGG_DEVICE int8_t* mine = from.credits + (token * from.rows + from.row) * M;
  return mine[place(list * from.columns + column, p % M)];
}

}  // namespace egg
