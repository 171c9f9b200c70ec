// Rule whitened, in integers; docs/estimators.md has the arithmetic. P, M and what they make are
// Q16, votes Q8.

namespace egg {

// v / 2^16 to the nearest, halves to the even one.
EGG_FUNCTION int64_t nearest(int64_t v) {
  const int64_t whole = v >> 16, rest = v - whole * 65536;
  return whole + (rest > 32768 || (rest == 32768 && (whole & 1) != 0));
}

// The same of v / by, for any by above 0.
EGG_FUNCTION int64_t nearest_quotient(int64_t v, int64_t by) {
  const int64_t size = v < 0 ? -v : v, whole = size / by, rest = size - whole * by;
  const int64_t found = whole + (2 * rest > by || (2 * rest == by && (whole & 1) != 0));
  return v < 0 ? -found : found;
}

// floor(v / by), for any by above 0.
EGG_FUNCTION int64_t floor_quotient(int64_t v, int64_t by) {
  return v < 0 ? -((by - 1 - v) / by) : v / by;
}

// The element (row, column) of the product of two squares of `size`, one after another in memory.
EGG_FUNCTION int64_t product_of(const EGG_DEVICE int32_t* a, const EGG_DEVICE int32_t* b, int size,
                                int row, int column) {
  int64_t sum = 0;
  for (int k = 0; k < size; ++k) sum += int64_t(a[row * size + k]) * b[k * size + column];
  return sum;
}

}  // namespace egg
