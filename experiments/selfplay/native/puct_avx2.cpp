// Root-PUCT with eight floats at a time, on x86-64.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "target.h"

SELFPLAY_TARGET("avx2")

static inline float most_of(auto lanes) {
  const __m256 x = reinterpret_cast<__m256>(lanes);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

static inline uint32_t lanes_equal(auto lanes, float to) {
  const __m256 x = reinterpret_cast<__m256>(lanes);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(to), 0)));
}

static inline auto with_lanes(auto lanes, uint32_t some, float value) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i asked = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(some)), bits);
  const __m256 mask = _mm256_castsi256_ps(_mm256_cmpeq_epi32(asked, bits));
  const __m256 x = reinterpret_cast<__m256>(lanes);
  return reinterpret_cast<decltype(lanes)>(_mm256_blendv_ps(x, _mm256_set1_ps(value), mask));
}

#define SELFPLAY_WIDTH 8
#include "puct.h"
SELFPLAY_TARGET_END

namespace selfplay {

extern const AllocateRows allocate_rows_avx2;
const AllocateRows allocate_rows_avx2 = allocate;

}  // namespace selfplay
