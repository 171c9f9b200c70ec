// Sums over the entries that name a row, sorted by row: of an embedding, credit x B; of the
// readout, plus or minus the input. A simdgroup per row and 32 columns, lanes along the columns.

namespace egg {

// The first of `count` sorted rows that is not below `row`.
EGG_FUNCTION uint32_t first_of(const EGG_DEVICE int32_t* sorted, uint32_t count, int row) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (sorted[middle] < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Entry p T + t: the credit of pair p's token t times B.
struct Embedded {
  const EGG_DEVICE int8_t *table, *credits;
  const EGG_DEVICE int32_t* starts;  // [pairs]
  uint32_t T, lanes;
};

EGG_FUNCTION int value_of(Embedded from, uint32_t entry, uint32_t column) {
  const uint32_t pair = entry / from.T;
  const int b = from.table[from.starts[pair] + column];
  return int(from.credits[entry % from.T * from.lanes + pair]) * b;
}

// Entries 2 i and 2 i + 1: to a row what token i's input was, and from a row.
struct Read {
  const EGG_DEVICE int8_t* inputs;
  uint32_t K;
};

EGG_FUNCTION int value_of(Read from, uint32_t entry, uint32_t column) {
  const int x = from.inputs[entry / 2 * from.K + column];
  return entry % 2 == 0 ? x : -x;
}

// The sum of one row and column over the entries at begin .. end - 1 of the sorted ones.
template <typename From>
EGG_FUNCTION int row_vote(From from, const EGG_DEVICE int32_t* sorted,
                          const EGG_DEVICE int32_t* order, uint32_t count, uint32_t begin,
                          uint32_t end, uint32_t row, uint32_t column) {
  uint32_t total = 0;
  const uint32_t last = min(first_of(sorted, count, int(row) + 1), end);
  for (uint32_t at = max(first_of(sorted, count, int(row)), begin); at < last; ++at)
    total += uint32_t(value_of(from, order[at], column));
  return int(total);
}

}  // namespace egg
