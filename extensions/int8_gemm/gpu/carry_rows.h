// Entries of rows.h for errors carried back: the credit that a member's row had for a token, or for
// an index of a list that it was shown.

namespace egg {

// Entry (i M + m) `lists` + l: member m of row i of the launch, list l of `columns` values. Credit
// begins with row `row` of the `rows` that each row of the launch has.
struct Carried {
  const EGG_DEVICE int8_t* credits;
  uint32_t rows, row, lists, columns;
};

EGG_FUNCTION int value_of(Carried from, uint32_t entry, uint32_t column) {
  const bool one = from.lists == 1;
  const uint32_t at = one ? entry : entry / from.lists, list = one ? 0 : entry % from.lists;
  const EGG_DEVICE int8_t* mine = from.credits + (at / M * from.rows + from.row) * M;
  return mine[place(list * from.columns + column, at % M)];
}

}  // namespace egg
