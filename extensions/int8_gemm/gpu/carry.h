// Credit of an operation's inputs and leaf from that of its result, element by element.
//
// Credit is int32 within +-BOUND and lies as registers do, [features / BESIDE][M members][BESIDE].
// The constants M and BESIDE come first in the generated source.

namespace egg {

enum { BOUND = (1 << 22) - 1, SUM_BOUND = 1 << 26 };

EGG_FUNCTION int bounded(int c) { return max(-int(BOUND), min(c, int(BOUND))); }

// The place of a member's feature in an array of credit or on a tape, and back.
EGG_FUNCTION uint32_t place(uint32_t k, uint32_t m) {
  return (k / BESIDE * M + m) * BESIDE + k % BESIDE;
}
EGG_FUNCTION uint32_t feature_of(uint32_t at) { return at / (M * BESIDE) * BESIDE + at % BESIDE; }
EGG_FUNCTION uint32_t member_of(uint32_t at) { return at / BESIDE % M; }

// Credit in int8, rounded up or down by chance.
EGG_FUNCTION int to_int8(int c, uint32_t word, int scale) {
  const int chance = scale == 0 ? 0 : int(word >> (32 - scale));
  return clip((c + chance) >> scale);
}

// A sum that wraps modulo 2^32.
EGG_FUNCTION int wrapping(int a, int b) { return int(uint32_t(a) + uint32_t(b)); }

// What is clipped had no effect.
EGG_FUNCTION int unclipped(int c, int y) { return abs(y) == 127 ? 0 : c; }

// Next to an output: what is clipped cannot be pushed further out.
EGG_FUNCTION int held(int c, int y) { return (y == 127 && c > 0) || (y == -127 && c < 0) ? 0 : c; }

// Of forget and mix: c v / 256.
EGG_FUNCTION int part_of(int c, int v) { return (c * v) >> 8; }

EGG_FUNCTION int of_relu(int c, int x) { return x > 0 ? c : 0; }

EGG_FUNCTION int of_lookup(int c, int x, EGG_CONSTANT int8_t (&table)[255]) {
  const int after = table[min(x + 1, 127) + 127], before = table[max(x - 1, -127) + 127];
  return (c * (after - before)) >> 1;
}

// A product F^T c divided by 16 floor(sqrt K), as A / 2^N, in units of credit with this scale.
template <int A, int N>
EGG_FUNCTION int reduced(int sum, int scale) {
  const int r = max(-int(SUM_BOUND), min(sum, int(SUM_BOUND))) * A, by = N - scale;
  return by >= 0 ? bounded(r >> by) : bounded(bounded(r) * (1 << -by));
}

}  // namespace egg
