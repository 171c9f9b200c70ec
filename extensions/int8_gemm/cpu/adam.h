// Adam in integers, see docs/estimators.md and eggroll/moments.py. Independent of MLX.
#pragma once

#include <cstdint>

namespace eggroll {

// A leaf of n values. fine, mean, size and feedback (null: none) are replaced, and weights become
// the rounding of fine.
struct AdamLeaf {
  const int32_t* votes;
  int8_t* weights;
  int32_t *fine, *mean, *size, *feedback;
  int64_t n;
};

// Makes an update by lr `factor` and shrinking `decay` / 2^24; how many weights moved.
int64_t adam(const AdamLeaf& leaf, int64_t factor, int64_t decay, int threads);

}  // namespace eggroll
