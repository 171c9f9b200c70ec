// The network of fixed size: forward, backward and Adam on buffers that never move.
#pragma once

#include <cstring>

#include "float_kernels.h"
#include "ppo_layout.h"

namespace ppo {

constexpr int kHeadsApart = 16;  // floats between two rows of heads

// What a forward pass leaves for the backward pass.
struct Activations {
  alignas(64) float inputs[kMaxBatch * kInputs];
  alignas(64) float hidden[kLayers][kMaxBatch * kHidden];  // outputs of ReLU
  alignas(64) float heads[kMaxBatch * kHeadsApart];        // nine logits and the value
};

struct Optimiser {
  alignas(64) float weights[kParameters];
  alignas(64) float gradient[kParameters];
  alignas(64) float first[kParameters], second[kParameters];  // Adam's moments
  int64_t step;
};

struct Deltas {
  alignas(64) float heads[kMaxBatch * kHeadsApart];
  alignas(64) float hidden[2][kMaxBatch * kHidden];  // of a layer and of the one below it
};

// heads [rows, 10] of inputs [rows, 27], both in `a`.
inline void forward(const float_kernels& k, const float* weights, Activations& a, int rows,
                    int threads) {
  const float* x = a.inputs;
  for (int l = 0; l < kLayers; ++l) {
    const int in = inputs_of(l);
    k.linear(rows, kHidden, in, x, in, weights + weights_of(l), in, weights + bias_of(l),
             a.hidden[l], kHidden, 1, nullptr, threads);
    x = a.hidden[l];
  }
  k.linear(rows, kHeads, kHidden, x, kHidden, weights + kHeadWeights, kHidden, weights + kHeadBias,
           a.heads, kHeadsApart, 0, nullptr, threads);
}

// Gradient of the loss by every parameter, from d.heads; the sum of its squares is returned. Each
// part is written once (beta = 0) and squared while it is in cache.
inline double backward(const float_kernels& k, const float* weights, const Activations& a,
                       Deltas& d, float* gradient, int rows, int threads) {
  float *above = d.heads, *below = d.hidden[0];
  int ld = kHeadsApart, outputs = kHeads;
  const float* outputs_of_relu = nullptr;
  double squares = 0;
  for (int l = kLayers; l >= 0; --l) {
    const int at = l == kLayers ? kHeadWeights : weights_of(l), in = inputs_of(l);
    const float* x = l ? a.hidden[l - 1] : a.inputs;
    k.linear_backward(rows, outputs, in, x, in, weights + at, in, above, ld, outputs_of_relu,
                      kHidden, nullptr, gradient + at, in, gradient + at + outputs * in,
                      l ? below : nullptr, kHidden, 0, threads);
    squares += k.sum_squares(int64_t{outputs} * (in + 1), gradient + at);
    outputs_of_relu = x;
    above = below;
    below = d.hidden[below == d.hidden[0]];
    ld = outputs = kHidden;
  }
  return squares;
}

// Between torch's order of parameters and this one, in which the heads are one matrix.
inline void from_torch(const float* torch, float* own) {
  std::memcpy(own, torch, sizeof(float) * kPolicyBias);
  std::memcpy(own + kHeadWeights + kMoves * kHidden, torch + kValueWeights,
              sizeof(float) * kHidden);
  std::memcpy(own + kHeadBias, torch + kPolicyBias, sizeof(float) * kMoves);
  own[kHeadBias + kMoves] = torch[kParameters - 1];
}

inline void to_torch(const float* own, float* torch) {
  std::memcpy(torch, own, sizeof(float) * kPolicyBias);
  std::memcpy(torch + kPolicyBias, own + kHeadBias, sizeof(float) * kMoves);
  std::memcpy(torch + kValueWeights, own + kHeadWeights + kMoves * kHidden,
              sizeof(float) * kHidden);
  torch[kParameters - 1] = own[kHeadBias + kMoves];
}

}  // namespace ppo
