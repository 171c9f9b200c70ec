// The votes of all leaves, shared by threads. Independent of MLX.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "machine.h"
#include "plan.h"

namespace eggroll {

inline int64_t elements(const Leaf& l) {
  return static_cast<int64_t>(l.rows) * std::max(l.cols, 1);
}

// What must be allocated beforehand, and the work.
struct Count {
  const Kernels& k;
  std::vector<VoteJob> jobs;
  std::vector<int32_t*> z;
  int64_t pairs, parts;
  int threads;
  std::vector<size_t> order;  // of the leaves: big ones first
  std::shared_ptr<ScratchPool> pool, sums;
  std::shared_ptr<std::vector<std::mutex>> locks;

  Count(const Kernels& kernels, std::vector<VoteJob> votes, std::vector<int32_t*> out, int64_t n,
        int count)
      : k(kernels), jobs(std::move(votes)), z(std::move(out)), pairs(n), threads(count) {
    size_t bytes = 0;
    int64_t largest = 0;
    for (const VoteJob& job : jobs) {
      bytes = std::max(bytes, k.vote_bytes(job));
      largest = std::max(largest, elements(job.leaf));
    }
    parts = std::clamp<int64_t>(pairs / 1024, 1, threads > 0 ? threads : default_threads());
    int64_t items = static_cast<int64_t>(jobs.size()) * parts;
    pool = std::make_shared<ScratchPool>(bytes, items, threads);
    if (parts > 1)
      sums = std::make_shared<ScratchPool>(static_cast<size_t>(largest) * 4, items, threads);
    locks = std::make_shared<std::vector<std::mutex>>(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return elements(jobs[a].leaf) > elements(jobs[b].leaf); });
  }

  // Adds to z. Items are (leaf, part of the pairs), big leaves first; each of several parts adds up
  // in its own memory. Integers make the order of the additions irrelevant.
  void run() const {
    parallel_for(static_cast<int64_t>(jobs.size()) * parts, threads, [&](int64_t item, int thread) {
      size_t leaf = order[static_cast<size_t>(item / parts)];
      int64_t part = item % parts, n = elements(jobs[leaf].leaf);
      if (parts == 1) return k.vote(jobs[leaf], 0, pairs, z[leaf], pool->of(thread));
      int32_t* sum = static_cast<int32_t*>(sums->of(thread));
      std::memset(sum, 0, static_cast<size_t>(n) * sizeof(int32_t));
      k.vote(jobs[leaf], pairs * part / parts, pairs * (part + 1) / parts, sum, pool->of(thread));
      std::lock_guard<std::mutex> guard((*locks)[leaf]);
      add(z[leaf], sum, n);
    });
  }

  static void add(int32_t* to, const int32_t* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      to[i] = static_cast<int32_t>(static_cast<uint32_t>(to[i]) + static_cast<uint32_t>(from[i]));
  }
};

}  // namespace eggroll
