// Threads, scratch memory and caches of this machine, and what a process says at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace eggroll {

// Bytes of a core's second-level cache; half a MiB where the system does not tell.
int64_t cache_bytes();

// Bytes of the third-level cache; 0 where the system does not tell.
int64_t third_cache_bytes();

// Cores this process may run on.
int default_threads();

// A call of (item, thread) on what outlives it. Needs no memory, unlike std::function.
struct Each {
  const void* what;
  void (*call)(const void* what, int64_t item, int thread);
};

void parallel_for(int64_t items, int threads, Each each);

// Runs (item, thread) for all items. Threads take the next item when done. Those besides the caller
// sleep between calls, as starting one costs a small network's update more than waking it; where
// there is a core for each, they look for the next call for 200 microseconds before they sleep, as
// waking one costs more than that update's work between calls, and yield to other processes. Where
// no more threads can be had, or others' calls have them, fewer do the work. Throws what `run`
// throws, once nobody is at work.
template <typename Run>
void parallel_for(int64_t items, int threads, const Run& run) {
  parallel_for(items, threads, Each{&run, [](const void* what, int64_t item, int thread) {
                                      (*static_cast<const Run*>(what))(item, thread);
                                    }});
}

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

// From now on a segmentation fault, an abort, an exception that nobody takes and a library's call
// of exit() end the process with this sentence and exit code 2; empty: as ever. For processes whose
// address space is limited: where malloc answers null there, libraries beneath do any of these.
void last_words(const std::string& sentence);

}  // namespace eggroll
