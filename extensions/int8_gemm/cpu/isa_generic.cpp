// The generic kernels: portable C++, vectorised by the compiler.
#include "plan.h"

namespace eggroll::generic {
#include "lanes.h"
#include "portable_isa.h"
using Isa = PortableIsa;
#include "matrix.h"
using Matrix = TileMatrix;
using Tiled = Isa;
//
#include "block.h"
//
#include "learn_isa.h"
#include "learn_products.h"
using LearnIsa = PortableLearn;
using Products = PortableProducts;
//
#include "unit.h"
extern const Kernels kernels = kernels_of("generic", PortableAdam::part);
}  // namespace eggroll::generic
