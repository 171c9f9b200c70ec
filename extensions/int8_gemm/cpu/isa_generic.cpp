// The generic kernels: portable C++, vectorised by the compiler.
#include "plan.h"

namespace eggroll::generic {
#include "lanes.h"
#include "portable_isa.h"
using Isa = PortableIsa;
#include "block.h"
#include "votes.h"
//
#include "learn_isa.h"
#include "learn_products.h"
using LearnIsa = PortableLearn;
using LearnProducts = PortableProducts;
//
#include "learn.h"
//
#include "adam_isa.h"
extern const Kernels kernels = {"generic",   Isa::peak, block_bytes,       block, vote_bytes, vote,
                                learn_bytes, learn,     PortableAdam::part};
}  // namespace eggroll::generic
