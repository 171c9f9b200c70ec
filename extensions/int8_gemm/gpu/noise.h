// The noise of the pairs of a threadgroup, read in place.

namespace egg {

// `first` is the first pair, `pairs` their number in all.
struct Noise {
  const EGG_DEVICE int8_t* table;
  const EGG_DEVICE int32_t* starts;  // [leaves of the stage][pairs]
  uint32_t first, pairs;
  // Only for noise on nodes: [leaves of the stage][pairs][words], bit t % 32 of word t / 32 is
  // token t's.
  const EGG_DEVICE int32_t* signs;
  uint32_t words, t;
};

// The slice of a leaf that belongs to the pair of `member`; members past the end share the last.
EGG_FUNCTION const EGG_DEVICE int8_t* slice(Noise noise, uint32_t leaf, uint32_t member) {
  const uint32_t pair = min(noise.first + member / 2, noise.pairs - 1);
  return noise.table + noise.starts[leaf * noise.pairs + pair];
}

// True if the noise of a pair has the other sign at this token; only for noise on nodes.
EGG_FUNCTION bool turned(Noise noise, uint32_t leaf, uint32_t member) {
  const uint32_t pair = min(noise.first + member / 2, noise.pairs - 1);
  const uint32_t word = noise.signs[(leaf * noise.pairs + pair) * noise.words + noise.t / 32];
  return (word >> (noise.t % 32)) & 1;
}

}  // namespace egg
