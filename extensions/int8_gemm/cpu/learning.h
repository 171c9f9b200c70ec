// The work of members that carry their errors back, see learn.h. A part of engine.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arguments.h"
#include "count.h"
#include "machine.h"

namespace eggroll {

namespace {

// Where the matrices that pass credit stand among the arrays, or -1.
std::vector<int> matrices_of(const Plan& plan, const std::vector<int>& scales,
                             const std::vector<std::optional<mx::array>>& back, Arrays& arrays) {
  size_t leaves = static_cast<size_t>(plan.leaf_count);
  require(scales.size() == leaves && back.size() == leaves, "a scale and a matrix for every leaf");
  std::vector<int> at(leaves, -1);
  for (size_t i = 0; i < leaves; ++i) {
    require(scales[i] >= 0 && scales[i] <= 16, "a scale must be in 0..16");
    if (!back[i]) continue;
    require(plan.leaves[i].cols && back[i]->shape() == shape_of(plan.leaves[i]),
            "a matrix that passes credit has its leaf's shape");
    at[i] = arrays.add(ready(*back[i], mx::int8, "matrices"));
    require(!std::memchr(arrays.in.back().data<int8_t>(), 0x80, back[i]->size()),
            "a matrix has -128; -127..127 are allowed");
  }
  return at;
}

// Values of a row's errors: those of all outputs.
int errors_size(const Plan& plan) {
  int size = 0;
  for (int i = 0; i < plan.output_count; ++i) size += plan.outputs[i].size;
  return size;
}

// Where the caller's errors stand among the arrays.
int add_errors(const Plan& plan, const mx::array& errors, Arrays& arrays) {
  require(!plan.scored, "errors: a program with a score has its own");
  require(errors.shape() ==
              mx::Shape{arrays.state().shape(0), arrays.tokens().shape(1), errors_size(plan)},
          "errors: int8 [P, T, values of all outputs] is needed");
  const int at = arrays.add(ready(errors, mx::int8, "errors"));
  require(!errors.size() || !std::memchr(arrays.in.back().data<int8_t>(), 0x80, errors.size()),
          "errors: a value is -128; -127..127 are allowed");
  return at;
}

// What is needed to make errors of targets, and what is made.
struct RatingWork {
  Rating rating{};
  std::vector<mx::array> outputs;  // and behind them the targets
  std::vector<void*> values;       // of the outputs
  std::vector<Loss> losses;
  std::vector<int32_t> divisors;
  Sigmoids sigmoids;

  void prepare(const Plan& plan, const Targets& given, LearnJob& job, std::vector<mx::array>& out) {
    const int members = static_cast<int>(job.job.members), count = job.job.tokens_per_member;
    require(!plan.scored, "targets: a program with a score has its own");
    require(given.losses.size() == static_cast<size_t>(plan.output_count), "one loss per output");
    for (int o = 0; o < plan.output_count; ++o) {
      const auto [n, wide] = plan.outputs[o];
      const int loss = given.losses[static_cast<size_t>(o)];
      in_range("a loss", loss, 0, static_cast<int64_t>(Loss::sigmoid));
      losses.push_back(static_cast<Loss>(loss));
      outputs.push_back(made({members, count, n}, wide ? mx::int32 : mx::int8));
      values.push_back(outputs.back().data<void>());
      rating.targets_size += loss == 0 ? 0 : losses.back() == Loss::softmax ? 1 : n;
    }
    require(given.values.shape() == mx::Shape{members, count, rating.targets_size},
            "targets: int32 [P, T, those of all losses] is needed");
    outputs.push_back(ready(given.values, mx::int32, "targets"));
    find_divisors(plan);
    if (std::ranges::count(losses, Loss::sigmoid)) kernels().sigmoids(plan, sigmoids);
    rating.sigmoids = &sigmoids;
    rating.targets = outputs.back().data<int32_t>();
    check_targets(plan, int64_t{members} * count);
    out.push_back(made({members, count, job.errors_size}, mx::int8));
    rating.errors = out.back().data<int8_t>();
    out.push_back(made({members, count, plan.output_count}, mx::uint64));
    rating.lost = out.back().data<uint64_t>();
    rating.losses = losses.data(), rating.divisors = divisors.data();
    job.errors = rating.errors, job.rating = &rating, job.job.outputs = values.data();
  }

 private:
  // Those of a linear operation of as many inputs.
  void find_divisors(const Plan& plan) {
    divisors.assign(losses.size(), 1);
    for (int s = 0; s < plan.stage_count; ++s)
      for (int j = 0; j < plan.stages[s].op_count; ++j) {
        const Op& op = plan.stages[s].ops[j];
        if (op.kind != OpKind::sums) continue;
        int root = 1;
        while ((root + 1) * (root + 1) <= plan.leaves[op.leaf].cols) ++root;
        divisors[static_cast<size_t>(op.place)] = 16 * root;
      }
  }

  void check_targets(const Plan& plan, int64_t rows) const {
    constexpr int32_t kWidest = 1 << 24;
    const int64_t step = rating.targets_size;
    const int32_t* at = rating.targets;
    bool ok = true;
    for (int o = 0; o < plan.output_count; ++o) {
      const Loss loss = losses[static_cast<size_t>(o)];
      const int32_t n = plan.outputs[o].size;
      const int32_t most = loss == Loss::softmax ? n - 1 : loss == Loss::sigmoid ? 127 : kWidest;
      const int32_t least = loss == Loss::squared ? -kWidest : -1;
      const int64_t count = loss == Loss::none ? 0 : loss == Loss::softmax ? 1 : n;
      if (count == step) ok &= all_within(at, rows * count, least, most);  // of all rows at once
      for (int64_t row = 0; count != step && row < rows; ++row)
        ok &= all_within(at + row * step, count, least, most);
      at += count;
    }
    require(ok, "targets: a value is out of its loss's range");
  }
};

// A run of all blocks: every thread adds up votes and sizes of its own.
struct LearnWork {
  LearnJob job{};
  std::vector<const int8_t*> matrices;  // [leaves], or null
  std::vector<int32_t*> z;
  int64_t* sizes = nullptr;

  static constexpr int64_t kFew = 1 << 20;     // weights that one thread packs in a millisecond
  static constexpr int64_t kAdded = 1 << 14;   // votes added up at a time
  static constexpr int64_t kListed = 1 << 22;  // bytes that lists of a group give

  // Takes all memory that `run` needs.
  void prepare(const Kernels& kernels, int count) {
    const Plan& plan = job.job.plan;
    size_t leaves = static_cast<size_t>(plan.leaf_count);
    k = &kernels, threads = count;
    const int64_t blocks = (job.job.members + kLanes - 1) / kLanes;
    job.blocks = group_of(blocks);
    groups = (blocks + job.blocks - 1) / job.blocks;
    back.assign(leaves, nullptr);
    std::vector<size_t> at(leaves + 1);  // where a leaf's votes begin in `sums`
    for (size_t i = 0; i < leaves; ++i) {
      const Leaf& leaf = plan.leaves[i];
      if (matrices[i]) {
        const size_t bytes = k->back_bytes(leaf.rows, leaf.cols);
        packed.push_back(room_for_weights(bytes));
        back[i] = at_cache_line(packed.back());
        std::memset(back[i], 0, bytes);
      }
      at[i + 1] = at[i] + static_cast<size_t>(elements(leaf)) * sizeof(int32_t);
    }
    job.back = back.data();
    scratch = std::make_unique<ScratchPool>(k->learn_bytes(job), groups, threads);
    const int64_t others = scratch->size() - 1;
    sums = std::make_unique<ScratchPool>(at[leaves], others, static_cast<int>(others));
    own_z.assign(1, z);
    for (int t = 0; t < others; ++t) {
      own_z.emplace_back();
      for (size_t j = 0; j < leaves; ++j)
        own_z.back().push_back(reinterpret_cast<int32_t*>(static_cast<char*>(sums->of(t)) + at[j]));
    }
    for (size_t j = 0; others && j < leaves; ++j)
      for (int64_t first = 0; first < elements(leaf(j)); first += kAdded)
        parts.emplace_back(j, first);
    own_sizes.assign(own_z.size(), std::vector<int64_t>(leaves));
    begun.assign(own_z.size(), false);
  }

  void run() {
    const Plan& plan = job.job.plan;
    parallel_for(plan.leaf_count, weights() < kFew ? 1 : threads, [&](int64_t i, int) {
      size_t leaf = static_cast<size_t>(i);
      const auto [rows, cols, offset] = plan.leaves[i];
      if (matrices[leaf]) k->pack_back(matrices[leaf], rows, cols, back[leaf]);
    });
    std::atomic<bool> ok{true};
    parallel_for(groups, threads, [&](int64_t i, int thread) {
      const size_t t = static_cast<size_t>(thread);
      if (!begun[t]) clear(t);
      LearnJob own = job;
      own.z = own_z[t].data();
      own.sizes = own_sizes[t].data();
      if (!k->learn(own, i, scratch->of(thread))) ok = false;
    });
    require(ok, "features: an index is not that of a row of its leaf");
    if (!begun[0]) clear(0);
    add_up();
  }

 private:
  const Kernels* k = nullptr;
  int threads = 0;
  int64_t groups = 0;
  std::vector<mx::array> packed;  // the matrices of those leaves that have one
  std::vector<int8_t*> back;      // [leaves]: the same, or null
  std::unique_ptr<ScratchPool> scratch, sums;
  std::vector<std::vector<int32_t*>> own_z;     // [threads][leaves]: `z`, and the others' in `sums`
  std::vector<std::vector<int64_t>> own_sizes;  // [threads][leaves]
  std::vector<std::pair<size_t, int64_t>> parts;  // to add up: a leaf and its first vote
  std::vector<char> begun;  // [threads]: whether its votes and sizes are cleared

  // Blocks whose lists of features are gone through at once: an equal part of a thread's, but not
  // so many that what lists give takes much memory.
  int group_of(int64_t blocks) const {
    const Plan& plan = job.job.plan;
    int64_t values = 0;  // that lists give to a row
    each_features(plan,
                  [&](const Op& op) { values += int64_t{op.lists} * plan.leaves[op.leaf].cols; });
    if (!values) return 1;
    const int64_t block = values * kLanes * job.job.tokens_per_member;
    const int64_t count = threads > 0 ? threads : default_threads(),
                  each = (blocks + count - 1) / count;
    const int64_t parts = (each * block + kListed - 1) / kListed;
    return static_cast<int>((each + parts - 1) / parts);
  }

  int64_t weights() const {
    int64_t n = 0;
    for (int i = 0; i < job.job.plan.leaf_count; ++i) n += elements(job.job.plan.leaves[i]);
    return n;
  }

  void clear(size_t thread) {
    begun[thread] = true;
    for (size_t j = 0; j < z.size(); ++j)
      std::memset(own_z[thread][j], 0, static_cast<size_t>(elements(leaf(j))) * sizeof(int32_t));
  }

  const Leaf& leaf(size_t j) const { return job.job.plan.leaves[j]; }

  // The others' votes to those of the first thread, some at a time.
  void add_up() const {
    const int64_t count = static_cast<int64_t>(parts.size());
    parallel_for(count, weights() < kFew ? 1 : threads, [&](int64_t i, int) {
      const auto [j, first] = parts[static_cast<size_t>(i)];
      for (size_t t = 1; t < own_z.size(); ++t)
        if (begun[t])
          add_votes(z[j] + first, own_z[t][j] + first, std::min(kAdded, elements(leaf(j)) - first));
    });
    for (size_t j = 0; j < z.size(); ++j) {
      sizes[j] = 0;
      for (const auto& own : own_sizes) sizes[j] += own[j];
    }
  }
};

}  // namespace

}  // namespace eggroll
