#include "blocks.h"

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace eggroll {

namespace {

constexpr size_t kLine = 64, kLargePage = size_t{1} << 21;
constexpr size_t kStep = size_t{1} << 16;  // of sizes
constexpr size_t kLines = 61;  // at which blocks begin: arrays that are read side by side and all
                               // begin at one line of a page share a few lines of a cache

void* fresh(size_t bytes) {
  const bool large = bytes >= 2 * kLargePage;
  void* begin = nullptr;
  if (posix_memalign(&begin, large ? kLargePage : kLine, bytes)) return nullptr;
#ifdef __linux__
  if (large) madvise(begin, bytes, MADV_HUGEPAGE);
#endif
  return begin;
}

}  // namespace

Blocks& Blocks::all() {
  // A thread of its own may hold the lock where a process is forked, so that is waited for.
  static Blocks& blocks = []() -> Blocks& {
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                   [] { all().mutex_.unlock(); });
    return *new Blocks;
  }();
  return blocks;
}

void* Blocks::take(size_t bytes) {
  const size_t whole = (bytes + kLine * kLines + kStep) / kStep * kStep;
  if (whole < bytes) return nullptr;
  std::lock_guard<std::mutex> guard(mutex_);
  blocks_.reserve(blocks_.size() + in_use_ + 1);  // so that `give` needs no memory
  Block block{nullptr, whole};
  auto same = std::find_if(blocks_.rbegin(), blocks_.rend(),
                           [&](const Block& b) { return b.bytes == whole; });
  if (same != blocks_.rend()) {
    block = *same;
    blocks_.erase(std::next(same).base());
    kept_ -= whole;
  } else {
    drop(std::max(bound(), used_ + whole) - used_ - whole);
    block.begin = fresh(whole);
    if (!block.begin) drop(0), block.begin = fresh(whole);
    if (!block.begin) return nullptr;
  }
  used_ += whole, ++in_use_;
  peak_ = std::max(peak_, used_);
  char* data = static_cast<char*>(block.begin) + kLine * (1 + 5 * taken_++ % kLines);
  std::memcpy(data - kLine, &block, sizeof block);
  return data;
}

void Blocks::give(void* data) {
  Block block{};
  std::memcpy(&block, static_cast<char*>(data) - kLine, sizeof block);
  std::lock_guard<std::mutex> guard(mutex_);
  used_ -= block.bytes, --in_use_;
  kept_ += block.bytes;
  blocks_.push_back(block);
  drop(std::min(std::max(kAlways, 2 * used_), bound() - used_));
}

size_t Blocks::used() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return used_;
}

size_t Blocks::kept() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return kept_;
}

void Blocks::drop(size_t most) {
  size_t gone = 0;
  for (; kept_ > most; ++gone) {
    kept_ -= blocks_[gone].bytes;
    std::free(blocks_[gone].begin);
  }
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(gone));
}

}  // namespace eggroll
