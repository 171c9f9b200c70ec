// Credit through y_i = clip((x_i w_i) // max(1, sum|x| // D)). One simdgroup per member.

namespace egg {

EGG_FUNCTION int floor_of(int a, int b) {
  const int q = a / b;
  return q - (q * b > a ? 1 : 0);
}

// The same, held within +-BOUND; b is positive.
EGG_FUNCTION int bounded_floor(int64_t a, int b) {
  const int64_t most = int64_t(BOUND) * b;
  if (a >= most) return BOUND;
  if (a <= -most) return -BOUND;
  return int(a / b) - (a % b < 0 ? 1 : 0);
}

// Credit of the result, c, goes to the votes, and if GIVES to the input: to what `from` has if
// ADDS; LAST: whether it is next to an output. Returns this lane's part of the sum of |c|. x, y:
// what was read and made; word, scale: to round credit in int8; m: of the member.
template <int D, bool GIVES, bool ADDS, bool LAST>
EGG_FUNCTION uint64_t norm_back(EGG_DEVICE int* to, const EGG_DEVICE int* from,
                                const EGG_DEVICE int* c, EGG_DEVICE int* votes,
                                const EGG_DEVICE int8_t* x, const EGG_DEVICE int8_t* y,
                                const EGG_DEVICE int8_t* w, uint32_t word, int scale, uint32_t m,
                                Lane lane) {
  int sum = 0;
  int64_t total = 0;
  for (uint32_t k = lane.index; k < D; k += 32) {
    const uint32_t at = place(k, m);
    const int v = x[at];
    sum += abs(v);
    total += int64_t((LAST ? held(c[at], y[at]) : unclipped(c[at], y[at])) * int(w[k])) * v;
  }
  const int mean = max(over_lanes(sum) / D, 1);
  const int shared = GIVES ? bounded_floor(over_lanes(total), mean * mean * D) : 0;
  uint64_t size = 0;
  for (uint32_t k = lane.index; k < D; k += 32) {
    const uint32_t at = place(k, m);
    const int v = x[at], mine = LAST ? held(c[at], y[at]) : unclipped(c[at], y[at]);
    size += uint32_t(abs(mine));
    const int normed = clip(floor_of(16 * v, mean));
    votes[at] = wrapping(votes[at], to_int8(mine, mixed(word + k), scale) * normed);
    if (!GIVES) continue;
    const int sign = (v > 0) - (v < 0);
    const int given = bounded(floor_of(mine * int(w[k]), mean) - sign * shared);
    to[at] = ADDS ? bounded(from[at] + given) : given;
  }
  return size;
}

}  // namespace egg
