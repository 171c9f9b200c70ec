// Declared programs: valid ones, built operation by operation, and the same with fields changed.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "input.h"
#include "program.h"

namespace fuzz {

using namespace eggroll;

struct Spec {
  std::vector<StageSpec> stages;
  std::vector<LeafSpec> leaves;
  int width = 1, vocabulary = 2, state_size = 0, inputs = 0, indices = 0;
  std::vector<std::vector<int>> tables;
  std::vector<uint32_t> mantissas;
  std::vector<uint64_t> breakpoints;
  std::vector<OutputSpec> outputs;

  std::shared_ptr<Program> program() const {
    return std::make_shared<Program>(stages, leaves, width, vocabulary, state_size, tables,
                                     mantissas, breakpoints, inputs, indices, outputs);
  }
};

// Builds a program that every engine accepts.
class Builder {
 public:
  Builder(Input& from, bool plays) : in(from), world(plays) {
    spec.width = in.draw(1, 40);
    spec.vocabulary = world ? 2 : in.draw(2, 40);
    if (!world && in.one_in(8)) spec.vocabulary = in.draw(250, 300);
    int bits = in.one_in(3) ? 8 : 4, tables = in.draw(0, 2);
    for (int i = 0; i < 16; ++i)
      spec.mantissas.push_back(static_cast<uint32_t>(std::exp2(31 + i / 16.0)));
    for (int i = 1; i < 1 << bits; ++i)
      spec.breakpoints.push_back(
          static_cast<uint64_t>(std::ceil(std::exp2(63 + std::ldexp(i, -bits)))));
    for (int i = 0; i < tables; ++i) {
      spec.tables.emplace_back();
      for (int v = 0; v < 256; ++v) spec.tables.back().push_back(in.any(-127, 127));
    }
  }

  Spec build() {
    int stages = in.draw(1, 3);
    for (int i = 0; i < stages; ++i) stage(i, i + 1 == stages);
    return spec;
  }

 private:
  using Ops = std::vector<OpSpec>;

  int leaf(int rows, int cols) {
    spec.leaves.emplace_back(rows, cols);
    return static_cast<int>(spec.leaves.size()) - 1;
  }

  int fresh(int size) {
    registers.push_back(size);
    return static_cast<int>(registers.size()) - 1;
  }

  int emit(const char* name, int out, std::vector<int> inputs, int of = -1, int table = 0,
           std::vector<int> numbers = {}) {
    ops.push_back({name, out, std::move(inputs), of, table, std::move(numbers)});
    if (std::find(held.begin(), held.end(), out) == held.end()) held.push_back(out);
    return out;
  }

  int size(int reg) const { return registers[static_cast<size_t>(reg)]; }

  // A register that holds `n` values, made if there is none.
  int holding(int n) {
    for (int reg : held)
      if (size(reg) == n && !in.one_in(3)) return reg;
    int from = in.pick(held), to = fresh(n);
    return emit("linear", to, {from}, leaf(n, size(from)));
  }

  void begin(int i) {
    if (i > 0) return;
    if (!world && in.one_in(2)) emit("embed", 0, {}, leaf(spec.vocabulary, spec.width));
    if (world || in.one_in(3) || (held.empty() && in.one_in(2))) {
      spec.inputs = in.draw(1, 20);
      emit("input", fresh(spec.inputs), {});
    }
    if (held.empty() || (!world && in.one_in(3))) features();
  }

  void features() {
    int cols = in.draw(1, 20), lists = in.draw(1, 3), active = in.draw(1, 5);
    int rows = std::max(in.draw(1, 40), (lists - 1) * cols);
    int of = leaf(rows, cols), to = fresh(lists * cols);
    emit("features", to, {}, of, 0, {lists, active, spec.indices, in.draw(0, 7)});
    spec.indices += lists * active;
  }

  void operation() {
    int a = in.pick(held), n = size(a), tables = static_cast<int>(spec.tables.size());
    switch (in.draw(0, 9)) {
      case 0: {
        int rows = in.draw(1, 40);
        emit("linear", fresh(rows), {a}, leaf(rows, n));
        break;
      }
      case 1:
        emit("norm", in.one_in(2) ? a : fresh(n), {a}, leaf(n, 0));
        break;
      case 2:
        emit("add", fresh(n), {a, holding(n)});
        break;
      case 3: {
        int b = holding(n);
        emit("add_bias", fresh(n), {a, b}, leaf(n, 0));
        break;
      }
      case 4:
        if (tables) emit("lookup", fresh(n), {a}, -1, in.draw(0, tables - 1));
        break;
      case 5:
        emit("forget", fresh(n), {a, holding(n)});
        break;
      case 6: {
        int b = holding(n), c = holding(n);
        emit("mix", fresh(n), {a, b, c});
        break;
      }
      case 7:
        emit("bias", in.one_in(2) ? a : fresh(n), {a}, leaf(n, 0));
        break;
      case 8:
        emit("relu", in.one_in(2) ? a : fresh(n), {a});
        break;
      default: {
        int b = in.pick(held);
        emit("concat", fresh(n + size(b)), {a, b});
      }
    }
  }

  void give(int reg) {
    int place = static_cast<int>(spec.outputs.size());
    if (in.one_in(2)) {
      spec.outputs.emplace_back(size(reg), false);
      ops.push_back({"output", 0, {reg}, -1, 0, {place}});
    } else {
      int rows = in.draw(1, 20);
      spec.outputs.emplace_back(rows, true);
      ops.push_back({"sums", 0, {reg}, leaf(rows, size(reg)), 0, {place}});
    }
  }

  void end() {
    if (!world && in.draw(0, 2)) {
      int reg = in.pick(held);
      ops.push_back({"score", 0, {reg}, leaf(spec.vocabulary, size(reg)), 0, {}});
      if (in.draw(0, 2)) return;
    }
    give(in.pick(held));
    if (in.one_in(3)) give(in.pick(held));
  }

  void stage(int i, bool last) {
    ops.clear(), registers = {spec.width, spec.width}, held.clear();
    bool state = in.one_in(2);
    if (i > 0) held.push_back(0);
    begin(i);
    if (state) held.push_back(1);
    for (int n = in.draw(0, 5); n > 0; --n) operation();
    if (state) emit("add", 1, {holding(spec.width), 1});
    if (last) end();
    if (!last) {
      int from = in.pick(held), to = from ? 0 : fresh(spec.width);
      emit("linear", to, {from}, leaf(spec.width, size(from)));
      if (to) emit("relu", 0, {to});
    }
    spec.stages.emplace_back(ops, registers, state ? spec.state_size : -1);
    spec.state_size += state ? spec.width : 0;
  }

  Input& in;
  bool world;
  Spec spec;
  Ops ops;
  std::vector<int> registers, held;
};

// ---- changes ----------------------------------------------------------------------------------

template <typename T>
void disarrange(Input& in, std::vector<T>& list) {
  if (list.empty()) return;
  size_t i = static_cast<size_t>(in.draw(0, static_cast<int>(list.size()) - 1));
  size_t j = static_cast<size_t>(in.draw(0, static_cast<int>(list.size()) - 1));
  switch (in.draw(0, 3)) {
    case 0:
      list.erase(list.begin() + static_cast<int64_t>(i));
      break;
    case 1:
      list.push_back(list[i]);
      break;
    case 2:
      list.resize(i);
      break;
    default:
      std::swap(list[i], list[j]);
  }
}

inline void change(Input& in, std::vector<int>& numbers) {
  if (numbers.empty() || in.one_in(3)) {
    if (in.one_in(2)) numbers.push_back(in.hostile(0));
    return disarrange(in, numbers);
  }
  int& n = in.pick(numbers);
  n = in.hostile(n);
}

inline void change_operation(Input& in, OpSpec& op) {
  auto& [name, out, inputs, leaf, table, numbers] = op;
  static const std::vector<std::string> names = operations();
  switch (in.draw(0, 5)) {
    case 0:
      name = in.one_in(9) ? "nothing" : in.pick(names);
      break;
    case 1:
      out = in.hostile(out);
      break;
    case 2:
      change(in, inputs);
      break;
    case 3:
      leaf = in.hostile(leaf);
      break;
    case 4:
      table = in.hostile(table);
      break;
    default:
      change(in, numbers);
  }
}

inline void change_stage(Input& in, StageSpec& stage) {
  auto& [ops, registers, state] = stage;
  int what = in.draw(0, 7);
  if (what == 0) return disarrange(in, ops);
  if (what == 1) return change(in, registers);
  if (what == 2) return void(state = in.hostile(state));
  if (!ops.empty()) change_operation(in, in.pick(ops));
}

inline void change_tables(Input& in, Spec& spec) {
  switch (in.draw(0, 3)) {
    case 0:
      return disarrange(in, spec.tables);
    case 1:
      if (!spec.tables.empty()) change(in, in.pick(spec.tables));
      return;
    case 2:
      if (in.one_in(2)) return disarrange(in, spec.mantissas);
      in.pick(spec.mantissas) = static_cast<uint32_t>(in.hostile(0));
      return;
    default:
      if (in.one_in(2)) return disarrange(in, spec.breakpoints);
      in.pick(spec.breakpoints) = uint64_t{in.word()} << in.draw(0, 32);
  }
}

inline void change(Input& in, Spec& spec) {
  int* const sizes[] = {&spec.width, &spec.vocabulary, &spec.state_size, &spec.inputs,
                        &spec.indices};
  int what = in.draw(0, 15);
  if (what < 5) return void(*sizes[what] = in.hostile(*sizes[what]));
  if (what == 5) return disarrange(in, spec.stages);
  if (what == 6) return disarrange(in, spec.leaves);
  if (what == 7) return disarrange(in, spec.outputs);
  if (what == 8) return change_tables(in, spec);
  if (what == 9 && !spec.leaves.empty()) {
    auto& [rows, cols] = in.pick(spec.leaves);
    int& n = in.one_in(2) ? rows : cols;
    n = in.hostile(n);
  } else if (what == 10 && !spec.outputs.empty()) {
    auto& [size, wide] = in.pick(spec.outputs);
    if (in.one_in(2))
      size = in.hostile(size);
    else
      wide = !wide;
  } else if (!spec.stages.empty()) {
    change_stage(in, in.pick(spec.stages));
  }
}

}  // namespace fuzz
