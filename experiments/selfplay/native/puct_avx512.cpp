// Root-PUCT with sixteen floats at a time, on x86-64.
#pragma GCC target("avx512f")
#define SELFPLAY_WIDTH 16
#include "puct.h"

namespace selfplay {

extern const AllocateRow allocate_row_avx512;
const AllocateRow allocate_row_avx512 = allocate;

}  // namespace selfplay
