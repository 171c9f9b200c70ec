// The unit of AMX with tiles in plain C++ and all else as it is there: what is woven between
// products, and work element by element, wherever there is AVX-512.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::amx_avx512 {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"
#include "x86_vnni.h"
//
#include "avx512_isa.h"
//
#include "amx_plain_tiles.h"
//
#include "amx_unit.h"
extern const Kernels kernels = kernels_of("amx_avx512", X86Adam<V512>::part);

bool tiles_open() { return Tiles::own().open; }
void take_tiles() { Tiles::own().open = false; }
}  // namespace eggroll::amx_avx512
