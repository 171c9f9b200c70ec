// The template as AVX-512 uses it (sixteen floats, tiles of 14 x 32), compiled to what this
// processor has: the same algorithm, so that it runs where AVX-512 cannot.
#include "table.h"

namespace float_kernels_impl::wide {

struct Isa : PortableIsa<Isa, 16> {
  static constexpr const char* kName = "wide";
  static constexpr int kRows = 14, kVectors = 2, kDepth = 256, kPeakSums = 24;
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::wide
