// What all kernels share.

#ifndef EGG_SHARED
#define EGG_SHARED(type, name, count) threadgroup type name[count]
#endif

namespace egg {

inline int clip(int v) { return clamp(v, -127, 127); }

// v / 2^shift, to the nearest.
inline int rounded(int v, int shift) { return shift == 0 ? v : (v + (1 << (shift - 1))) >> shift; }

}  // namespace egg
