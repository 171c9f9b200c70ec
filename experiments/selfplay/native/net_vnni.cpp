// Layers with AVX-512 VNNI, on x86-64: four products of bytes for each of sixteen outputs at a
// time.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "target.h"

SELFPLAY_TARGET("avx512f,avx512bw,avx512vl,avx512vnni")

static inline auto dot_vnni(auto sums, const uint8_t* x, const int8_t* w) {
  int32_t four;
  std::memcpy(&four, x, 4);
  const __m512i found = _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums),
                                            _mm512_set1_epi32(four), _mm512_loadu_si512(w));
  return reinterpret_cast<decltype(sums)>(found);
}

#define SELFPLAY_DOT dot_vnni
#include "net.h"

SELFPLAY_TARGET_END

namespace selfplay {

extern const RunLayer run_layer_vnni;
const RunLayer run_layer_vnni = run;

}  // namespace selfplay
