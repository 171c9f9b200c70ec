// Four floats, by whatever the compiler takes for any processor of this architecture.
#include "table.h"

namespace float_kernels_impl::generic {

struct Isa : PortableIsa<Isa, 4> {
  static constexpr const char* kName = "generic";
  static constexpr int kRows = 6, kVectors = 2, kDepth = 256, kPeakSums = 8;
};

extern const float_kernels table;
const float_kernels table = table_of<Isa>();

}  // namespace float_kernels_impl::generic
