// AMX: products of signed bytes on matrix tiles (tdpbssd), and AVX512-VNNI for all else: what is
// done element by element, votes, and credit that is carried back.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::amx {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"
#include "x86_vnni.h"
//
#include "avx512_isa.h"
//
#include "amx_tiles.h"
//
#include "amx_unit.h"
extern const Kernels kernels = kernels_of("amx", X86Adam<V512>::part);
}  // namespace eggroll::amx
