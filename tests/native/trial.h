// One evaluation of a program by every unit, and its results, for kernels.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "program.h"
#include "reference.h"
#include "values.h"

namespace eggroll {

using Ints = std::vector<int32_t>;

// One evaluation, as every unit is given it.
struct Trial {
  std::string name;
  std::unique_ptr<Program> program;
  std::vector<Bytes> weights;
  Bytes table;
  Ints starts;  // [leaves, N]; empty: no noise
  int rank, shift, members;
  Ints tokens, targets;  // [P]
  Bytes state;

  reference::Noise noise(int leaf, int member) const {
    if (starts.empty()) return {nullptr, 0, 0, 1};
    int start = starts[static_cast<size_t>(leaf * (members / 2) + member / 2)];
    return {table.data() + start, rank, shift, member % 2 ? -1 : 1};
  }
  Bytes state_of(int member, int offset, int width) const {
    auto at = state.begin() + static_cast<int64_t>(member) * program->plan().state_size + offset;
    return {at, at + width};
  }
};

struct Result {
  std::vector<int16_t> scores;
  Bytes state, logits, hits;
  std::vector<uint64_t> totals;
  bool operator==(const Result&) const = default;
};

}  // namespace eggroll
