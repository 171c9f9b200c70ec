// Stages cut to parts.
#pragma once

#include <vector>

#include "plan.h"

namespace eggroll {

// The parts of declared stages, which Program has checked and chained: a stage is cut where x alone
// is read later, so that the weights and noise of one part stay in the cache for all tokens. Each
// part has a product, and its stage's registers; the state goes to the one part that uses it.
std::vector<Stage> parts_of(const std::vector<Stage>& stages);

}  // namespace eggroll
