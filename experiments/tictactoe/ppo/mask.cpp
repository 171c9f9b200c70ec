// Moves drawn through the masked softmax of experiments/tictactoe, and through the usual arithmetic
// mask, to be compiled with -ffast-math.
#include "ppo_policy.h"
#include "ppo_random.h"

namespace {

int drawn(const float* logits, uint32_t legal, ppo::Random& random) {
  float log_probs[ppo::kMoves];
  ppo::masked_log_softmax(logits, legal, log_probs);
  return ppo::draw_move(log_probs, legal, random.uniform());
}

}  // namespace

extern "C" {

// Counts [9] of moves drawn by the branch, from logits [9] and a mask of nine 0 or 1.
void count_by_branch(const float* logits, const float* mask, int draws, int* counts) {
  uint32_t legal = 0;
  for (int j = 0; j < ppo::kMoves; ++j) legal |= (mask[j] > 0.5f ? 1u : 0u) << j;
  ppo::Random random(0, 0, 0);
  for (int i = 0; i < draws; ++i) ++counts[drawn(logits, legal, random)];
}

// The same by logit + (1 - mask) * -1e8, over all nine.
void count_by_arithmetic(const float* logits, const float* mask, int draws, int* counts) {
  float masked[ppo::kMoves];
  for (int j = 0; j < ppo::kMoves; ++j) masked[j] = logits[j] + (1.0f - mask[j]) * -1e8f;
  ppo::Random random(0, 0, 0);
  for (int i = 0; i < draws; ++i) ++counts[drawn(masked, 0x1ff, random)];
}

}  // extern "C"
