// Float32 kernels behind a table of C functions, one table per instruction set.
//
// Matrices are row-major; a leading dimension (lda, ldx ...) is the distance of two rows in floats
// and at least the width. Pointers need the alignment of a float alone. No function reads or writes
// outside the shapes named beside it, and none keeps a pointer. Sizes below 1 leave nothing to do,
// except that k = 0 gives sums of nothing. Inputs and outputs must not overlap unless said.
//
// Results are the same for every number of threads, and differ between instruction sets in the last
// bits, as sums are ordered differently. NaN and infinity go through as in IEEE arithmetic.
//
// `threads`: 1 uses the caller's thread alone; more wakes a pool that the library keeps. One call
// at a time uses the pool, and a call that finds it busy runs on its caller's thread.
//
// Bits of a ReLU mask: rows of (n + 31) / 32 words; bit j % 32 of word j / 32 is 1 where output j
// is above 0. Bits past column n are 0.
#ifndef FLOAT_KERNELS_H
#define FLOAT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLOAT_KERNELS_ABI 3

enum { FLOAT_KERNELS_NN, FLOAT_KERNELS_NT, FLOAT_KERNELS_TN };  // which operand is transposed

// GELU: x Phi(x); its tanh approximation; or, for backward calls, SLOPE: the array of
// pre-activations holds the derivative already, as gelu() and ffn_forward() can store it.
enum { FLOAT_KERNELS_GELU_ERF, FLOAT_KERNELS_GELU_TANH, FLOAT_KERNELS_SLOPE };

// Seconds of a backward call's parts, added to what is there; total is measured around them. d_a1
// has the activation's slope and db1 in it, as its rows get them as soon as they are computed.
typedef struct float_kernels_profile {
  double dw2, db2, d_a1, dw1, dx, total;
} float_kernels_profile;

// Two layers: x [rows, in] -> w1 [hidden, in], b1 -> activation -> w2 [out, hidden], b2 -> y.
typedef struct float_kernels_two_layers {
  int32_t rows, in, hidden, out;
  const float *x, *w1, *b1, *w2, *b2;
  int32_t ldx, ldw1, ldw2;
} float_kernels_two_layers;

// Gradients of the two layers' parameters and input; dx may be NULL.
typedef struct float_kernels_gradients {
  float *dw1, *db1, *dw2, *db2, *dx;
  int32_t lddw1, lddw2, lddx;
} float_kernels_gradients;

typedef struct float_kernels {
  int32_t abi;      // FLOAT_KERNELS_ABI
  int32_t width;    // floats in a vector
  const char* isa;  // "generic", "avx2", "avx512f", "neon"

  // C [m, n] = A B, added to C where accumulate is not 0. nn: A [m, k], B [k, n]; nt: A [m, k],
  // B [n, k]; tn: A [k, m], B [k, n].
  void (*sgemm_nn)(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda, const float* b,
                   int32_t ldb, float* c, int32_t ldc, int32_t accumulate);
  void (*sgemm_nt)(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda, const float* b,
                   int32_t ldb, float* c, int32_t ldc, int32_t accumulate);
  void (*sgemm_tn)(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda, const float* b,
                   int32_t ldb, float* c, int32_t ldc, int32_t accumulate);
  // The same by a name of the enumeration above, and with threads.
  void (*sgemm)(int32_t transposed, int32_t m, int32_t n, int32_t k, const float* a, int32_t lda,
                const float* b, int32_t ldb, float* c, int32_t ldc, int32_t accumulate,
                int32_t threads);

  // B [k, n] (or [n, k] where transposed is not 0) as column panels, to be multiplied several
  // times: floats that `packed` must hold, and the packing. The layout is the instruction set's
  // own.
  size_t (*packed_floats)(int32_t k, int32_t n);
  void (*pack)(int32_t k, int32_t n, const float* b, int32_t ldb, int32_t transposed,
               float* packed);
  // C [m, n] = A [m, k] B, B packed by the same table for the same k and n.
  void (*sgemm_packed)(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda,
                       const float* packed, float* c, int32_t ldc, int32_t accumulate,
                       int32_t threads);

  // y [rows, n] = x [rows, k] w^T + bias [n] or NULL, w [n, k]; with relu not 0 max(0, that), and
  // its bits where `bits` is not NULL. linear_packed takes w as pack(k, n, w, ldw, 1, packed) left
  // it.
  void (*linear)(int32_t rows, int32_t n, int32_t k, const float* x, int32_t ldx, const float* w,
                 int32_t ldw, const float* bias, float* y, int32_t ldy, int32_t relu,
                 uint32_t* bits, int32_t threads);
  void (*linear_packed)(int32_t rows, int32_t n, int32_t k, const float* x, int32_t ldx,
                        const float* packed, const float* bias, float* y, int32_t ldy, int32_t relu,
                        uint32_t* bits, int32_t threads);
  // From dy [rows, n]: dw [n, k] = dy^T x, db [n] = column sums of dy, dx [rows, k] = dy w; each
  // NULL to leave it out; dw and db are added to where accumulate is not 0. If y (the ReLU's
  // output) or bits is not NULL, dy is first multiplied by the mask, in place.
  void (*linear_backward)(int32_t rows, int32_t n, int32_t k, const float* x, int32_t ldx,
                          const float* w, int32_t ldw, float* dy, int32_t lddy, const float* y,
                          int32_t ldy, const uint32_t* bits, float* dw, int32_t lddw, float* db,
                          float* dx, int32_t lddx, int32_t accumulate, int32_t threads);

  // y [rows, n] = max(0, y + bias), in place; bias and bits may be NULL.
  void (*bias_relu)(int32_t rows, int32_t n, float* y, int32_t ldy, const float* bias,
                    uint32_t* bits);
  // dx = dy where y > 0 (or its bit is set), else 0; dx may be dy. If `sums` [n] is not NULL it
  // becomes the column sums of dx, which are a bias's gradient.
  void (*relu_backward)(int32_t rows, int32_t n, const float* y, int32_t ldy, const float* dy,
                        int32_t lddy, float* dx, int32_t lddx, float* sums);
  void (*relu_backward_bits)(int32_t rows, int32_t n, const uint32_t* bits, const float* dy,
                             int32_t lddy, float* dx, int32_t lddx, float* sums);
  // sums [n] = column sums of x [rows, n], added to what is there where accumulate is not 0.
  void (*column_sums)(int32_t rows, int32_t n, const float* x, int32_t ldx, float* sums,
                      int32_t accumulate);

  // y [n] = GELU(x), kind ERF or TANH; y may be x. slope [n], if not NULL, becomes the derivative.
  void (*gelu)(int32_t kind, int64_t n, const float* x, float* y, float* slope);
  // dx = dy GELU'(x), or dy x with kind SLOPE; dx may be dy or x.
  void (*gelu_backward)(int32_t kind, int64_t n, const float* x, const float* dy, float* dx);
  // y [n] = exp(x), tanh(x), erf(x); y may be x.
  void (*exp)(int64_t n, const float* x, float* y);
  void (*tanh)(int64_t n, const float* x, float* y);
  void (*erf)(int64_t n, const float* x, float* y);
  // y [rows, n] = softmax of each row of x; y may be x.
  void (*softmax)(int32_t rows, int32_t n, const float* x, int32_t ldx, float* y, int32_t ldy);
  // Mean over the rows of -log softmax(x)[label], labels in 0 .. n - 1; dx [rows, n] becomes its
  // gradient, (softmax(x) - onehot) / rows; dx may be x.
  double (*cross_entropy)(int32_t rows, int32_t n, const float* x, int32_t ldx,
                          const int32_t* labels, float* dx, int32_t lddx);

  // Adam in one pass, as PyTorch defines it: g' = clip_scale g, m = b1 m + (1 - b1) g', v = b2 v +
  // (1 - b2) g'^2, w -= lr / (1 - b1^step) m / (sqrt(v) / sqrt(1 - b2^step) + eps). step counts
  // from 1.
  void (*adam)(int64_t n, float* w, const float* g, float* m, float* v, double lr, double b1,
               double b2, double eps, double clip_scale, int64_t step);
  // Sum of squares, by double sums of short float sums: relative error below 1e-6.
  double (*sum_squares)(int64_t n, const float* x);
  // y [n] += alpha x; a step of gradient descent with alpha = -rate.
  void (*axpy)(int64_t n, float alpha, const float* x, float* y);

  // Linear-ReLU-Linear. a1 [rows, hidden] is the ReLU's output, bits its mask or NULL.
  void (*mlp_forward)(const float_kernels_two_layers* net, float* a1, int32_t lda1, uint32_t* bits,
                      float* y, int32_t ldy, int32_t threads);
  // Its backward in one call, from dy [rows, out]; the mask is read from bits or, if NULL, from a1.
  // Returns 0, or 1 and does nothing where the workspace is NULL or shorter than
  // workspace_floats(rows, hidden). profile may be NULL.
  int32_t (*mlp_backward)(const float_kernels_two_layers* net, const float* a1, int32_t lda1,
                          const uint32_t* bits, const float* dy, int32_t lddy,
                          const float_kernels_gradients* out, float* workspace, size_t floats,
                          float_kernels_profile* profile, int32_t threads);
  // Linear-GELU-Linear, kind ERF or TANH: pre [rows, hidden] becomes the pre-activations or, where
  // slope is not 0, GELU's derivative there, for a backward call of kind SLOPE; act GELU's output.
  void (*ffn_forward)(int32_t kind, const float_kernels_two_layers* net, float* pre, float* act,
                      int32_t ldh, float* y, int32_t ldy, int32_t slope, int32_t threads);
  // Its backward in one call; returned and reported as by mlp_backward.
  int32_t (*ffn_backward)(int32_t kind, const float_kernels_two_layers* net, const float* pre,
                          const float* act, int32_t ldh, const float* dy, int32_t lddy,
                          const float_kernels_gradients* out, float* workspace, size_t floats,
                          float_kernels_profile* profile, int32_t threads);
  size_t (*workspace_floats)(int32_t rows, int32_t hidden);

  // Multiply-adds of `rounds` rounds on registers alone, done when it returns: the peak.
  int64_t (*peak)(int64_t rounds);
} float_kernels;

#if defined(__GNUC__)
#define FLOAT_KERNELS_EXPORT __attribute__((visibility("default")))
#else
#define FLOAT_KERNELS_EXPORT
#endif

// The fastest table that this processor runs, or the one that the environment variable
// FLOAT_KERNELS_ISA names; NULL if it names none that runs here.
FLOAT_KERNELS_EXPORT const float_kernels* float_kernels_best(void);
// The i-th table that this processor runs, fastest first; NULL past the last.
FLOAT_KERNELS_EXPORT const float_kernels* float_kernels_usable(int32_t i);
// `table` with the four plain products (sgemm*) of the BLAS at `path`, by its cblas_sgemm with
// 32-bit sizes; NULL if there is none. Its results may depend on what the BLAS likes, and `threads`
// does not reach it. One in a process: the next call changes the table that the last one gave.
FLOAT_KERNELS_EXPORT const float_kernels* float_kernels_over_blas(const float_kernels* table,
                                                                  const char* path);

#ifdef __cplusplus
}
#endif
#endif
