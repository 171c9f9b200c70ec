// The votes of all leaves, shared by threads. Independent of MLX.
#pragma once

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include "machine.h"
#include "plan.h"

namespace eggroll {

inline int64_t elements(const Leaf& l) {
  return static_cast<int64_t>(l.rows) * std::max(l.cols, 1);
}

inline void add_votes(int32_t* to, const int32_t* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = static_cast<int32_t>(static_cast<uint32_t>(to[i]) + static_cast<uint32_t>(from[i]));
}

// Counts the votes of all pairs into z. Items are (leaf, part of the pairs), big leaves first; each
// of several parts adds up in its own memory. Integers make the order of the additions irrelevant.
inline void count_votes(const Kernels& k, const std::vector<VoteJob>& jobs,
                        const std::vector<int32_t*>& z, int64_t pairs, int threads) {
  size_t bytes = 0, largest = 0;
  for (const VoteJob& job : jobs) {
    bytes = std::max(bytes, k.vote_bytes(job));
    largest = std::max(largest, static_cast<size_t>(elements(job.leaf)));
  }
  const int64_t parts =
      std::clamp<int64_t>(pairs / 1024, 1, threads > 0 ? threads : default_threads());
  const int64_t items = static_cast<int64_t>(jobs.size()) * parts;
  const ScratchPool pool(bytes, items, threads);
  const ScratchPool sums(largest * sizeof(int32_t), parts > 1 ? items : 0, threads);
  struct Sum {
    std::mutex lock;
    bool begun = false;
  };
  std::vector<Sum> of(jobs.size());
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return elements(jobs[a].leaf) > elements(jobs[b].leaf); });
  parallel_for(items, threads, [&](int64_t item, int thread) {
    const size_t leaf = order[static_cast<size_t>(item / parts)];
    const int64_t part = item % parts, n = elements(jobs[leaf].leaf);
    const size_t bytes = static_cast<size_t>(n) * sizeof(int32_t);
    int32_t* sum = parts == 1 ? z[leaf] : static_cast<int32_t*>(sums.of(thread));
    std::memset(sum, 0, bytes);
    k.vote(jobs[leaf], pairs * part / parts, pairs * (part + 1) / parts, sum, pool.of(thread));
    if (parts == 1) return;
    std::lock_guard<std::mutex> guard(of[leaf].lock);
    if (of[leaf].begun)
      add_votes(z[leaf], sum, n);
    else
      std::memcpy(z[leaf], sum, bytes);
    of[leaf].begun = true;
  });
}

}  // namespace eggroll
