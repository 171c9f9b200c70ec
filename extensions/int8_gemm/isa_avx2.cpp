// The avx2 kernels: portable C++, vectorised by the compiler for AVX2.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avx2 {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"

struct Isa : PortableIsa {
  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_sse2(src, dst); }
};

#include "block.h"
#include "votes.h"
extern const Kernels kernels = {"avx2", block_bytes, block, vote_bytes, vote};
}  // namespace eggroll::avx2
