// The signs of noise on nodes where members are compared with the mean of their group.

namespace egg {

// Whether the noise of each member of a pair has the other sign at this token.
struct Turns {
  bool first, second;
};

// The second member's signs: a word of its own from the pair's.
EGG_FUNCTION uint32_t second_word(uint32_t v) {
  v ^= v >> 16;
  v *= 0x7FEB352Du;
  v ^= v >> 15;
  v *= 0x846CA68Bu;
  return v ^ (v >> 16);
}

EGG_FUNCTION Turns turns_of(uint32_t word, uint32_t t) {
  Turns turns;
  turns.first = (word >> (t % 32)) & 1;
  turns.second = (second_word(word) >> (t % 32)) & 1;
  return turns;
}

}  // namespace egg
