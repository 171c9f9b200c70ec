// AVX512-VNNI: unsigned x signed dot products of four bytes (vpdpbusd); see x86_vnni.h.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avx512vnni {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"
#include "x86_vnni.h"
//
#include "avx512_isa.h"
using Isa = Avx512Isa;
//
#include "matrix.h"
using Matrix = TileMatrix;
using Tiled = Isa;
//
#include "block.h"
//
#include "learn_isa.h"
#include "learn_products.h"
//
#include "x86_learn.h"
using LearnIsa = X86Learn<V512>;
using Products = PortableProducts;
//
#include "votes.h"
//
#include "learn.h"
//
#include "draws_isa.h"
#include "rules_isa.h"
#include "whitening_isa.h"
#include "x86_adam.h"
extern const Kernels kernels = {"avx512vnni",
                                Isa::peak,
                                Isa::weight_bytes,
                                Isa::pack,
                                block_bytes,
                                block,
                                vote_bytes,
                                vote,
                                learn_bytes,
                                learn,
                                X86Adam<V512>::part,
                                move_by_sign,
                                Whitening::rows,
                                Whitening::next,
                                draw};
}  // namespace eggroll::avx512vnni
