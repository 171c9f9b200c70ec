// Root-PUCT with eight floats at a time, on x86-64.
#pragma GCC target("avx2")
#define SELFPLAY_WIDTH 8
#include "puct.h"

namespace selfplay {

extern const AllocateRows allocate_rows_avx2;
const AllocateRows allocate_rows_avx2 = allocate;

}  // namespace selfplay
