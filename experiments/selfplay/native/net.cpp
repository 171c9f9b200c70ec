// The network of net.h as an evaluation of positions, for evaluators.py.
#include "net.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "eggroll_world.h"

using namespace selfplay;

namespace {

constexpr int kChunk = 256;  // rows whose activations stay in the cache

int32_t whole(int32_t size) { return (size + kWide - 1) / kWide * kWide; }

// Planes int8 [rows, F] of 0 and 1 as inputs uint8 [rows, pitch].
void show(const int8_t* planes, int32_t rows, int32_t F, uint8_t* x, int32_t pitch) {
  for (int32_t r = 0; r < rows; ++r, planes += F, x += pitch) {
    for (int32_t i = 0; i < F; ++i) x[i] = static_cast<uint8_t>(planes[i] << kOneBits);
    std::memset(x + F, 0, pitch - F);
  }
}

}  // namespace

// Layers: the hidden ones, the policy, the value. logit: of a unit of the policy; values float32
// [256]: of the value's byte + 128.
struct Net {
  int32_t count;  // layers
  const Layer* layers;
  float logit;
  const float* values;
  int32_t set;  // instruction set, see net.h
};

// 1 where an instruction set runs here.
EGGROLL_EXPORT int32_t net_runs(int32_t set) { return kernels_of(set) != nullptr; }

namespace {

// `read` gives the first layer's outputs of so many rows from a row on, int8 [rows, pitch], and may
// use a second array of that size.
template <class Read>
void evaluate(const Net& net, int32_t n, int32_t pitch, float* logits, float* values, Read read) {
  const Kernels& run = *kernels_of(net.set);
  const int32_t hidden = net.count - 2;
  for (int32_t i = 0; i < net.count; ++i)
    if (logits || i != hidden) pitch = std::max(pitch, whole(net.layers[i].outputs));
  static thread_local std::vector<uint8_t> memory;
  const size_t room = size_t{3} * kChunk * pitch + 64;
  if (memory.size() < room) memory.resize(room);
  for (int32_t first = 0; first < n; first += kChunk) {
    const int32_t rows = std::min(kChunk, n - first);
    uint8_t *x = memory.data(), *y = x + int64_t{kChunk} * pitch,
            *out = y + int64_t{kChunk} * pitch;
    read(first, rows, reinterpret_cast<int8_t*>(x), y, pitch);
    for (int32_t i = 1; i < hidden; ++i, std::swap(x, y))
      run.layer(net.layers[i], false, rows, x, pitch, reinterpret_cast<int8_t*>(y), pitch);
    int8_t* found = reinterpret_cast<int8_t*>(out);
    const Layer &policy = net.layers[hidden], &value = net.layers[hidden + 1];
    if (logits) {
      run.layer(policy, false, rows, x, pitch, found, pitch);
      for (int32_t r = 0; r < rows; ++r)
        for (int32_t a = 0; a < policy.outputs; ++a)
          logits[int64_t{first + r} * policy.outputs + a] =
              static_cast<float>(found[int64_t{r} * pitch + a]) * net.logit;
    }
    run.layer(value, false, rows, x, pitch, found, pitch);
    for (int32_t r = 0; r < rows; ++r)
      values[first + r] = net.values[found[int64_t{r} * pitch] + 128];
  }
}

}  // namespace

// Inputs as bits uint64 [n, words], see state.h, of a network whose first layer has columns ->
// logits float32 [n, A] (or NULL) and values float32 [n].
EGGROLL_EXPORT void net_evaluate_bits(const Net* net, int32_t n, const uint64_t* bits,
                                      float* logits, float* values) {
  const Layer& layer = net->layers[0];
  evaluate(*net, n, kWide, logits, values,
           [&](int32_t first, int32_t rows, int8_t* x, uint8_t*, int32_t pitch) {
             kernels_of(net->set)->first(layer, rows, bits + int64_t{first} * layer.words(), x,
                                         pitch);
           });
}

// The same of planes int8 [n, F] of 0 and 1.
EGGROLL_EXPORT void net_evaluate(const Net* net, int32_t n, const int8_t* planes, float* logits,
                                 float* values) {
  const Kernels& run = *kernels_of(net->set);
  const Layer& layer = net->layers[0];
  const int32_t F = layer.inputs;
  if (layer.columns) {
    static thread_local std::vector<uint64_t> bits;
    const size_t room = static_cast<size_t>(n) * layer.words();
    if (bits.size() < room) bits.resize(room);
    run.pack(F, layer.words(), n, planes, bits.data());
    return net_evaluate_bits(net, n, bits.data(), logits, values);
  }
  evaluate(*net, n, whole(F), logits, values,
           [&](int32_t first, int32_t rows, int8_t* x, uint8_t* y, int32_t pitch) {
             show(planes + int64_t{first} * F, rows, F, y, pitch);
             run.layer(layer, true, rows, y, pitch, x, pitch);
           });
}
