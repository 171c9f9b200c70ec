// A small float32 network on rows, by the products of extensions/float_kernels, for evaluators.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "eggroll_world.h"
#include "float_kernels.h"

namespace {

constexpr int kChunk = 256;  // rows whose activations stay in the cache

// Weights as float_kernels' `pack` leaves them, biases [outputs], and the most that outputs of a
// hidden layer are held to, [outputs] or NULL.
struct Layer {
  int32_t inputs, outputs;
  const float *packed, *bias, *top;
};

// The hidden layers, the policy, the value.
struct Net {
  int32_t count;
  const Layer* layers;
  const float_kernels* kernels;
};

}  // namespace

// planes int8 [n, F] of 0 and 1 -> logits float32 [n, A] (or NULL) and values float32 [n].
EGGROLL_EXPORT void float_net_evaluate(const Net* net, int32_t n, const int8_t* planes,
                                       float* logits, float* values) {
  const int32_t F = net->layers[0].inputs, hidden = net->count - 2;
  int32_t widest = F;
  for (int32_t i = 0; i < hidden; ++i) widest = std::max(widest, net->layers[i].outputs);
  static thread_local std::vector<float> memory;
  if (memory.size() < size_t{2} * kChunk * widest) memory.resize(size_t{2} * kChunk * widest);
  for (int32_t first = 0; first < n; first += kChunk) {
    const int32_t rows = std::min(kChunk, n - first);
    float *x = memory.data(), *y = x + int64_t{kChunk} * widest;
    const int8_t* seen = planes + int64_t{first} * F;
    for (int64_t i = 0; i < int64_t{rows} * F; ++i) x[i] = seen[i];
    auto run = [&](const Layer& layer, float* to, int32_t relu) {
      net->kernels->linear_packed(rows, layer.outputs, layer.inputs, x, layer.inputs, layer.packed,
                                  layer.bias, to, layer.outputs, relu, nullptr, 1);
    };
    for (int32_t i = 0; i < hidden; ++i, std::swap(x, y)) {
      const Layer& layer = net->layers[i];
      run(layer, y, 1);
      for (int32_t r = 0; layer.top && r < rows; ++r)
        for (int32_t o = 0; o < layer.outputs; ++o)
          y[r * layer.outputs + o] = std::min(y[r * layer.outputs + o], layer.top[o]);
    }
    const Layer& policy = net->layers[hidden];
    if (logits) run(policy, logits + int64_t{first} * policy.outputs, 0);
    run(net->layers[hidden + 1], values + first, 0);
    for (int32_t r = first; r < first + rows; ++r) values[r] = std::tanh(values[r]);
  }
}
