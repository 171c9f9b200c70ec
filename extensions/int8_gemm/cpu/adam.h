// Adam in integers, see docs/estimators.md and eggroll/moments.py. Independent of MLX.
#pragma once

#include <vector>

#include "plan.h"

namespace eggroll {

// A leaf before an update, and where it goes; both have feedback, or neither.
struct AdamUpdate {
  const int8_t* weights;
  const int32_t *fine, *mean, *size, *feedback;
  int64_t decay;
  AdamLeaf to;
};

// Makes an update of all leaves by lr `factor`, each shrinking by its `decay` / 2^24; how many
// weights moved.
int64_t adam(const std::vector<AdamUpdate>& leaves, int64_t factor, int threads);

}  // namespace eggroll
