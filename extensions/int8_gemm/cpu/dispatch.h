// One dispatch for instruction sets: built and detected, fastest first, EGGROLL_ISA overrides.
#pragma once

#include <string>
#include <vector>

#include "plan.h"

namespace eggroll {

// Names of the instruction sets that are built and that run on this processor and system, fastest
// first.
std::vector<std::string> usable_isas();

// The kernels in use: EGGROLL_ISA's, else the fastest. Throws std::invalid_argument for an
// EGGROLL_ISA that is not usable here.
const Kernels& kernels();

}  // namespace eggroll
