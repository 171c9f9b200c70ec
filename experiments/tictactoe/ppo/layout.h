// Sizes and places that are known when this is compiled, and what Python hands over.
#pragma once

#include <cstdint>

namespace ppo {

constexpr int kInputs = 27, kHidden = 256, kLayers = 4, kMoves = 9;
constexpr int kHeads = kMoves + 1;  // logits and the value, one product
constexpr int kMaxBatch = 1024, kMaxTransitions = 8192, kMaxGames = 1024, kMaxPool = 256;
constexpr int kMaxThreads = 16;
constexpr int kCodes = 19683;  // boards as numbers of nine digits in base 3

constexpr int inputs_of(int layer) { return layer ? kHidden : kInputs; }

// Offsets in the vector of parameters: W [in, 256] and b of each layer, then the heads. torch has
// W [256, in]: here the weights of an input lie together, so that inputs can be left out.
constexpr int weights_of(int layer) {
  int at = 0;
  for (int l = 0; l < layer; ++l) at += kHidden * (inputs_of(l) + 1);
  return at;
}
constexpr int bias_of(int layer) { return weights_of(layer) + kHidden * inputs_of(layer); }
constexpr int kHeadWeights = weights_of(kLayers);  // [10, 256]: nine rows of the policy, the value
constexpr int kHeadBias = kHeadWeights + kHeads * kHidden;
constexpr int kParameters = kHeadBias + kHeads;
static_assert(kParameters == 207114);

// In torch's order the policy's biases stand before the value's weights; here after them.
constexpr int kPolicyBias = kHeadWeights + kMoves * kHidden;  // torch's
constexpr int kValueWeights = kPolicyBias + kMoves;           // torch's

struct Settings {
  int32_t games, epochs, batch, normalise, distinct, sparse, threads;
  float clip, entropy, value, discount, decay, norm, beta1, beta2, epsilon;
  float reward[3];  // win, draw, loss
};

// Seconds by part.
struct Parts {
  double backward, adam, forward, collection, loss, other;
};

// What products did since the run began; units left out are not counted.
struct Work {
  int64_t multiply_adds, products;
};

struct Report {
  double policy, value, entropy;  // means over minibatches
  int64_t results[3];             // wins, draws, losses of the learner
  int64_t transitions, rows, trained_rows;
  Parts parts;
};

}  // namespace ppo
