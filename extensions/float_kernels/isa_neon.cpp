// NEON: four floats; a tile of 5 x 16 fills 20 of the 32 registers; with 6 x 16 gcc spills.
#include <arm_neon.h>

#include "table.h"

namespace float_kernels_impl::neon {

struct Isa : PortableIsa<Isa, 4> {
  static constexpr const char* kName = "neon";
  static constexpr int kRows = 5, kVectors = 4, kDepth = 256, kPeakSums = 24;

  static FK_INLINE F sqrt(F v) {
    return reinterpret_cast<F>(vsqrtq_f32(reinterpret_cast<float32x4_t>(v)));
  }
  static FK_INLINE uint32_t bits(I mask) {
    return vaddvq_u32(reinterpret_cast<uint32x4_t>(mask & I{1, 2, 4, 8}));
  }
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::neon
