// The masked softmax, and moves drawn from it.
#pragma once

#include <cmath>
#include <cstdint>

#include "layout.h"

namespace ppo {

// log-probabilities of nine logits, 0 where illegal, and the entropy.
//
// Legal moves are chosen by a branch. The usual arithmetic, logit + (1 - legal) * -1e8, is 0 for
// every legal move where a compiler may reassociate it (-ffast-math), and play is uniform then.
inline float masked_log_softmax(const float* logits, uint32_t legal, float* log_probs) {
  float top = -3.4e38f, sum = 0, entropy = 0;
  for (int j = 0; j < kMoves; ++j)
    if (legal >> j & 1 && logits[j] > top) top = logits[j];
  for (int j = 0; j < kMoves; ++j)
    if (legal >> j & 1) sum += std::exp(logits[j] - top);
  const float whole = top + std::log(sum);
  for (int j = 0; j < kMoves; ++j) {
    log_probs[j] = 0;
    if (!(legal >> j & 1)) continue;
    log_probs[j] = logits[j] - whole;
    entropy -= std::exp(log_probs[j]) * log_probs[j];
  }
  return entropy;
}

// The legal move at which the sum of probabilities passes `uniform`, which is in [0, 1).
inline int draw_move(const float* log_probs, uint32_t legal, float uniform) {
  float sum = 0;
  int last = 0;
  for (int j = 0; j < kMoves; ++j) {
    if (!(legal >> j & 1)) continue;
    last = j;
    sum += std::exp(log_probs[j]);
    if (uniform < sum) break;
  }
  return last;
}

}  // namespace ppo
