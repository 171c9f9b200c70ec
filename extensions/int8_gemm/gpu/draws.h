// Draws by counters, as spec/rng.py defines them: SplitMix64's finalizer (Steele et al. 2014).

namespace egg {

EGG_FUNCTION uint64_t wide(uint32_t high, uint32_t low) {
  return uint64_t(high) << 32 | uint64_t(low);
}

// The step between two words of a stream.
EGG_FUNCTION uint64_t golden() { return wide(0x9E3779B9u, 0x7F4A7C15u); }

EGG_FUNCTION uint64_t mixed_word(uint64_t z) {
  z = (z ^ (z >> 30)) * wide(0xBF58476Du, 0x1CE4E5B9u);
  z = (z ^ (z >> 27)) * wide(0x94D049BBu, 0x133111EBu);
  return z ^ (z >> 31);
}

// The stream of a leaf, whose key follows that of its words before.
EGG_FUNCTION uint64_t stream_of(uint64_t common, uint32_t leaf) {
  return mixed_word((common ^ uint64_t(leaf)) + golden());
}

// A number below `room`, of word `at` of a stream.
EGG_FUNCTION uint32_t draw_below(uint64_t stream, uint64_t at, uint32_t room) {
  return uint32_t(((mixed_word(stream + at * golden()) >> 32) * uint64_t(room)) >> 32);
}

}  // namespace egg
