// y = max(a, 0)

namespace egg {

EGG_FUNCTION int relu(int a) { return max(a, 0); }

}  // namespace egg
