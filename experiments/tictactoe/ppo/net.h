// The network of fixed size: forward, backward and Adam on buffers that never move.
//
// A unit that no board of a batch activates puts out zeros and gets no gradient. After the first
// iterations that is most units, so each layer lists the active ones, and products leave the others
// out: the sums lack zeros alone.
#pragma once

#include "float_kernels.h"
#include "layout.h"

namespace ppo {

constexpr int kHeadsApart = 16;  // floats between two rows of heads
constexpr int kWords = kHidden / 32;

// The units of a layer that a batch activates, in ascending order.
struct Active {
  int32_t count, unit[kHidden];
};

// What a forward pass leaves for the backward pass.
struct Activations {
  Active active[kLayers];
  alignas(64) float inputs[kMaxBatch * kInputs];
  alignas(64) float hidden[kLayers][kMaxBatch * kHidden];  // [rows, active], outputs of ReLU
  alignas(64) float heads[kMaxBatch * kHeadsApart];        // nine logits and the value
  alignas(64) float full[kMaxBatch * kHidden];             // a layer before units are left out
  alignas(64) float gathered[kHidden * kHidden];           // weights of active units
  alignas(64) float head_weights[kHeads * kHidden];        // [10, active]
  uint32_t bits[kMaxBatch * kWords];
};

struct Deltas {
  alignas(64) float heads[kMaxBatch * kHeadsApart];
  alignas(64) float hidden[2][kMaxBatch * kHidden];  // of a layer and of the one below it
  alignas(64) float gathered[kHidden * kHidden];
};

// Parameters, their gradient and Adam's moments, in the order of layout.h. The gradient of a
// matrix is [active inputs, active outputs] at the matrix's place.
struct Optimiser {
  alignas(64) float weights[kParameters];
  alignas(64) float gradient[kParameters];
  alignas(64) float first[kParameters], second[kParameters];
  int64_t step;
};

// How a network is evaluated. sparse: inactive units are left out; threads: of a product.
struct Evaluator {
  const float_kernels* kernels;
  bool sparse;
  int threads;
  Work* work;

  void product(int transposed, int m, int n, int k, const float* a, int lda, const float* b,
               int ldb, float* c, int ldc) const {
    work->multiply_adds += int64_t{m} * n * k;
    ++work->products;
    kernels->sgemm(transposed, m, n, k, a, lda, b, ldb, c, ldc, 0, threads);
  }
};

// a.heads [rows, 10] of a.inputs [rows, 27].
void forward(const Evaluator& e, const float* weights, Activations& a, int rows);

// The gradient of the loss by every parameter, from d.heads; the sum of its squares is returned.
// Each part is written once (beta = 0) and squared while it is in cache.
double backward(const Evaluator& e, const float* weights, const Activations& a, Deltas& d,
                float* gradient, int rows);

// One step of Adam, with the gradient multiplied by `clip`.
void adam(const float_kernels& k, const Settings& s, const Active* active, Optimiser& o, float rate,
          float clip);

// The gradient of all parameters in torch's order.
void dense_gradient(const Active* active, const float* gradient, float* torch);

// Between torch's order of parameters and this one.
void from_torch(const float* torch, float* own);
void to_torch(const float* own, float* torch);

}  // namespace ppo
