// AVX512-VNNI: unsigned x signed dot products of four bytes (vpdpbusd); see VnniIsa.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avx512vnni {
#include "avx512.h"

using Isa = Avx512Isa;
using Matrix = TileMatrix<Isa>;
using LearnIsa = X86Learn<V512>;
using Products = Avx512Products;
using Adam = X86Adam<V512>;

#include "unit.h"
extern const Kernels kernels = kernels_of("avx512vnni");
}  // namespace eggroll::avx512vnni
