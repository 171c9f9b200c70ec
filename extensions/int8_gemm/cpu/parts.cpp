// Cuts stages to parts.

#include <algorithm>

#include "program.h"

namespace eggroll {

namespace {

bool is_product(const Op& op) { return multiplies(op.kind); }

bool uses(const Op& op, int reg) {
  return (writes(op.kind) && op.out == reg) || std::find(op.in, op.in + 3, reg) != op.in + 3;
}

bool any_uses(const Op* first, const Op* last, int reg) {
  return std::any_of(first, last, [=](const Op& op) { return uses(op, reg); });
}

// Whether operations read a register, other than x and s, that they have not written.
bool reads_earlier(const Op* first, const Op* last) {
  bool written[kRegisters] = {true, true};
  for (; first < last; ++first) {
    for (int in : first->in)
      if (in >= 0 && !written[in]) return true;
    if (writes(first->kind)) written[first->out] = true;
  }
  return false;
}

// Whether the operations before `at` and those from it on are a part each.
bool parted(const Op* first, const Op* at, const Op* last) {
  return std::any_of(first, at, is_product) && std::any_of(at, last, is_product) &&
         !(any_uses(first, at, 1) && any_uses(at, last, 1)) && !reads_earlier(at, last);
}

}  // namespace

std::vector<Stage> parts_of(const std::vector<Stage>& stages) {
  std::vector<Stage> parts;
  for (const Stage& stage : stages) {
    const Op *first = stage.ops, *last = first + stage.op_count;
    const bool unused = !any_uses(first, last, 1);  // a state that stays as it is, in the last part
    auto add = [&](const Op* end) {
      const bool state = unused ? end == last : any_uses(first, end, 1);
      parts.push_back({first, static_cast<int>(end - first), stage.registers, stage.register_count,
                       state ? stage.state : -1});
      first = end;
    };
    for (const Op* at = first; at < last; at += 1 + at->chain)
      if (parted(first, at, last)) add(at);
    add(last);
  }
  return parts;
}

}  // namespace eggroll
