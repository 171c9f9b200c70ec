// Adam in integers, see docs/estimators.md and eggroll/moments.py. Independent of MLX.
#pragma once

#include "plan.h"

namespace eggroll {

// Makes an update by lr `factor` and shrinking `decay` / 2^24; how many weights moved.
int64_t adam(const AdamLeaf& leaf, int64_t factor, int64_t decay, int threads);

}  // namespace eggroll
