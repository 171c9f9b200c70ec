// Root-PUCT with four floats at a time, and the choice of an instruction set.
#include <cstdint>

static inline float most_of(auto lanes) {
  float most = lanes[0];
  for (int i = 1; i < 4; ++i) most = lanes[i] > most ? lanes[i] : most;
  return most;
}

static inline uint32_t lanes_equal(auto lanes, float to) {
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) found |= uint32_t{lanes[i] == to} << i;
  return found;
}

static inline auto with_lanes(auto lanes, uint32_t some, float value) {
  for (int i = 0; i < 4; ++i) lanes[i] = some >> i & 1 ? value : lanes[i];
  return lanes;
}

#define SELFPLAY_WIDTH 4
#include "puct.h"

namespace selfplay {

#if defined(__x86_64__)
extern const AllocateRows allocate_rows_avx2, allocate_rows_avx512;

AllocateRows allocate_rows_of(int32_t set) {
  if (set == 2) return __builtin_cpu_supports("avx512f") ? allocate_rows_avx512 : nullptr;
  if (set == 1) return __builtin_cpu_supports("avx2") ? allocate_rows_avx2 : nullptr;
  return set == 0 ? allocate : nullptr;
}
#else
AllocateRows allocate_rows_of(int32_t set) { return set == 0 ? allocate : nullptr; }
#endif

AllocateRows allocate_rows() {
  for (int32_t set = 2; set > 0; --set)
    if (const AllocateRows found = allocate_rows_of(set)) return found;
  return allocate;
}

}  // namespace selfplay
