// Root-PUCT with four floats at a time, and the choice of an instruction set.
#define SELFPLAY_WIDTH 4
#include "puct.h"

namespace selfplay {

#if defined(__x86_64__)
extern const AllocateRow allocate_row_avx2, allocate_row_avx512;

AllocateRow allocate_row_of(int32_t set) {
  if (set == 2) return __builtin_cpu_supports("avx512f") ? allocate_row_avx512 : nullptr;
  if (set == 1) return __builtin_cpu_supports("avx2") ? allocate_row_avx2 : nullptr;
  return set == 0 ? allocate : nullptr;
}
#else
AllocateRow allocate_row_of(int32_t set) { return set == 0 ? allocate : nullptr; }
#endif

AllocateRow allocate_row() {
  for (int32_t set = 2; set > 0; --set)
    if (const AllocateRow found = allocate_row_of(set)) return found;
  return allocate;
}

}  // namespace selfplay
