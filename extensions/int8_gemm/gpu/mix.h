// y = s + (((f + 127) (h - s)) >> 8)

namespace egg {

EGG_FUNCTION int mix(int f, int h, int s) { return s + (((f + 127) * (h - s)) >> 8); }

}  // namespace egg
