#include "adam.h"

#include <algorithm>
#include <atomic>

#include "dispatch.h"
#include "machine.h"

namespace eggroll {

namespace {

constexpr int64_t kPart = 1 << 14;  // values that a thread takes at a time
constexpr int64_t kFew = 1 << 17;   // values that one thread is done with in half a millisecond

}  // namespace

int64_t adam(const AdamLeaf& leaf, int64_t factor, int64_t decay, int threads) {
  const Kernels& k = kernels();
  std::atomic<int64_t> count{0};
  parallel_for((leaf.n + kPart - 1) / kPart, leaf.n < kFew ? 1 : threads, [&](int64_t i, int) {
    count += k.adam(leaf, i * kPart, std::min(leaf.n, (i + 1) * kPart), factor, decay);
  });
  return count;
}

}  // namespace eggroll
