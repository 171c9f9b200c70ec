// Root-PUCT with sixteen floats at a time, on x86-64.
#include <cstdint>
#include <cstring>
#include <limits>

#include "target.h"

SELFPLAY_TARGET("avx512f")
#define SELFPLAY_WIDTH 16
#include "puct.h"
SELFPLAY_TARGET_END

namespace selfplay {

extern const AllocateRows allocate_rows_avx512;
const AllocateRows allocate_rows_avx512 = allocate;

}  // namespace selfplay
