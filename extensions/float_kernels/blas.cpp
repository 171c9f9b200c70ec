// Products by a BLAS of the system, over a table of our own: the library is opened at run time, so
// nothing is linked with it and nothing need be installed.
#include <dlfcn.h>

#include <initializer_list>

#include "float_kernels.h"

namespace {

using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                       const float* a, int lda, const float* b, int ldb, float beta, float* c,
                       int ldc);
constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

Sgemm blas = nullptr;
const float_kernels* own = nullptr;
float_kernels over_own{};

// threads: not used, as the BLAS has one, or its own.
void sgemm(int32_t transposed, int32_t m, int32_t n, int32_t k, const float* a, int32_t lda,
           const float* b, int32_t ldb, float* c, int32_t ldc, int32_t accumulate, int32_t) {
  if (m < 1 || n < 1 || k < 1)  // what a BLAS may refuse
    return own->sgemm(transposed, m, n, k, a, lda, b, ldb, c, ldc, accumulate, 1);
  blas(kRowMajor, transposed == FLOAT_KERNELS_TN ? kTransposed : kPlain,
       transposed == FLOAT_KERNELS_NT ? kTransposed : kPlain, m, n, k, 1, a, lda, b, ldb,
       accumulate ? 1.0f : 0.0f, c, ldc);
}

template <int transposed>
void sgemm_of(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda, const float* b,
              int32_t ldb, float* c, int32_t ldc, int32_t accumulate) {
  sgemm(transposed, m, n, k, a, lda, b, ldb, c, ldc, accumulate, 1);
}

// Libraries that are not asked for it would take every core.
void set_one_thread(void* library) {
  for (const char* name : {"openblas_set_num_threads", "MKL_Set_Num_Threads"})
    if (void* set = dlsym(library, name)) reinterpret_cast<void (*)(int)>(set)(1);
}

}  // namespace

extern "C" const float_kernels* float_kernels_over_blas(const float_kernels* table,
                                                        const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* found = library ? dlsym(library, "cblas_sgemm") : nullptr;
  if (!found) return nullptr;
  set_one_thread(library);
  blas = reinterpret_cast<Sgemm>(found), own = table, over_own = *table;
  over_own.sgemm_nn = sgemm_of<FLOAT_KERNELS_NN>, over_own.sgemm_nt = sgemm_of<FLOAT_KERNELS_NT>;
  over_own.sgemm_tn = sgemm_of<FLOAT_KERNELS_TN>, over_own.sgemm = sgemm;
  return &over_own;
}
