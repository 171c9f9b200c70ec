// Layers in plain loops, and the choice of an instruction set.
#include <cstdint>

// Vectors are passed within this file alone.
#pragma GCC diagnostic ignored "-Wpsabi"

static inline auto dot_generic(auto sums, const uint8_t* x, const int8_t* w) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 4; ++j) sums[i] += x[j] * w[4 * i + j];
  return sums;
}

#define SELFPLAY_DOT dot_generic
#include "net.h"

namespace selfplay {

#if defined(__x86_64__)
extern const RunLayer run_layer_vnni;

RunLayer run_layer_of(int32_t set) {
  const bool vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  if (set == 1) return vnni ? run_layer_vnni : nullptr;
  return set == 0 ? run : nullptr;
}
#else
RunLayer run_layer_of(int32_t set) { return set == 0 ? run : nullptr; }
#endif

}  // namespace selfplay
