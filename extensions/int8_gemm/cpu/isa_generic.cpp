// The generic kernels: portable C++, vectorised by the compiler.
#include "plan.h"

namespace eggroll::generic {
#include "portable.h"

using Isa = PortableIsa;
using Matrix = TileMatrix<Isa>;
using LearnIsa = PortableLearn;
using Products = PortableProducts<Isa>;
using Adam = PortableAdam;

#include "unit.h"
extern const Kernels kernels = kernels_of("generic");
}  // namespace eggroll::generic
