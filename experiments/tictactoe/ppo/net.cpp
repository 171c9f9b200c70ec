#include "net.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ppo {

namespace {

// Lists the units with a bit in any row; all of them if `sparse` is false.
void find_active(const uint32_t* bits, int rows, bool sparse, Active& found) {
  uint32_t any[kWords] = {};
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < kWords; ++w) any[w] |= bits[r * kWords + w];
  found.count = 0;
  for (int w = 0; w < kWords; ++w)
    for (uint32_t left = sparse ? any[w] : ~0u; left; left &= left - 1)
      found.unit[found.count++] = 32 * w + std::countr_zero(left);
}

// to [rows, active] = columns of from [rows, 256].
void take_columns(const float* from, int rows, const Active& a, float* to) {
  for (int r = 0; r < rows; ++r, from += kHidden, to += a.count)
    for (int i = 0; i < a.count; ++i) to[i] = from[a.unit[i]];
}

// Rows of w [256, 256], one after another; w itself if that is all of them.
const float* take_rows(const float* w, const Active& a, float* to) {
  if (a.count == kHidden) return w;
  for (int i = 0; i < a.count; ++i)
    std::memcpy(to + i * kHidden, w + a.unit[i] * kHidden, sizeof(float) * kHidden);
  return to;
}

// w [256, 256] of active inputs and active outputs.
const float* take_both(const float* w, const Active& in, const Active& out, float* to) {
  if (in.count == kHidden && out.count == kHidden) return w;
  for (int i = 0; i < in.count; ++i, to += out.count)
    for (int j = 0; j < out.count; ++j) to[j] = w[in.unit[i] * kHidden + out.unit[j]];
  return to - in.count * out.count;
}

const float* take_heads(const float* w, const Active& a, float* to) {
  if (a.count == kHidden) return w;
  take_columns(w, kHeads, a, to);
  return to;
}

double backward_heads(const Evaluator& e, const float* weights, const Activations& a, Deltas& d,
                      float* gradient, int rows) {
  const Active& top = a.active[kLayers - 1];
  const float* x = a.hidden[kLayers - 1];
  const float* w = top.count == kHidden ? weights + kHeadWeights : a.head_weights;
  float* g = gradient + kHeadWeights;
  e.product(FLOAT_KERNELS_TN, kHeads, top.count, rows, d.heads, kHeadsApart, x, top.count, g,
            top.count);
  e.kernels->column_sums(rows, kHeads, d.heads, kHeadsApart, gradient + kHeadBias, 0);
  e.product(FLOAT_KERNELS_NN, rows, top.count, kHeads, d.heads, kHeadsApart, w, top.count,
            d.hidden[0], top.count);
  return e.kernels->sum_squares(int64_t{kHeads} * top.count, g) +
         e.kernels->sum_squares(kHeads, gradient + kHeadBias);
}

// delta [rows, active] of layer l becomes its gradient by what ReLU was given.
double backward_layer(const Evaluator& e, const Activations& a, int l, float* delta,
                      float* gradient, int rows) {
  const int count = a.active[l].count, in = l ? a.active[l - 1].count : kInputs;
  const float* x = l ? a.hidden[l - 1] : a.inputs;
  float *g = gradient + weights_of(l), *bias = gradient + bias_of(l);
  e.kernels->relu_backward(rows, count, a.hidden[l], count, delta, count, delta, count, bias);
  e.product(FLOAT_KERNELS_TN, in, count, rows, x, in, delta, count, g, count);
  return e.kernels->sum_squares(int64_t{in} * count, g) + e.kernels->sum_squares(count, bias);
}

// A row of the gradient of a matrix [inputs, 256] or of its bias: `from` [active outputs] at its
// units, zeros elsewhere.
void spread(const float* from, const Active& out, float* to) {
  std::fill(to, to + kHidden, 0.0f);
  for (int j = 0; j < out.count; ++j) to[out.unit[j]] = from[j];
}

// Rows first .. last of layer l's gradient [inputs + 1, 256], the bias's at last.
void dense_rows(const Active* active, const float* gradient, int l, int first, int last,
                float* to) {
  static const Active all = [] {
    Active found{kHidden, {}};
    for (int i = 0; i < kHidden; ++i) found.unit[i] = i;
    return found;
  }();
  const Active& in = l ? active[l - 1] : all;
  const int inputs = inputs_of(l), known = l ? in.count : kInputs;
  int i = static_cast<int>(std::lower_bound(in.unit, in.unit + known, first) - in.unit);
  for (int row = first; row < last; ++row, to += kHidden) {
    if (row == inputs) {
      spread(gradient + bias_of(l), active[l], to);
    } else if (i < known && in.unit[i] == row) {
      spread(gradient + weights_of(l) + i++ * active[l].count, active[l], to);
    } else {
      std::fill(to, to + kHidden, 0.0f);
    }
  }
}

void dense_heads(const Active* active, const float* gradient, float* to) {
  const Active& top = active[kLayers - 1];
  for (int h = 0; h < kHeads; ++h)
    spread(gradient + kHeadWeights + h * top.count, top, to + h * kHidden);
  std::memcpy(to + kHeads * kHidden, gradient + kHeadBias, sizeof(float) * kHeads);
}

}  // namespace

void forward(const Evaluator& e, const float* weights, Activations& a, int rows) {
  const float *x = a.inputs, *w = weights;
  int in = kInputs;
  for (int l = 0; l < kLayers; ++l) {
    Active& active = a.active[l];
    if (l) w = take_rows(weights + weights_of(l), a.active[l - 1], a.gathered);
    e.product(FLOAT_KERNELS_NN, rows, kHidden, in, x, in, w, kHidden, a.full, kHidden);
    e.kernels->bias_relu(rows, kHidden, a.full, kHidden, weights + bias_of(l), a.bits);
    find_active(a.bits, rows, e.sparse, active);
    take_columns(a.full, rows, active, a.hidden[l]);
    x = a.hidden[l];
    in = active.count;
  }
  w = take_heads(weights + kHeadWeights, a.active[kLayers - 1], a.head_weights);
  e.product(FLOAT_KERNELS_NT, rows, kHeads, in, x, in, w, in, a.heads, kHeadsApart);
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < kHeads; ++h) a.heads[r * kHeadsApart + h] += weights[kHeadBias + h];
}

double backward(const Evaluator& e, const float* weights, const Activations& a, Deltas& d,
                float* gradient, int rows) {
  double squares = backward_heads(e, weights, a, d, gradient, rows);
  float* delta = d.hidden[0];
  for (int l = kLayers - 1; l >= 0; --l) {
    squares += backward_layer(e, a, l, delta, gradient, rows);
    if (!l) break;
    const Active &in = a.active[l - 1], &out = a.active[l];
    const float* w = take_both(weights + weights_of(l), in, out, d.gathered);
    float* below = d.hidden[delta == d.hidden[0]];
    e.product(FLOAT_KERNELS_NT, rows, in.count, out.count, delta, out.count, w, out.count, below,
              in.count);
    delta = below;
  }
  return squares;
}

void adam(const float_kernels& k, const Settings& s, const Active* active, Optimiser& o, float rate,
          float clip) {
  constexpr int kRows = 32;  // spread at a time, so that they are in cache when Adam reads them
  alignas(64) float dense[kRows * kHidden];
  ++o.step;
  const auto apply = [&](int at, int n) {
    k.adam(n, o.weights + at, dense, o.first + at, o.second + at, rate, s.beta1, s.beta2, s.epsilon,
           clip, o.step);
  };
  for (int l = 0; l < kLayers; ++l) {
    for (int row = 0; row <= inputs_of(l); row += kRows) {
      const int last = std::min(row + kRows, inputs_of(l) + 1);
      dense_rows(active, o.gradient, l, row, last, dense);
      apply(weights_of(l) + row * kHidden, (last - row) * kHidden);
    }
  }
  dense_heads(active, o.gradient, dense);
  apply(kHeadWeights, kParameters - kHeadWeights);
}

void dense_gradient(const Active* active, const float* gradient, float* torch) {
  static float own[kParameters];
  for (int l = 0; l < kLayers; ++l)
    dense_rows(active, gradient, l, 0, inputs_of(l) + 1, own + weights_of(l));
  dense_heads(active, gradient, own + kHeadWeights);
  to_torch(own, torch);
}

void from_torch(const float* torch, float* own) {
  for (int l = 0; l < kLayers; ++l) {
    const int in = inputs_of(l);
    for (int i = 0; i < in; ++i)
      for (int j = 0; j < kHidden; ++j)
        own[weights_of(l) + i * kHidden + j] = torch[weights_of(l) + j * in + i];
    std::memcpy(own + bias_of(l), torch + bias_of(l), sizeof(float) * kHidden);
  }
  std::memcpy(own + kHeadWeights, torch + kHeadWeights, sizeof(float) * kMoves * kHidden);
  std::memcpy(own + kHeadWeights + kMoves * kHidden, torch + kValueWeights,
              sizeof(float) * kHidden);
  std::memcpy(own + kHeadBias, torch + kPolicyBias, sizeof(float) * kMoves);
  own[kHeadBias + kMoves] = torch[kParameters - 1];
}

void to_torch(const float* own, float* torch) {
  for (int l = 0; l < kLayers; ++l) {
    const int in = inputs_of(l);
    for (int i = 0; i < in; ++i)
      for (int j = 0; j < kHidden; ++j)
        torch[weights_of(l) + j * in + i] = own[weights_of(l) + i * kHidden + j];
    std::memcpy(torch + bias_of(l), own + bias_of(l), sizeof(float) * kHidden);
  }
  std::memcpy(torch + kHeadWeights, own + kHeadWeights, sizeof(float) * kMoves * kHidden);
  std::memcpy(torch + kPolicyBias, own + kHeadBias, sizeof(float) * kMoves);
  std::memcpy(torch + kValueWeights, own + kHeadWeights + kMoves * kHidden,
              sizeof(float) * kHidden);
  torch[kParameters - 1] = own[kHeadBias + kMoves];
}

}  // namespace ppo
