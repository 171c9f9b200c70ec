// PPO's loss and its minimisation.
#pragma once

#include "collect.h"
#include "layout.h"
#include "net.h"
#include "random.h"

namespace ppo {

struct Learner {
  Settings settings;
  Work work;
  Optimiser optimiser;
  Activations activations;
  Deltas deltas;
  Transitions transitions;
  Distinct distinct;
  Collector collector;
  alignas(64) float frozen[kParameters];  // weights that become an opponent's moves
  int32_t order[kMaxTransitions], row[kMaxBatch], share[kMaxBatch];
  float log_probs[kMaxBatch][kMoves], entropy[kMaxBatch];
  uint32_t legal[kMaxBatch];
};

// One minibatch: transitions chosen[0 .. count). Leaves the gradient by the heads in deltas.heads
// and adds the means of the three losses to `report`; returns the rows of the batch.
int batch_rows(Learner& l, const int32_t* chosen, int count);
void batch_loss(Learner& l, const int32_t* chosen, int count, int rows, Report& report);

// Forward, loss, backward, the norm's bound and Adam for one minibatch.
void train_batch(const Evaluator& e, Learner& l, const int32_t* chosen, int count, float rate,
                 Report& report);

// Advantages, then epochs of minibatches in random order.
void update(const Evaluator& e, Learner& l, uint64_t seed, uint64_t iteration, float rate,
            Report& report);

}  // namespace ppo
