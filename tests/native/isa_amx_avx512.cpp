// The unit of AMX with tiles in plain C++ and all else as it is there: what is woven between
// products, and work element by element, wherever there is AVX-512.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::amx_avx512 {
#include "amx_plain_tiles.h"
#include "avx512.h"

using Isa = AmxIsa<Tiles, Avx512Signed>;
using Matrix = AmxMatrix<Isa>;
using LearnIsa = X86Learn<V512>;
using Products = AmxProducts<Tiles, Isa, Avx512Products>;
using Adam = X86Adam<V512>;

#include "unit.h"
extern const Kernels kernels = kernels_of("amx_avx512");

bool tiles_open() { return Tiles::own().open; }
void take_tiles() { Tiles::own().open = false; }
}  // namespace eggroll::amx_avx512
