#include "machine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#ifdef __APPLE__
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace eggroll {

int64_t cache_bytes() {
  int64_t bytes = 0;
#ifdef __APPLE__
  // Shared by a cluster of cores: the smallest share there has been.
  size_t size = sizeof bytes;
  if (sysctlbyname("hw.perflevel0.l2cachesize", &bytes, &size, nullptr, 0)) bytes = 0;
  bytes /= 6;
#elif defined(_SC_LEVEL2_CACHE_SIZE)
  bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  return bytes > 0 ? bytes : int64_t{1} << 19;
}

int default_threads() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

void parallel_for(int64_t items, int threads, Each each) {
  std::atomic<int64_t> next{0};
  std::mutex lock;
  std::exception_ptr failed;
  auto work = [&](int thread) {
    try {
      for (int64_t i = next++; i < items; i = next++) each.call(each.what, i, thread);
    } catch (...) {
      std::lock_guard<std::mutex> guard(lock);
      if (!failed) failed = std::current_exception();
      next = items;
    }
  };
  int64_t count = std::min<int64_t>(items, threads > 0 ? threads : default_threads());
  std::vector<std::thread> pool;
  try {
    pool.reserve(static_cast<size_t>(std::max<int64_t>(count, 1) - 1));
    for (int64_t i = 1; i < count; ++i) pool.emplace_back(work, static_cast<int>(i));
  } catch (const std::exception&) {
    // No more threads, or no memory for them: those that run, and this one, share the items.
  }
  work(0);
  for (std::thread& thread : pool) thread.join();
  if (failed) std::rethrow_exception(failed);
}

ScratchPool::ScratchPool(size_t bytes, int64_t items, int threads) : bytes_(bytes) {
  int64_t count = std::min<int64_t>(items, threads > 0 ? threads : default_threads());
  for (int64_t i = 0; i < count; ++i) {
    areas_.emplace_back(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
    if (!areas_.back()) throw std::bad_alloc();
  }
}

void ScratchPool::clear() const {
  for (const auto& area : areas_) std::memset(area.get(), 0, bytes_);
}

}  // namespace eggroll
