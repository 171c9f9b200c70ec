// Four floats, by whatever the compiler takes for any processor of this architecture.
#include "table.h"

namespace float_kernels_impl::generic {

struct Isa {
  static constexpr const char* kName = "generic";
  static constexpr int kWidth = 4, kRows = 6, kVectors = 2, kDepth = 256, kPeakSums = 8;

  static Vec<Isa>::F sqrt(Vec<Isa>::F v) {
    for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
  }
  static uint32_t bits(Vec<Isa>::I mask) {
    uint32_t sum = 0;
    for (int i = 0; i < kWidth; ++i) sum |= static_cast<uint32_t>(mask[i] & 1) << i;
    return sum;
  }
  static void opaque(Vec<Isa>::F& v) { asm volatile("" : "+m"(v)); }
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::generic
