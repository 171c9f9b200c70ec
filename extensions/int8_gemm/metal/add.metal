// y = clip(a + b)

namespace egg {

inline int add(int a, int b) { return clip(a + b); }

}  // namespace egg
