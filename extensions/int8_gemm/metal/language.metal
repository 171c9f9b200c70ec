// Metal's words for what kernels in ../gpu say: a function, the address spaces of pointers.

#define EGG_FUNCTION inline
#define EGG_DEVICE device
#define EGG_CONSTANT constant
#ifndef EGG_SHARED
#define EGG_SHARED(type, name, count) threadgroup type name[count]
#endif

namespace egg {

inline int leading_zeros(uint64_t n) {
  const uint high = uint(n >> 32);
  return high != 0 ? int(clz(high)) : 32 + int(clz(uint(n)));
}

}  // namespace egg
