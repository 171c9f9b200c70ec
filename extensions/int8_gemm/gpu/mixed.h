// Random words from random words.

namespace egg {

// Scrambles a word, a bijection.
EGG_FUNCTION uint32_t mixed(uint32_t v) {
  v = (v ^ (v >> 16)) * 0x7FEB352Du;
  v = (v ^ (v >> 15)) * 0x846CA68Bu;
  return v ^ (v >> 16);
}

}  // namespace egg
