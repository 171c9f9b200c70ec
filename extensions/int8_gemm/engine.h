// The CPU engine as MLX primitives.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "mlx/array.h"
#include "plan.h"

namespace eggroll {

namespace mx = mlx::core;

// (kind, out, inputs, leaf, table)
using OpSpec = std::tuple<int, int, std::vector<int>, int, int>;
// (operations, register sizes, state offset or -1)
using StageSpec = std::tuple<std::vector<OpSpec>, std::vector<int>, int>;
// (rows, cols), cols 0 for a vector
using LeafSpec = std::pair<int, int>;

// A declared program, checked once, with the layout of its packed weights.
class Program {
 public:
  Program(const std::vector<StageSpec>& stages, const std::vector<LeafSpec>& leaves, int width,
          int vocabulary, int state_size, const std::vector<std::vector<int>>& tables,
          const std::vector<int32_t>& exp2, const std::vector<uint64_t>& log2_breakpoints);

  const Plan& plan() const { return plan_; }

  // int8 leaves in declared order -> int8 [bytes] in the layout of plan.h's Leaf.
  mx::array pack(const std::vector<mx::array>& leaves) const;

 private:
  void check(const Op& op, const Stage& stage) const;

  std::vector<std::vector<Op>> ops_;
  std::vector<std::vector<int>> registers_;
  std::vector<Stage> stages_;
  std::vector<Leaf> leaves_;
  std::vector<bool> embedding_;
  std::vector<int8_t> tables_;
  std::vector<int32_t> exp2_;
  std::vector<uint32_t> mantissa_;
  std::vector<uint64_t> breakpoints_;
  int64_t packed_bytes_ = 0;
  Plan plan_{};
};

// Scores [P, T] int16, new state [P, state_size] int8 and, if asked, logits [P, T, V] int8.
std::vector<mx::array> evaluate(std::shared_ptr<Program> program, const mx::array& packed,
                                const mx::array& table, const std::optional<mx::array>& starts,
                                int rank, int shift, const mx::array& tokens,
                                const mx::array& targets, const mx::array& state, bool logits,
                                int threads);

// Z of every leaf, int32 in the leaf's shape.
std::vector<mx::array> votes(std::shared_ptr<Program> program, const mx::array& fitness,
                             const mx::array& table, const mx::array& starts, int rank, bool signs,
                             int threads);

// Multiply-adds per second of the instruction set's dot product on registers, all threads together.
double peak(int threads);

// Cores this process may run on.
int default_threads();

}  // namespace eggroll
