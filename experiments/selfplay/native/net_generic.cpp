// Layers in plain loops, and the choice of an instruction set.
#include <cstdint>
#include <cstring>

// Vectors are passed within this file alone.
#pragma GCC diagnostic ignored "-Wpsabi"

static inline auto dot(auto sums, const uint8_t* x, const int8_t* w) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 4; ++j) sums[i] += x[j] * w[4 * i + j];
  return sums;
}

static inline auto high_half(auto x, uint16_t by) {
  for (int i = 0; i < 32; ++i) x[i] = static_cast<uint16_t>(uint32_t{x[i]} * by >> 16);
  return x;
}

// The lowest bits of bytes of 0 and 1, eight at a time: of the product, bit 56 + i is byte i's.
static inline uint64_t bits_of(const int8_t* bytes, int32_t count) {
  uint64_t found = 0;
  for (int32_t i = 0; i < count; i += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, bytes + i, count - i < 8 ? count - i : 8);
    found |= (eight * 0x0102040810204080u >> 56) << i;
  }
  return found;
}

#define SELFPLAY_NET
#include "net.h"

namespace selfplay {

#if defined(__x86_64__)
extern const Kernels kernels_vnni;

const Kernels* kernels_of(int32_t set) {
  const bool vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  if (set == 1) return vnni ? &kernels_vnni : nullptr;
  return set == 0 ? &own_kernels : nullptr;
}
#else
const Kernels* kernels_of(int32_t set) { return set == 0 ? &own_kernels : nullptr; }
#endif

}  // namespace selfplay
