// AVX2 and FMA: eight floats; a tile of 6 x 16 fills twelve of the sixteen registers.
#include <immintrin.h>

#include "table.h"

namespace float_kernels_impl::avx2 {

struct Isa {
  static constexpr const char* kName = "avx2";
  static constexpr int kWidth = 8, kRows = 6, kVectors = 2, kDepth = 256, kPeakSums = 12;

  static FK_INLINE Vec<Isa>::F sqrt(Vec<Isa>::F v) { return _mm256_sqrt_ps(v); }
  static FK_INLINE uint32_t bits(Vec<Isa>::I mask) {
    return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
  }
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::avx2
