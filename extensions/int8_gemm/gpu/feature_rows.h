// Entries of rows.h for sparse features: credit x noise of every index that a pair was shown.

namespace egg {

// Entry (p T + t) `indices` + i: index i of pair p's row t, which names row `row` of a leaf
// [count][columns]; `active` of them are a list.
struct Featured {
  const EGG_DEVICE int8_t *table, *credits;
  const EGG_DEVICE int32_t* starts;  // [pairs]
  uint32_t T, lanes, indices, active, columns, row;
  bool nodes;  // noise on what lists give, else on the leaf
};

EGG_FUNCTION int value_of(Featured from, uint32_t entry, uint32_t column) {
  const uint32_t place = entry / from.indices, list = entry % from.indices / from.active;
  const uint32_t pair = place / from.T;
  const EGG_DEVICE int8_t* mine = from.table + from.starts[pair];
  const int credit = from.credits[place % from.T * from.lanes + pair];
  if (from.nodes) return credit * int(mine[list * from.columns + column]);
  return clip((credit * int(mine[from.columns + from.row])) >> 4) * int(mine[column]);
}

}  // namespace egg
