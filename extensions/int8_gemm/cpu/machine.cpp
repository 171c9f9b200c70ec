#include "machine.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#ifdef __APPLE__
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
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

int64_t third_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  // Asked once: a virtual machine takes microseconds to answer.
  static const int64_t bytes = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
  return bytes;
#else
  return 0;
#endif
}

int default_threads() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

namespace {

// How long a thread looks for what it waits for before it sleeps. In a virtual machine some 100
// microseconds pass until it is awake; from one call of an update to the next Python takes as many.
constexpr std::chrono::microseconds kLook{200};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // as `yield` takes no time there
#endif
}

// Waits until `come()`, or as long as it is worth while; whoever asked looks again.
template <typename Come>
void look_for(const Come& come) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point end = Clock::now() + kLook; Clock::now() < end;) {
    for (int i = 0; i < 8; ++i, relax())
      if (come()) return;
    std::this_thread::yield();  // to other processes' threads
  }
}

// One call of parallel_for. It lives on its caller's stack, until nobody works at it.
struct Call {
  Each each;
  int64_t items;
  int seats;  // threads of the pool that may still join
  std::atomic<int64_t> next{0};
  int joined = 0;               // under the pool's lock, as are the seats
  std::atomic<int> at_work{0};  // changed under it
  const bool looks =
      seats && seats < default_threads();  // else a thread that looks takes another's core
  std::atomic<Call*> behind{nullptr};
  std::exception_ptr failed{};
  std::mutex failing{};
  std::condition_variable left{};

  void work(int thread) {
    try {
      for (int64_t i = next++; i < items; i = next++) each.call(each.what, i, thread);
    } catch (...) {
      std::lock_guard<std::mutex> guard(failing);
      if (!failed) failed = std::current_exception();
      next = items;
    }
  }
};

// Threads that sleep between calls, unless the next one comes soon. Each takes a seat at the call
// that was posted last, so calls of several threads, and calls within calls, share them; a call
// whose caller has done everything waits for nobody who has not begun.
class Pool {
 public:
  void run(Call& call) {
    {
      std::lock_guard<std::mutex> guard(lock_);
      add_workers(call.seats);
      call.behind = open_.load(), open_ = &call;
    }
    for (int i = 0; i < call.seats; ++i) wake_.notify_one();
    call.work(0);
    std::unique_lock<std::mutex> guard(lock_);
    close(call);
    if (call.looks && call.at_work) {
      guard.unlock();
      look_for([&] { return !call.at_work; });
      guard.lock();
    }
    call.left.wait(guard, [&] { return !call.at_work; });
  }

 private:
  void add_workers(int wanted) {
    try {
      for (; workers_ < wanted; ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {
      // No more threads, or no memory for them: those that run, and the caller, share the items.
    }
  }

  void close(Call& call) {
    for (std::atomic<Call*>* at = &open_; *at; at = &at->load()->behind)
      if (*at == &call) {
        *at = call.behind.load();
        return;
      }
  }

  void serve() {
    std::unique_lock<std::mutex> guard(lock_);
    for (bool looks = false;;) {
      if (looks && !open_) {
        guard.unlock();
        look_for([&] { return open_.load(); });
        guard.lock();
      }
      wake_.wait(guard, [&] { return open_.load(); });
      Call& call = *open_;
      looks = call.looks;
      int thread = ++call.joined;
      ++call.at_work;
      if (thread == call.seats) close(call);
      guard.unlock();
      call.work(thread);
      guard.lock();
      if (!--call.at_work) call.left.notify_one();
    }
  }

  std::mutex lock_;
  std::condition_variable wake_;
  std::atomic<Call*> open_{nullptr};  // changed under the lock
  int workers_ = 0;
};

// Never destroyed, as its threads sleep in it when the program ends; a forked child, which has no
// threads, gets one of its own.
Pool& pool() {
  static std::mutex lock;
  static Pool* current = nullptr;
  static long owner = 0;
  std::lock_guard<std::mutex> guard(lock);
  if (owner != getpid()) current = new Pool, owner = getpid();
  return *current;
}

}  // namespace

void parallel_for(int64_t items, int threads, Each each) {
  int64_t count = std::min<int64_t>(items, threads > 0 ? threads : default_threads());
  Call call{each, items, static_cast<int>(std::max<int64_t>(count, 1) - 1)};
  if (call.seats)
    pool().run(call);
  else
    call.work(0);
  if (call.failed) std::rethrow_exception(call.failed);
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

namespace {

constexpr int kRefused = 2;  // REFUSED of cli.py
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGABRT};

char words[1024];
volatile sig_atomic_t length = 0;  // of the words; 0: none are to be said

// Nothing here takes memory or locks: a signal may have come anywhere.
void say() {
  if (!length) return;
  [[maybe_unused]] ssize_t said = write(STDERR_FILENO, words, static_cast<size_t>(length));
  _exit(kRefused);
}

void on_signal(int) { say(); }

void on_terminate() {
  say();
  std::abort();
}

}  // namespace

void last_words(const std::string& sentence) {
  static const bool registered = std::atexit(say) == 0;
  length = 0;
  size_t size = registered ? std::min(sentence.size(), sizeof words) : 0;
  std::memcpy(words, sentence.data(), size);
  struct sigaction action{};
  action.sa_handler = size ? on_signal : SIG_DFL;
  for (int signal : kSignals) sigaction(signal, &action, nullptr);
  static const std::terminate_handler usual = std::get_terminate();
  std::set_terminate(size ? on_terminate : usual);
  length = static_cast<sig_atomic_t>(size);
}

}  // namespace eggroll
