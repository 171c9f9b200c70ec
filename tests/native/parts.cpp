// How stages are cut to parts (parts_of): where, with what state, and where they must stay whole.

#include <iostream>
#include <string>
#include <utility>

#include "program.h"

using namespace eggroll;

namespace {

int failures = 0;

Op op(OpKind kind, int out, std::vector<int> in, int chain = 0) {
  in.resize(3, -1);
  return {kind, out, {in[0], in[1], in[2]}, -1, 0, 0, 0, 0, 0, 0, chain, false};
}
Op linear(int out, int in, int chain = 0) { return op(OpKind::linear, out, {in}, chain); }
Op add(int out, int a, int b) { return op(OpKind::add, out, {a, b}); }
Op norm(int out) { return op(OpKind::norm, out, {0}); }

// (operations, state) of every part.
using Parts = std::vector<std::pair<int, int>>;

void expect(const std::string& what, const std::vector<std::vector<Op>>& stages, int state,
            const Parts& want) {
  const std::vector<int> registers(8, 4);
  std::vector<Stage> declared;
  for (const auto& ops : stages)
    declared.push_back({ops.data(), static_cast<int>(ops.size()), registers.data(),
                        static_cast<int>(registers.size()), state});
  Parts got;
  bool follow = true;
  size_t stage = 0;
  int at = 0;  // the first operation of the part that should follow
  for (const Stage& part : parts_of(declared)) {
    got.push_back({part.op_count, part.state});
    follow = follow && part.ops == stages[stage].data() + at && part.register_count == 8 &&
             part.registers == registers.data();
    at += part.op_count;
    if (at == static_cast<int>(stages[stage].size())) ++stage, at = 0;
  }
  if (got == want && follow && stage == stages.size()) return;
  ++failures;
  std::cout << "  wrong: " << what << ", cut to";
  for (auto [count, has] : got) std::cout << " " << count << " (state " << has << ")";
  std::cout << "\n";
}

}  // namespace

int main() {
  const Op gru[] = {norm(2), linear(3, 2), linear(4, 1), add(1, 3, 4), add(0, 0, 1)};
  const Op mlp[] = {norm(5), linear(6, 5), linear(7, 6), add(0, 0, 7)};
  std::vector<Op> layer(gru, gru + 5), other(mlp, mlp + 4);
  layer.insert(layer.end(), mlp, mlp + 4);
  other.insert(other.end(), gru, gru + 5);

  expect("a layer with a state", {layer}, 8, {{5, 8}, {4, -1}});
  expect("the state is in the second part", {other}, 8, {{4, -1}, {5, 8}});
  expect("two layers", {layer, layer}, 8, {{5, 8}, {4, -1}, {5, 8}, {4, -1}});
  expect("a state that nothing uses",
         {{norm(2), linear(0, 2), add(0, 0, 2), norm(2), linear(0, 2), add(0, 0, 2)}}, 8,
         {{3, -1}, {3, 8}});
  expect("one after another",
         {{linear(2, 0), add(0, 0, 2), norm(2), linear(3, 2), add(0, 0, 3), linear(2, 0),
           add(0, 0, 2)}},
         -1, {{2, -1}, {3, -1}, {2, -1}});
  expect("a value is read later", {{linear(2, 0), add(0, 0, 2), linear(3, 0), add(0, 3, 2)}}, -1,
         {{4, -1}});
  expect("a value is written anew first",
         {{linear(2, 0), add(0, 0, 2), linear(3, 0), add(2, 3, 3), add(0, 0, 2)}}, -1,
         {{2, -1}, {3, -1}});
  expect("the second part reads the state",
         {{linear(1, 0), add(0, 0, 1), linear(2, 1), add(0, 0, 2)}}, 8, {{4, 8}});
  expect("the second part writes the state",
         {{linear(2, 1), add(0, 0, 2), linear(3, 0), add(1, 3, 3), add(0, 0, 1)}}, 8, {{5, 8}});
  expect("no product before", {{norm(0), linear(2, 0), add(0, 0, 2)}}, -1, {{3, -1}});
  expect("no product after", {{linear(2, 0), add(0, 0, 2), norm(0)}}, -1, {{3, -1}});
  expect("what is done with a product's tiles",
         {{linear(2, 0), add(0, 0, 2), linear(3, 0, 1), op(OpKind::relu, 0, {3}), linear(2, 0),
           add(0, 0, 2)}},
         -1, {{2, -1}, {2, -1}, {2, -1}});
  expect("within a chain", {{norm(2), linear(0, 2, 1), op(OpKind::relu, 0, {0}), linear(2, 0)}}, -1,
         {{3, -1}, {1, -1}});
  // What goes to the caller names a register that it does not write.
  expect("sums write none", {{linear(2, 0), add(0, 0, 2), op(OpKind::sums, 2, {0}), add(0, 0, 2)}},
         -1, {{4, -1}});
  expect("a score and sums are products", {{op(OpKind::sums, 0, {0}), op(OpKind::score, 0, {0})}},
         -1, {{1, -1}, {1, -1}});
  std::cout << failures << " wrong\n";
  return failures != 0;
}
