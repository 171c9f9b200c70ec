// Threads, scratch memory and caches of this machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace eggroll {

// Bytes of a core's second-level cache; half a MiB where the system does not tell.
int64_t cache_bytes();

// Cores this process may run on.
int default_threads();

// Runs (item, thread) for all items. Threads take the next item when done: no spinning, nothing
// kept alive.
void parallel_for(int64_t items, int threads, const std::function<void(int64_t, int)>& run);

// One scratch area per thread. Made where the caller can still be told that memory ran out, not
// among the threads that use it.
class ScratchPool {
 public:
  ScratchPool(size_t bytes, int64_t items, int threads);
  void* of(int thread) const { return areas_[static_cast<size_t>(thread)].get(); }
  int size() const { return static_cast<int>(areas_.size()); }
  void clear() const;

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  size_t bytes_;
  std::vector<std::unique_ptr<void, Free>> areas_;
};

}  // namespace eggroll
