// Update rules in integers, see docs/estimators.md and eggroll/evolution/rules.py.
// Independent of MLX.
#pragma once

#include <vector>

#include "plan.h"

namespace eggroll {

// Makes an update of all leaves by rule adam with lr `factor`; how many weights moved.
int64_t adam(const std::vector<AdamLeaf>& leaves, int64_t factor, int threads);

// The same by rule master.
int64_t add_votes(const std::vector<MasterLeaf>& leaves, int threads);

// The same by rule sign.
int64_t move_by_sign(const std::vector<SignLeaf>& leaves, int threads);

// The same by rule whitened.
int64_t whiten(const std::vector<WhitenedLeaf>& leaves, int threads);

}  // namespace eggroll
