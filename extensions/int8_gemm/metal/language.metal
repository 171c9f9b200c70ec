// Metal's words for what kernels in ../gpu say: a function, the address spaces of pointers.
//
// A local array stays in registers only where every index is known, so functions are inlined and
// loops that index one are unrolled: what is left is memory, and slow.

#define EGG_FUNCTION inline __attribute__((always_inline))
#define EGG_UNROLL _Pragma("clang loop unroll(full)")
#define EGG_EACH(i, count) \
  EGG_UNROLL               \
  for (uint i = 0; i < (count); ++i)
#define EGG_DEVICE device
#define EGG_CONSTANT constant
#ifndef EGG_SHARED
#define EGG_SHARED(type, name, count) threadgroup type name[count]
#endif

namespace egg {

EGG_FUNCTION int leading_zeros(uint64_t n) {
  const uint high = uint(n >> 32);
  return high != 0 ? int(clz(high)) : 32 + int(clz(uint(n)));
}

}  // namespace egg
