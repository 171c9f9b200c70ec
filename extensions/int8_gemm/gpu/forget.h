// y = ((f + 127) s) >> 8

namespace egg {

EGG_FUNCTION int forget(int f, int s) { return ((f + 127) * s) >> 8; }

}  // namespace egg
