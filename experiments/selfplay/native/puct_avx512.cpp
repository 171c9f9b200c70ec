// Root-PUCT with sixteen floats at a time, on x86-64.
#pragma GCC target("avx512f")
#define SELFPLAY_WIDTH 16
#include "puct.h"

namespace selfplay {

extern const AllocateRows allocate_rows_avx512;
const AllocateRows allocate_rows_avx512 = allocate;

}  // namespace selfplay
