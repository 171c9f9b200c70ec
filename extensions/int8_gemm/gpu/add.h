// y = clip(a + b)

namespace egg {

EGG_FUNCTION int add(int a, int b) { return clip(a + b); }

}  // namespace egg
