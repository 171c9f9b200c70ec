// Root-PUCT with eight floats at a time, on x86-64.
#pragma GCC target("avx2")
#define SELFPLAY_WIDTH 8
#include "puct.h"

namespace selfplay {

extern const AllocateRow allocate_row_avx2;
const AllocateRow allocate_row_avx2 = allocate;

}  // namespace selfplay
