// Threads that sleep between calls. The caller takes parts like the others, so it never only waits,
// and a call that finds the pool busy does its parts alone: nothing spins.
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "scratch.h"

namespace float_kernels_impl {
namespace {

class Pool {
 public:
  void run(int threads, int parts, void (*part)(void*, int), void* context) {
    {
      std::lock_guard lock(mutex_);
      while (workers_ < threads - 1) {
        std::thread([this, i = workers_] { work(i); }).detach();
        ++workers_;
      }
      part_ = part, context_ = context, parts_ = parts, next_ = 0, done_ = 0;
      helpers_ = threads - 1 < parts - 1 ? threads - 1 : parts - 1;
      ++round_;
    }
    wake_.notify_all();
    std::unique_lock lock(mutex_);
    take_parts(lock);
    finished_.wait(lock, [this] { return done_ == parts_; });
    parts_ = 0;
  }

  std::mutex busy;  // held by the one call that uses the pool

 private:
  // A part is taken under the lock: a round has a handful of them, each of many microseconds.
  void take_parts(std::unique_lock<std::mutex>& lock) {
    while (next_ < parts_) {
      int mine = next_++;
      auto part = part_;
      void* context = context_;
      lock.unlock();
      part(context, mine);
      lock.lock();
      if (++done_ == parts_) finished_.notify_one();
    }
  }

  void work(int index) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      if (index < helpers_) take_parts(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  void (*part_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int workers_ = 0, helpers_ = 0, parts_ = 0, next_ = 0, done_ = 0;
  uint64_t round_ = 0;
};

// Never destroyed, as its threads sleep in it when the program ends; a forked child, which has no
// threads, gets a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* current = nullptr;
  static pid_t owner = 0;
  std::lock_guard lock(mutex);
  if (owner != getpid()) current = new Pool, owner = getpid();
  return *current;
}

}  // namespace

void in_parallel(int threads, int parts, void (*part)(void*, int), void* context) {
  if (threads > 1 && parts > 1) {
    Pool& shared = pool();
    std::unique_lock lock(shared.busy, std::try_to_lock);
    if (lock.owns_lock()) return shared.run(threads, parts, part, context);
  }
  for (int i = 0; i < parts; ++i) part(context, i);
}

}  // namespace float_kernels_impl
