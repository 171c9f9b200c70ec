// Fine copies of weights, and rule adam on one, in integers; docs/estimators.md has the arithmetic.

namespace egg {

EGG_FUNCTION int within(int64_t v, int most) {
  return v < -most ? -most : v > most ? most : int(v);
}

// v times by / 2^shift, toward zero.
EGG_FUNCTION int64_t scaled(int64_t v, int by, int shift) {
  return v < 0 ? -(-v * by >> shift) : v * by >> shift;
}

// floor(sqrt(n)) of n below 2^62, bit by bit: the roots that a GPU has are not exact.
EGG_FUNCTION uint64_t whole_root(uint64_t n) {
  uint64_t root = 0;
  for (uint64_t bit = uint64_t(1) << 60; bit != 0; bit >>= 2) {
    const uint64_t next = root + bit;
    root >>= 1;
    if (n >= next) {
      n -= next;
      root += bit;
    }
  }
  return root;
}

// The size of votes, which had been `size` before this one.
EGG_FUNCTION int next_size(int size, int64_t vote) {
  const uint64_t old = uint64_t(int64_t(size) * size), added = uint64_t(vote * vote);
  return int(whole_root((old >> 8) * 243 + ((old & 255) * 243 >> 8) + (added >> 8) * 13));
}

// A fine copy that shrinks by decay / 2^24 and changes, at most to where its weight is 127.
EGG_FUNCTION int moved_copy(int fine, int64_t change, int decay) {
  return within(int64_t(fine) - scaled(fine, decay, 24) + change, (127 << 16) + 32767);
}

}  // namespace egg
