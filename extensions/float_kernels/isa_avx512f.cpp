// AVX-512F: sixteen floats; a tile of 14 x 32 fills 28 of the 32 registers.
#include <immintrin.h>

#include "table.h"

namespace float_kernels_impl::avx512f {

struct Isa {
  static constexpr const char* kName = "avx512f";
  static constexpr int kWidth = 16, kRows = 14, kVectors = 2, kDepth = 256, kPeakSums = 24;

  static FK_INLINE Vec<Isa>::F sqrt(Vec<Isa>::F v) { return _mm512_sqrt_ps(v); }
  static FK_INLINE uint32_t bits(Vec<Isa>::I mask) {
    __m512i m = reinterpret_cast<__m512i>(mask);
    return _mm512_test_epi32_mask(m, m);
  }
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::avx512f
