// Root-PUCT with sixteen floats at a time, on x86-64.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "target.h"

SELFPLAY_TARGET("avx512f")

static inline float most_of(auto lanes) {
  const __m512 x = reinterpret_cast<__m512>(lanes);
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

static inline uint32_t lanes_equal(auto lanes, float to) {
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(lanes), _mm512_set1_ps(to), _CMP_EQ_OQ);
}

static inline auto with_lanes(auto lanes, uint32_t some, float value) {
  const __m512 found = _mm512_mask_mov_ps(reinterpret_cast<__m512>(lanes),
                                          static_cast<__mmask16>(some), _mm512_set1_ps(value));
  return reinterpret_cast<decltype(lanes)>(found);
}

#define SELFPLAY_WIDTH 16
#include "puct.h"
SELFPLAY_TARGET_END

namespace selfplay {

extern const AllocateRows allocate_rows_avx512;
const AllocateRows allocate_rows_avx512 = allocate;

}  // namespace selfplay
