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

// What K inputs (the state) -> O outputs -> V logits should give.
inline Result two_products(const Trial& t, int inputs, int outputs, int vocabulary) {
  Result want{{}, t.state, {}, {}, {}};
  for (int m = 0; m < t.members; ++m) {
    const int target = t.targets[static_cast<size_t>(m)];
    Bytes y = reference::linear(t.weights[0], outputs, t.state_of(m, 0, inputs), t.noise(0, m));
    Bytes logits = reference::linear(t.weights[1], vocabulary, y, t.noise(1, m));
    want.scores.push_back(static_cast<int16_t>(reference::score(logits, target)));
    want.totals.push_back(reference::total(logits));
    want.hits.push_back(logits[static_cast<size_t>(target)]);
    want.logits.insert(want.logits.end(), logits.begin(), logits.end());
  }
  return want;
}

}  // namespace eggroll
