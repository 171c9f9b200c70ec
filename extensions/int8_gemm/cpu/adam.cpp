#include "adam.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "dispatch.h"
#include "machine.h"

namespace eggroll {

namespace {

constexpr int64_t kPart = 1 << 13;  // values that a thread takes at a time
constexpr int64_t kFew = 1 << 15;   // values that one thread is done with in 0.2 ms

template <typename T>
void copy(const T* from, T* to, int64_t first, int64_t count) {
  std::memcpy(to + first, from + first, static_cast<size_t>(count) * sizeof(T));
}

int64_t part(const Kernels& k, const AdamUpdate& leaf, int64_t first, int64_t factor) {
  const AdamLeaf& to = leaf.to;
  int64_t last = std::min(to.n, first + kPart), count = last - first;
  copy(leaf.weights, to.weights, first, count);
  copy(leaf.fine, to.fine, first, count);
  copy(leaf.mean, to.mean, first, count);
  copy(leaf.size, to.size, first, count);
  if (to.feedback) copy(leaf.feedback, to.feedback, first, count);
  return k.adam(to, first, last, factor, leaf.decay);
}

}  // namespace

int64_t adam(const std::vector<AdamUpdate>& leaves, int64_t factor, int threads) {
  std::vector<std::pair<const AdamUpdate*, int64_t>> parts;
  int64_t values = 0;
  for (const AdamUpdate& leaf : leaves) {
    values += leaf.to.n;
    for (int64_t first = 0; first < leaf.to.n; first += kPart) parts.emplace_back(&leaf, first);
  }
  const Kernels& k = kernels();
  std::atomic<int64_t> count{0};
  parallel_for(static_cast<int64_t>(parts.size()), values < kFew ? 1 : threads,
               [&](int64_t i, int) {
                 const auto& [leaf, first] = parts[static_cast<size_t>(i)];
                 count += part(k, *leaf, first, factor);
               });
  return count;
}

}  // namespace eggroll
