// AVX2 and FMA: eight floats; a tile of 6 x 16 fills twelve of the sixteen registers.
#include <immintrin.h>

#include "table.h"

namespace float_kernels_impl::avx2 {

struct Isa : PortableIsa<Isa, 8> {
  static constexpr const char* kName = "avx2";
  static constexpr int kRows = 6, kVectors = 2, kDepth = 256, kPeakSums = 12;

  static FK_INLINE F sqrt(F v) { return _mm256_sqrt_ps(v); }
  static FK_INLINE uint32_t bits(I mask) {
    return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
  }
  static FK_INLINE __m256i first(int n) {
    return reinterpret_cast<__m256i>(n - I{} > I{0, 1, 2, 3, 4, 5, 6, 7});
  }
  static FK_INLINE F load(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static FK_INLINE void store(float* p, F v, int n) { _mm256_maskstore_ps(p, first(n), v); }
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::avx2
