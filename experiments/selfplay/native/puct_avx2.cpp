// Root-PUCT with eight floats at a time, on x86-64.
#include <cstdint>
#include <cstring>
#include <limits>

#include "target.h"

SELFPLAY_TARGET("avx2")
#define SELFPLAY_WIDTH 8
#include "puct.h"
SELFPLAY_TARGET_END

namespace selfplay {

extern const AllocateRows allocate_rows_avx2;
const AllocateRows allocate_rows_avx2 = allocate;

}  // namespace selfplay
