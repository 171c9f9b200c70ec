// Which tables this processor runs.
#include <cstdlib>
#include <cstring>

#include "float_kernels.h"

namespace float_kernels_impl {

#define FK_DECLARE(name)            \
  namespace name {                  \
  extern const float_kernels table; \
  }
FK_DECLARE(generic)
FK_DECLARE(avx2)
FK_DECLARE(avx512f)
FK_DECLARE(neon)

namespace {

constexpr int kMost = 4;

struct Usable {
  const float_kernels* tables[kMost] = {};
  int count = 0;
  void add(const float_kernels& t) { tables[count++] = &t; }
};

// Tests every flag of the unit's row in CMakeLists.txt.
Usable usable() {
  Usable found;
#ifdef FK_HAVE_AVX512F
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma"))
    found.add(avx512f::table);
#endif
#ifdef FK_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.add(avx2::table);
#endif
#ifdef FK_HAVE_NEON
  found.add(neon::table);  // part of the architecture
#endif
  found.add(generic::table);
  return found;
}

}  // namespace
}  // namespace float_kernels_impl

extern "C" const float_kernels* float_kernels_usable(int32_t i) {
  float_kernels_impl::Usable found = float_kernels_impl::usable();
  return i >= 0 && i < found.count ? found.tables[i] : nullptr;
}

extern "C" const float_kernels* float_kernels_best(void) {
  const char* wanted = std::getenv("FLOAT_KERNELS_ISA");
  if (!wanted || !*wanted) return float_kernels_usable(0);
  for (int32_t i = 0;; ++i) {
    const float_kernels* table = float_kernels_usable(i);
    if (!table || std::strcmp(table->isa, wanted) == 0) return table;
  }
}
