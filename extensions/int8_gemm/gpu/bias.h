// y = clip(a + w'), w' the member's bias

namespace egg {

EGG_FUNCTION int bias(int a, int w) { return clip(a + w); }

}  // namespace egg
