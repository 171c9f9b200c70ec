// Moves drawn through the masked softmax, through the usual arithmetic mask, and through what a
// compiler may make of that with -ffast-math. For bugs.py and the tests.
#include "policy.h"
#include "random.h"

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

// The same after the sums were reordered, written out: what stays in float32 of logit - 1e8 is
// -1e8, so every legal move has logit 0.
void count_by_reordered(const float* logits, const float* mask, int draws, int* counts) {
  float masked[ppo::kMoves];
  for (int j = 0; j < ppo::kMoves; ++j) {
    volatile float far = logits[j] - 1e8f;
    masked[j] = far + mask[j] * 1e8f;
  }
  ppo::Random random(0, 0, 0);
  for (int i = 0; i < draws; ++i) ++counts[drawn(masked, 0x1ff, random)];
}

}  // extern "C"
