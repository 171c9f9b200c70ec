// The CPU engine as MLX primitives.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "crediting.h"
#include "mlx/array.h"
#include "program.h"

namespace eggroll {

namespace mx = mlx::core;

// int8 leaves in declared order -> int8 [bytes] in the layout of plan.h's Leaf.
mx::array pack(const Program& program, const std::vector<mx::array>& leaves);

// Scores [P, T] int16 and new state [P, state_size] int8.
std::vector<mx::array> evaluate(std::shared_ptr<Program> program, const mx::array& packed,
                                const mx::array& table, const std::optional<mx::array>& starts,
                                int rank, int shift, const mx::array& tokens,
                                const mx::array& targets, const mx::array& state, int threads,
                                int block_tokens);

// Of the unperturbed model: logits [P, T, V] int8 and new state.
std::vector<mx::array> logits(std::shared_ptr<Program> program, const mx::array& packed,
                              const mx::array& tokens, const mx::array& state, int threads,
                              int block_tokens);

// Of the unperturbed model: totals [P, T] uint64, new state and hits [P, T] int8 (see plan.h).
std::vector<mx::array> likelihoods(std::shared_ptr<Program> program, const mx::array& packed,
                                   const mx::array& tokens, const mx::array& targets,
                                   const mx::array& state, int threads, int block_tokens);

// Scores and state as `evaluate`, then Z of every leaf by token credit.
std::vector<mx::array> credit(std::shared_ptr<Program> program, const mx::array& packed,
                              const mx::array& table, const mx::array& starts, int shift,
                              const mx::array& signs, const mx::array& draws,
                              const Crediting& crediting, const mx::array& tokens,
                              const mx::array& targets, const mx::array& state, int threads,
                              int block_tokens);

// Z of every leaf, int32 in the leaf's shape.
std::vector<mx::array> votes(std::shared_ptr<Program> program, const mx::array& fitness,
                             const mx::array& table, const mx::array& starts, int rank, bool signs,
                             int threads);

// Multiply-adds per second of the instruction set's dot product on registers, all threads together.
double peak(int threads);

}  // namespace eggroll
