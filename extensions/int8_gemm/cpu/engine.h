// The CPU engine on arrays of MLX: what members score, the votes of their noise, credit, and random
// numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blocks.h"
#include "checks.h"
#include "crediting.h"
#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/ops.h"
#include "program.h"

namespace eggroll {

namespace mx = mlx::core;

// Bytes of its own that MLX's CPU allocator has before the data of a buffer, the same in every
// buffer; -1: buffers are of another kind.
inline ptrdiff_t header() {
  auto before = [] {
    mx::allocator::Data data = mx::allocator::malloc(64);
    mx::allocator::Buffer buffer = data.buffer();
    return static_cast<char*>(buffer.raw_ptr()) - static_cast<char*>(buffer.ptr());
  };
  static const ptrdiff_t first = before();
  static const bool same = first == before() && first >= 0 && first <= ptrdiff_t{Blocks::kBefore};
  return same ? first : -1;
}

// Memory of an array; of a large one a block, where MLX's allocator has a place for foreign memory.
inline mx::allocator::Data allocated(size_t bytes) {
  if (bytes >= Blocks::kLeast && header() >= 0) {
    char* data = static_cast<char*>(Blocks::all().take(bytes));
    if (!data) throw std::bad_alloc();
    char* begin = data - header();
    if (header() >= static_cast<ptrdiff_t>(sizeof bytes)) std::memcpy(begin, &bytes, sizeof bytes);
    return {mx::allocator::Buffer(begin),
            [data](mx::allocator::Buffer) { Blocks::all().give(data); }};
  }
  mx::allocator::Data data = mx::allocator::malloc(bytes);
  if (bytes && !data.buffer().ptr()) throw std::bad_alloc();  // MLX's answer where there is none
  return data;
}

// An array's values, computed and row by row.
inline mx::array ready(const mx::array& a, mx::Dtype dtype, const char* what) {
  require(a.dtype() == dtype, std::string(what) + ": wrong dtype");
  mx::array c = a;
  c.eval();
  if (c.flags().row_contiguous || !c.size()) return c;
  c = mx::contiguous(c, false, mx::Device(mx::Device::cpu));
  c.eval();
  return c;
}

inline mx::array made(mx::Shape shape, mx::Dtype dtype) {
  size_t count = 1;
  for (int n : shape) count *= static_cast<size_t>(n);
  return mx::array(allocated(count * dtype.size()), std::move(shape), dtype);
}

// Weights in the layout of one program and instruction set (plan.h's Leaf). They are reached
// through `place` alone: kernels trust every byte of them. A large leaf that lies in this layout
// already is kept as it is given: a copy would take as long as some rows do.
class Packed {
 public:
  // leaves: int8 in declared order. Throws std::invalid_argument for those that do not fit.
  Packed(std::shared_ptr<const Program> program, const std::vector<mx::array>& leaves);

  // Gives a job of this program and instruction set its weights and their leaves; throws
  // std::invalid_argument for another.
  void place(const Program& program, const Kernels& k, Job& job) const;

 private:
  std::shared_ptr<const Program> program_;  // kept, so that no other comes to lie where it does
  const Kernels* kernels_;
  mx::array memory_;
  std::vector<mx::array> given_;  // those that lie elsewhere
  std::vector<Leaf> leaves_;
  const int8_t* weights_;  // at a cache line
};

// The slices of noise.py's Slices; without starts, members are the unperturbed model.
struct Noise {
  mx::array table;
  std::optional<mx::array> starts;
  int rank, shift;
};

// What members are shown beside tokens: inputs int8 [P, T, n] and features int32 [P, T, n].
using Rows = std::pair<std::optional<mx::array>, std::optional<mx::array>>;

// All of these throw std::invalid_argument for what does not fit the program, and give the new
// state [P, state_size] int8 first. tokens, targets: [R, T], each row of which P / R members read.

// Then scores [P, T] int16.
std::vector<mx::array> evaluate(std::shared_ptr<Program> program, const Packed& packed,
                                const Noise& noise, const mx::array& tokens,
                                const mx::array& targets, const mx::array& state, const Rows& rows,
                                int threads, int block_tokens);

// Then every output, [P, T, size] int8 or int32. With crediting, members have its noise.
std::vector<mx::array> outputs(std::shared_ptr<Program> program, const Packed& packed,
                               const Noise& noise, const mx::array& tokens, const mx::array& state,
                               const Rows& rows, const std::optional<mx::array>& signs,
                               const std::optional<Crediting>& crediting, int threads,
                               int block_tokens);

// Of the unperturbed model: then logits [P, T, V] int8.
std::vector<mx::array> logits(std::shared_ptr<Program> program, const Packed& packed,
                              const mx::array& tokens, const mx::array& state, const Rows& rows,
                              int threads, int block_tokens);

// Of the unperturbed model: then totals [P, T] uint64 and hits [P, T] int8 (see plan.h).
std::vector<mx::array> likelihoods(std::shared_ptr<Program> program, const Packed& packed,
                                   const mx::array& tokens, const mx::array& targets,
                                   const mx::array& state, const Rows& rows, int threads,
                                   int block_tokens);

// Then scores [P, T] int16 and Z of every leaf by token credit; values: [N, T] int32.
std::vector<mx::array> credit(std::shared_ptr<Program> program, const Packed& packed,
                              const Noise& noise, const mx::array& signs, const mx::array& draws,
                              const Crediting& crediting, const mx::array& tokens,
                              const mx::array& targets, const mx::array& state, const Rows& rows,
                              const std::optional<mx::array>& values, int threads,
                              int block_tokens);

// A world as Python knows it: where the struct and what it is given lie in memory, and what it is
// played by.
struct Play {
  uint64_t world, shared;
  mx::array keys;  // uint64 [P]
  int rows;
  double by;  // from differences of what rows were worth to credit
};

// Members that meet a world: then int32 [P, rows], what their rows were worth, bool [P, rows],
// whether anything was at stake, and with crediting Z of every leaf. Done when it returns.
std::vector<mx::array> play(std::shared_ptr<Program> program, const Packed& packed,
                            const Noise& noise, const mx::array& state, const Play& play,
                            const std::optional<mx::array>& signs,
                            const std::optional<Crediting>& crediting, int threads);

// Targets of a program's outputs, and what makes errors of them.
struct Targets {
  std::vector<int> losses;  // [outputs], as Loss of plan.h
  mx::array values;         // int32 [P, T, those of all outputs side by side]
};

// Of members without noise that carry the errors of their scores back: then scores [P, T] int16,
// sums of |credit| [leaves] int64, and Z of every leaf. words: uint32 [P, T]; scales: of the
// leaves; back: the matrix [O, K] that a leaf's credit passes, or none. Of a program without a
// score scores are zeros, and errors int8 [P, T, all outputs side by side] are given, or made of
// targets: they come before Z, and after them what rows lost, uint64 [P, T, outputs]. index: int32
// [n], or none; with it features are spans of it, int32 [P, T, lists, 2]: begins and sizes of
// lists.
std::vector<mx::array> learn(std::shared_ptr<Program> program, const Packed& packed,
                             const mx::array& tokens, const mx::array& targets,
                             const mx::array& state, const Rows& rows,
                             const std::optional<mx::array>& index, const mx::array& words,
                             const std::vector<int>& scales,
                             const std::vector<std::optional<mx::array>>& back,
                             const std::optional<mx::array>& errors,
                             const std::optional<Targets>& of_outputs, int threads);

// Z of every leaf, int32 in the leaf's shape.
std::vector<mx::array> votes(std::shared_ptr<Program> program, const mx::array& fitness,
                             const mx::array& table, const mx::array& starts, int rank, bool signs,
                             int threads);

// Scores int16 [P, T] -> int8 [P/2], the sign of member 2i's sum less that of member 2i + 1.
mx::array pair_signs(const mx::array& scores);

// Of errors int8 and what rows lost, uint64 [.., outputs]: the sum of |errors|, and those of what
// rows lost by output, of their upper and of their lower 32 bits.
std::tuple<int64_t, std::vector<uint64_t>, std::vector<uint64_t>> rated_sums(
    const mx::array& errors, const mx::array& lost);

// A fine copy int32 -> int8, its upper half to the nearest whole number.
mx::array rounded(const mx::array& fine);

// Words of the counter-based generator, as eggroll/spec/rng.py defines them: int32 of this shape,
// its rows dealt to the streams in equal shares. Element i of a stream is floor(room x / 2^32),
// where x is the upper half of the stream's word at position first + i: a number below the room, or
// x itself with room 2^32. A stream of room 0 has zeros. is_unsigned: the same as uint32. Few
// numbers are drawn on one thread. Throws std::invalid_argument for a room beyond 2^32, or a shape
// that does not fit the streams.
mx::array draws(const std::vector<uint64_t>& streams, const std::vector<uint64_t>& rooms,
                uint64_t first, const std::vector<int>& shape, int threads, bool is_unsigned);

// Multiply-adds per second of the instruction set's dot product on registers, all threads together.
double peak(int threads);

}  // namespace eggroll
