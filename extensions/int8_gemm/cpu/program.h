// A declared program, checked once, with the layout of its packed weights. Independent of MLX.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan.h"

namespace eggroll {

// (name of the operation, out, inputs, leaf or -1, table, numbers as in stage.py)
using OpSpec = std::tuple<std::string, int, std::vector<int>, int, int, std::vector<int>>;
// (operations, register sizes, state offset or -1)
using StageSpec = std::tuple<std::vector<OpSpec>, std::vector<int>, int>;
// (rows, cols), cols 0 for a vector
using LeafSpec = std::pair<int, int>;
// (size, whether it is int32)
using OutputSpec = std::pair<int, bool>;

// Names of the operations that Block::run has.
std::vector<std::string> operations();

// What a declaration may hold is refused here again, whoever calls: no kernel reads a register
// before it is written, or beyond it. Throws std::invalid_argument.
class Program {
 public:
  Program(const std::vector<StageSpec>& stages, const std::vector<LeafSpec>& leaves, int width,
          int vocabulary, int state_size, const std::vector<std::vector<int>>& tables,
          const std::vector<uint32_t>& mantissas, const std::vector<uint64_t>& log2_breakpoints,
          int inputs = 0, int indices = 0, const std::vector<OutputSpec>& outputs = {});

  // Without places of packed weights.
  const Plan& plan() const { return plan_; }

  // The same, with weights packed for one instruction set.
  Plan plan(const Kernels& k) const;
  int64_t packed_bytes(const Kernels& k) const;

  // Writes leaf `i`, int8 in its declared shape, into its place in zeroed packed weights.
  // Throws std::invalid_argument for a weight of -128.
  void pack(const Kernels& k, int i, const int8_t* leaf, int8_t* packed) const;

  // Whether that changes nothing, and the check of weights alone.
  bool lies_packed(int i) const;
  void check_weights(int i, const int8_t* leaf) const;

 private:
  void add_stage(const StageSpec& stage);
  void add_leaf(const LeafSpec& leaf);
  void check(const Stage& stage) const;
  void check(const Op& op, const Stage& stage) const;
  void check_leaf(const Op& op, const Stage& stage) const;
  void check_rows(const Op& op, const Stage& stage) const;
  void check_flow() const;
  void check_powers() const;
  static void chain(std::vector<Op>& ops);
  static void mark(std::vector<Op>& ops);
  static void mark_last(std::vector<Op>& ops);

  // Where leaves lie in weights packed for one instruction set.
  struct Layout {
    std::vector<Leaf> leaves;
    int64_t bytes;
  };
  const Layout& layout(const Kernels& k) const;

  std::vector<std::vector<Op>> ops_;
  std::vector<std::vector<int>> registers_;
  std::vector<Stage> stages_, parts_;
  std::vector<Leaf> leaves_;
  std::vector<OutputForm> outputs_;
  std::vector<bool> embedding_;
  std::vector<int8_t> tables_;
  std::vector<uint32_t> exact_mantissa_, mantissa_;
  std::vector<int32_t> exp2_;
  alignas(64) uint8_t exp2_bytes_[3][128];
  std::vector<uint64_t> breakpoints_;
  mutable std::mutex lock_;
  mutable std::map<const Kernels*, Layout> layouts_;
  Plan plan_{};
};

// The parts of declared stages, which Program has checked and chained: a stage is cut where x alone
// is read later, so that the weights and noise of one part stay in the cache for all tokens. Each
// part has a product, and its stage's registers; the state goes to the one part that uses it.
std::vector<Stage> parts_of(const std::vector<Stage>& stages);

}  // namespace eggroll
