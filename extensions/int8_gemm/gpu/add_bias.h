// y = clip(a + b + w'), w' the member's bias

namespace egg {

EGG_FUNCTION int add_bias(int a, int b, int w) { return clip(a + b + w); }

}  // namespace egg
