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
#include "avx512_products.h"
//
#include "x86_learn.h"
using LearnIsa = X86Learn<V512>;
using Products = Avx512Products;
//
#include "unit.h"
//
#include "x86_adam.h"
extern const Kernels kernels = kernels_of("avx512vnni", X86Adam<V512>::part);
}  // namespace eggroll::avx512vnni
