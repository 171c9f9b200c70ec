// The signs of noise on nodes.

namespace egg {

// Whether the noise of each member of a pair has the other sign at this token.
struct Turns {
  bool first, second;
};

// From the pair's word. In a group (GROUPED, generated) the second member has one of its own.
EGG_FUNCTION Turns turns_of(uint32_t word, uint32_t t) {
  Turns turns;
  turns.first = (word >> (t % 32)) & 1;
  turns.second = ((GROUPED ? mixed(word) : word) >> (t % 32)) & 1;
  return turns;
}

}  // namespace egg
