// The avx2 kernels: portable C++, vectorised by the compiler for AVX2.
#include "plan.h"

namespace eggroll::avx2 {
#include "lanes.h"
#include "portable_isa.h"
using Isa = PortableIsa;
#include "block.h"
#include "votes.h"
extern const Kernels kernels = {"avx2", block_bytes, block, vote_bytes, vote};
}  // namespace eggroll::avx2
