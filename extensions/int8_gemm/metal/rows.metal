// Sums over the entries that name a row, sorted by row: of an embedding, credit x B; of the
// readout, plus or minus the input. A simdgroup per row and 32 columns, lanes along the columns.

namespace egg {

// The first of `count` sorted rows that is not below `row`.
inline uint first_of(const device int32_t* sorted, uint count, int row) {
  uint low = 0, high = count;
  while (low < high) {
    const uint middle = (low + high) / 2;
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
  const device int8_t *table, *credits;
  const device int32_t* starts;  // [pairs]
  uint T, lanes;
};

inline int value_of(Embedded from, uint entry, uint column) {
  const uint pair = entry / from.T;
  const int b = from.table[from.starts[pair] + column];
  return int(from.credits[entry % from.T * from.lanes + pair]) * b;
}

// Entries 2 i and 2 i + 1: to a row what token i's input was, and from a row.
struct Read {
  const device int8_t* inputs;
  uint K;
};

inline int value_of(Read from, uint entry, uint column) {
  const int x = from.inputs[entry / 2 * from.K + column];
  return entry % 2 == 0 ? x : -x;
}

// The sum of one row and column over the entries at begin .. end - 1 of the sorted ones.
template <typename From>
inline int row_vote(From from, const device int32_t* sorted, const device int32_t* order,
                    uint count, uint begin, uint end, uint row, uint column) {
  uint total = 0;
  const uint last = min(first_of(sorted, count, int(row) + 1), end);
  for (uint at = max(first_of(sorted, count, int(row)), begin); at < last; ++at)
    total += uint(value_of(from, order[at], column));
  return int(total);
}

}  // namespace egg
