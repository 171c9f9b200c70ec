// Fixed point that all kernels share.

namespace egg {

EGG_FUNCTION int clip(int v) { return max(-127, min(v, 127)); }

// v / 2^shift, to the nearest.
EGG_FUNCTION int rounded(int v, int shift) {
  return shift == 0 ? v : (v + (1 << (shift - 1))) >> shift;
}

}  // namespace egg
