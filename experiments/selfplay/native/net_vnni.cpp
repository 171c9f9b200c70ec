// Layers with AVX-512 VNNI, on x86-64: four products of bytes for each of sixteen outputs at a
// time.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "target.h"

SELFPLAY_TARGET("avx512f,avx512bw,avx512vl,avx512vnni,popcnt,bmi")

static inline auto dot(auto sums, const uint8_t* x, const int8_t* w) {
  int32_t four;
  std::memcpy(&four, x, 4);
  const __m512i found = _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums),
                                            _mm512_set1_epi32(four), _mm512_loadu_si512(w));
  return reinterpret_cast<decltype(sums)>(found);
}

static inline auto high_half(auto x, uint16_t by) {
  const __m512i found =
      _mm512_mulhi_epu16(reinterpret_cast<__m512i>(x), _mm512_set1_epi16(static_cast<int16_t>(by)));
  return reinterpret_cast<decltype(x)>(found);
}

static inline uint64_t bits_of(const int8_t* bytes, int32_t count) {
  const __m512i x = _mm512_maskz_loadu_epi8(~uint64_t{0} >> (64 - count), bytes);
  return _mm512_test_epi8_mask(x, x);
}

#define SELFPLAY_NET
#include "net.h"

SELFPLAY_TARGET_END

namespace selfplay {

extern const Kernels kernels_vnni;
const Kernels kernels_vnni = own_kernels;

}  // namespace selfplay
