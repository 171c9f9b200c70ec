// AVX-512F: sixteen floats; a tile of 14 x 32 fills 28 of the 32 registers.
#include <immintrin.h>

#include "table.h"

namespace float_kernels_impl::avx512f {

struct Isa : PortableIsa<Isa, 16> {
  static constexpr const char* kName = "avx512f";
  static constexpr int kRows = 14, kVectors = 2, kDepth = 1024, kPeakSums = 24;

  static FK_INLINE F sqrt(F v) { return _mm512_sqrt_ps(v); }
  static FK_INLINE uint32_t bits(I mask) {
    __m512i m = reinterpret_cast<__m512i>(mask);
    return _mm512_test_epi32_mask(m, m);
  }
  static FK_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static FK_INLINE F load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static FK_INLINE void store(float* p, F v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::avx512f
