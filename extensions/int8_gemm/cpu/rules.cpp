#include "rules.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "dispatch.h"
#include "machine.h"

namespace eggroll {

namespace {

constexpr int64_t kPart = 1 << 13;  // values that a thread takes at a time

// Adds up what `part` (leaf, first, last + 1) returns for all values. Up to `few` of them one
// thread is done with sooner than another wakes.
template <typename Leaf, typename Part>
int64_t sum_of_parts(const std::vector<Leaf>& leaves, int64_t few, int threads, const Part& part) {
  std::vector<std::pair<const Leaf*, int64_t>> parts;
  int64_t values = 0;
  for (const Leaf& leaf : leaves) {
    values += leaf.n;
    for (int64_t first = 0; first < leaf.n; first += kPart) parts.emplace_back(&leaf, first);
  }
  std::atomic<int64_t> sum{0};
  parallel_for(static_cast<int64_t>(parts.size()), values < few ? 1 : threads, [&](int64_t i, int) {
    const auto& [leaf, first] = parts[static_cast<size_t>(i)];
    sum += part(*leaf, first, std::min(leaf->n, first + kPart));
  });
  return sum;
}

// Whether what is written of a leaf would not be in a cache any more when the next update reads it:
// where what is read and written of it is an eighth of the third one. With 480 MiB of that 1.3
// million values had better stay, and 10.6 million not. From kMost on, which tests have, always.
bool passes_caches(const AdamLeaf& leaf) {
  constexpr int64_t kLeast = 1 << 20, kMost = 1 << 22, kBytes = 36, kShare = 8;
  return leaf.n >= std::clamp(third_cache_bytes() / (kShare * kBytes), kLeast, kMost);
}

}  // namespace

int64_t adam(const std::vector<AdamLeaf>& leaves, int64_t factor, int threads) {
  const auto part = kernels().adam;
  return sum_of_parts(leaves, 1 << 15, threads,
                      [&](const AdamLeaf& leaf, int64_t first, int64_t last) {
                        return part(leaf, first, last, factor, passes_caches(leaf));
                      });
}

int64_t add_votes(const std::vector<MasterLeaf>& leaves, int threads) {
  return sum_of_parts(leaves, 1 << 16, threads, kernels().master);
}

int64_t move_by_sign(const std::vector<SignLeaf>& leaves, int threads) {
  return sum_of_parts(leaves, 1 << 18, threads, kernels().sign);
}

int64_t whiten(const std::vector<WhitenedLeaf>& leaves, int threads) {
  struct Part {
    size_t leaf;
    int64_t first;  // row, or block of inputs
  };
  std::vector<Part> rows, blocks;
  int64_t widest = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const WhitenedLeaf& leaf = leaves[i];
    widest = std::max(widest, leaf.inputs);
    for (int64_t row = 0; row < leaf.outputs; row += kWhitenedRows) rows.push_back({i, row});
    for (int64_t at = 0; leaf.after && at < leaf.inputs; at += leaf.size)
      blocks.push_back({i, at / leaf.size});
  }
  const Kernels& by = kernels();
  const int64_t most = static_cast<int64_t>(std::max(rows.size(), blocks.size()));
  const ScratchPool pool(
      kWhiteningRoom + sizeof(int16_t) * 2 * kWhitenedRows * static_cast<size_t>(widest), most,
      threads);
  std::vector<std::atomic<int64_t>> squares(leaves.size());
  std::atomic<int64_t> moved{0};
  parallel_for(static_cast<int64_t>(rows.size()), pool.size(), [&](int64_t i, int thread) {
    const auto& [at, first] = rows[static_cast<size_t>(i)];
    const WhitenedLeaf& leaf = leaves[at];
    int64_t sum = 0;
    moved += by.whiten(leaf, first, std::min(leaf.outputs, first + kWhitenedRows), &sum,
                       pool.of(thread));
    squares[at] += sum;
  });
  parallel_for(static_cast<int64_t>(blocks.size()), pool.size(), [&](int64_t i, int thread) {
    const auto& [at, block] = blocks[static_cast<size_t>(i)];
    const int64_t mean = squares[at] / (256 * leaves[at].inputs);
    by.next_whitening(leaves[at], block, static_cast<double>(mean), pool.of(thread));
  });
  return moved;
}

}  // namespace eggroll
