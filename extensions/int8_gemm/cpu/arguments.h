// Arguments of the functions of engine.h, checked and made ready for the kernels: a part of
// engine.cpp.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "crediting.h"
#include "dispatch.h"
#include "engine.h"
#include "plan.h"
#include "program.h"

namespace eggroll {

namespace mx = mlx::core;

namespace {

// What an evaluation gives beside the new state.
enum class Output { scores, logits, likelihoods, outputs };

// The arrays of an evaluation: four that there always are, and where the others stand, or -1.
struct Arrays {
  const Packed& packed;
  std::vector<mx::array> in;  // table, tokens, targets, state
  int starts = -1, inputs = -1, features = -1, index = -1, signs = -1, draws = -1, values = -1;

  const mx::array& tokens() const { return in[1]; }
  const mx::array& state() const { return in[3]; }

  int add(const mx::array& a) {
    in.push_back(a);
    return static_cast<int>(in.size()) - 1;
  }

  template <typename T>
  const T* data(int at) const {
    return at < 0 ? nullptr : in[static_cast<size_t>(at)].data<T>();
  }
};

struct Options {
  int threads, block_tokens, rank, shift;
};

Job job_of(const Kernels& k, const Program& program, const Arrays& arrays, const Options& options) {
  const std::vector<mx::array>& in = arrays.in;
  Job job{};
  arrays.packed.place(program, k, job);
  job.noise = in[0].data<int8_t>();
  job.tokens = in[1].data<int32_t>();
  job.targets = in[2].data<int32_t>();
  job.state_in = in[3].data<int8_t>();
  job.starts = arrays.data<int32_t>(arrays.starts);
  job.inputs = arrays.data<int8_t>(arrays.inputs);
  job.features = arrays.data<int32_t>(arrays.features);
  job.signs = arrays.data<int32_t>(arrays.signs);
  job.draws = arrays.data<uint32_t>(arrays.draws);
  job.values = arrays.data<int32_t>(arrays.values);
  job.rank = options.rank;
  job.shift = options.shift;
  job.members = arrays.state().shape(0);
  job.readers = arrays.state().shape(0) / arrays.tokens().shape(0);
  job.tokens_per_member = arrays.tokens().shape(1);
  job.block_tokens = options.block_tokens;
  return job;
}

constexpr size_t kCacheLine = 64;      // bytes
constexpr int64_t kInPlace = 1 << 16;  // and those of a leaf that had better not be copied

// Room for packed weights, from `at_cache_line` on.
mx::array room_for_weights(size_t bytes) {
  bytes += kCacheLine;
  require(bytes < size_t{1} << 31, "pack: the network has too many weights");
  return mx::array(allocated(bytes), {static_cast<int>(bytes)}, mx::int8);
}

bool on_cache_line(const int8_t* at) { return reinterpret_cast<uintptr_t>(at) % kCacheLine == 0; }

int8_t* at_cache_line(mx::array& room) {
  int8_t* at = room.data<int8_t>();
  return at + (kCacheLine - reinterpret_cast<uintptr_t>(at) % kCacheLine) % kCacheLine;
}

mx::Shape shape_of(const Leaf& l) { return l.cols ? mx::Shape{l.rows, l.cols} : mx::Shape{l.rows}; }

// Of members without noise. Its table is there already: what MLX has yet to compute goes through a
// thread of its own, which takes longer than a small network's rows.
Noise no_noise() { return {made({1}, mx::int8), std::nullopt, 1, 0}; }

// Where a member's recurrent state begins; no register ever holds -128.
mx::array ready_state(const mx::array& state, int members, const Plan& plan) {
  require(state.shape() == mx::Shape{members, plan.state_size},
          "state: int8 [P, state_size] is needed");
  mx::array ours = ready(state, mx::int8, "state");
  require(!ours.size() || !std::memchr(ours.data<int8_t>(), 0x80, ours.size()),
          "state: a value is -128; -127..127 are allowed");
  return ours;
}

// What would be made must be an array of MLX.
void check_size(const mx::Shape& shape) {
  int64_t size = 1;
  bool fits = true;
  for (int n : shape) fits &= !__builtin_mul_overflow(size, int64_t{n}, &size);
  std::string given = "[";
  for (int n : shape) given += (given.size() > 1 ? ", " : "") + std::to_string(n);
  require(fits && size < int64_t{1} << 31,
          given +
              "] is too large a result: an array holds fewer than 2^31 values, so give fewer "
              "members or rows at a time");
}

// Whether all numbers are in low..high, which are less than 2^31 apart: by signs of differences,
// for the vectoriser of every processor.
bool all_within(const int32_t* v, int64_t count, int32_t low, int32_t high) {
  const uint32_t first = static_cast<uint32_t>(low), last = static_cast<uint32_t>(high) - first;
  uint32_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t from = static_cast<uint32_t>(v[i]) - first;
    outside |= from | (last - from);
  }
  return outside >> 31 == 0;
}

void check_range(const mx::array& a, int32_t low, int32_t high, const char* what) {
  require(all_within(a.data<int32_t>(), static_cast<int64_t>(a.size()), low, high),
          std::string(what) + " must be in " + std::to_string(low) + ".." + std::to_string(high));
}

// Every slice must lie in the table.
void check_starts(const Plan& plan, const mx::array& starts, const mx::array& table, int rank,
                  int64_t pairs) {
  in_range("rank", rank, 1, kRank);
  require(starts.ndim() == 2 && starts.shape(0) == plan.leaf_count && starts.shape(1) == pairs,
          "starts: [leaves, pairs] is needed");
  const int32_t* v = starts.data<int32_t>();
  for (int i = 0; i < plan.leaf_count; ++i, v += pairs) {
    const int64_t last = static_cast<int64_t>(table.size()) - slice_bytes(plan.leaves[i], rank);
    require(!pairs || (last >= 0 && all_within(v, pairs, 0, static_cast<int32_t>(last))),
            "a noise slice reaches beyond the table");
  }
}

std::string text(const mx::Shape& shape) {
  std::string out;
  for (int n : shape) out += (out.empty() ? "[" : ", ") + std::to_string(n);
  return out + "]";
}

// What the members are shown, which the program reads.
mx::array shown(const std::optional<mx::array>& given, mx::Dtype dtype, const mx::Shape& shape,
                const char* what) {
  std::string needed = std::string("The program reads ") + what + ": " +
                       (dtype == mx::int8 ? "int8 " : "int32 ") + text(shape) + " is needed";
  require(given.has_value(), needed + ", and rows has none.");
  require(given->dtype() == dtype, needed + ", and rows has another dtype.");
  require(given->shape() == shape, needed + ", not " + text(given->shape()) + ".");
  return ready(*given, dtype, what);
}

// Every index must be a row of its leaf, or -1.
void check_features(const Plan& plan, const Op& op, const mx::array& features) {
  const int32_t* row = features.data<int32_t>() + op.first;
  const int32_t last = plan.leaves[op.leaf].rows - 1;
  int count = op.lists * op.active;
  const auto most = static_cast<uint32_t>(last);
  uint32_t bad = 0;  // a sign where a number is below -1 or beyond the last row
  for (size_t i = 0; i < features.size(); i += static_cast<size_t>(plan.indices)) {
    for (int j = 0; j < count; ++j) {
      const auto index = static_cast<uint32_t>(row[j]);
      bad |= (index + 1) | (most - index);
    }
    row += plan.indices;
  }
  require(!(bad >> 31), "features " + std::to_string(op.first) + ".." +
                            std::to_string(op.first + count - 1) + " of a row must be in 0.." +
                            std::to_string(last) + ", or -1 for none");
}

// Every list must lie in the index, and be no longer than its operation lets it be.
void check_spans(const Plan& plan, const mx::array& spans, int64_t size) {
  const int32_t* span = spans.data<int32_t>();
  std::vector<int32_t> most;  // of every list of a row
  each_features(plan, [&](const Op& op) {
    most.insert(most.end(), static_cast<size_t>(op.lists), op.active);
  });
  int64_t bad = 0;  // a sign
  for (size_t i = 0; i < spans.size(); i += 2 * most.size())
    for (const int32_t longest : most) {
      bad |= span[0] | span[1] | (longest - int64_t{span[1]}) | (size - span[0] - span[1]);
      span += 2;
    }
  require(bad >= 0,
          "features: a list is longer than its program says, or reaches beyond its "
          "index");
}

// index: whose spans the features are, or none.
void add_rows(const Plan& plan, const Rows& rows, const std::optional<mx::array>& index,
              Arrays& arrays) {
  int members = arrays.state().shape(0), count = arrays.tokens().shape(1);
  if (plan.inputs)
    arrays.inputs =
        arrays.add(shown(rows.first, mx::int8, {members, count, plan.inputs}, "inputs"));
  if (!plan.indices) return;
  if (index) {
    const int spans = 2 * lists_of(plan);
    arrays.features = arrays.add(shown(rows.second, mx::int32, {members, count, spans}, "spans"));
    require(index->ndim() == 1, "index: int32 [n] is needed");
    arrays.index = arrays.add(ready(*index, mx::int32, "index"));
    return check_spans(plan, arrays.in[static_cast<size_t>(arrays.features)],
                       static_cast<int64_t>(index->size()));
  }
  mx::array features = shown(rows.second, mx::int32, {members, count, plan.indices}, "features");
  each_features(plan, [&](const Op& op) { check_features(plan, op, features); });
  arrays.features = arrays.add(features);
}

void check_scored(const Plan& plan) {
  require(plan.scored, "The program has no score: `outputs` gives what it puts out.");
}

void check_fits(const Plan& plan, const eggroll_world* world) {
  require(!plan.scored && !plan.indices && plan.inputs && plan.output_count,
          "play: a program with an input and an output is needed, without score or features");
  for (int s = 0; s < plan.stage_count; ++s)
    for (int j = 0; j < plan.stages[s].op_count; ++j)
      require(plan.stages[s].ops[j].kind != OpKind::embed, "play: a world shows no tokens");
  require(world->inputs == plan.inputs && world->outputs == plan.outputs[0].size,
          "play: the world has other inputs or outputs than the program");
}

// What every evaluation is given, checked.
Arrays arrays_of(const Program& program, const Packed& packed, const Noise& noise,
                 const mx::array& tokens, const mx::array& targets, const mx::array& state,
                 const Rows& rows, const Options& options,
                 const std::optional<mx::array>& index = std::nullopt) {
  const Plan& plan = program.plan();
  require(tokens.ndim() == 2 && tokens.size() && tokens.shape() == targets.shape(),
          "tokens, targets: [R, T] of at least one reader and one row are needed");
  require(state.ndim() == 2, "state: int8 [P, state_size] is needed");
  const int members = state.shape(0), rows_read = tokens.shape(0);
  require(members >= rows_read && members % rows_read == 0,
          "tokens: " + std::to_string(rows_read) + " rows do not divide the " +
              std::to_string(members) + " members of state");
  check_threads(options.threads);
  in_range("shift", options.shift, 0, 31);
  in_range("rank", options.rank, 1, kRank);
  require(options.block_tokens >= 1, "block_tokens must be 1 or more");
  Arrays arrays{packed,
                {ready(noise.table, mx::int8, "table"), ready(tokens, mx::int32, "tokens"),
                 ready(targets, mx::int32, "targets"), ready_state(state, members, plan)}};
  check_range(arrays.in[1], 0, plan.vocabulary - 1, "tokens");
  if (targets.id() != tokens.id()) check_range(arrays.in[2], 0, plan.vocabulary - 1, "targets");
  if (noise.starts) {
    require(members % 2 == 0, "a population is made of pairs: P must be even");
    arrays.starts = arrays.add(ready(*noise.starts, mx::int32, "starts"));
    check_starts(plan, arrays.in.back(), arrays.in[0], options.rank, members / 2);
  }
  add_rows(plan, rows, index, arrays);
  return arrays;
}

void add_signs(const Plan& plan, const mx::array& signs, Arrays& arrays) {
  int members = arrays.state().shape(0), count = arrays.tokens().shape(1);
  require(signs.shape() == mx::Shape{plan.leaf_count, members / 2, (count + 31) / 32},
          "signs: [leaves, pairs, ceil(T / 32)] is needed");
  arrays.signs = arrays.add(ready(signs, mx::int32, "signs"));
}

}  // namespace

}  // namespace eggroll
