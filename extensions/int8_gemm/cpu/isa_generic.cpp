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
#include "votes.h"
//
#include "learn.h"
//
#include "draws_isa.h"
#include "rules_isa.h"
#include "whitening_isa.h"
extern const Kernels kernels = {"generic",
                                Isa::peak,
                                Isa::weight_bytes,
                                Isa::pack,
                                block_bytes,
                                block,
                                vote_bytes,
                                vote,
                                learn_bytes,
                                learn,
                                PortableAdam::part,
                                move_by_sign,
                                Whitening::rows,
                                Whitening::next,
                                draw};
}  // namespace eggroll::generic
