// Memory of large arrays, which is kept for the next array of its size, and begins at a cache line.
//
// An update makes arrays as large as those that the one before it gave up. Malloc returns what is
// larger than 32 MiB to the system, which then maps and clears every page anew: more than half of
// the time of an update of 10 million weights. Independent of MLX.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace eggroll {

class Blocks {
 public:
  static constexpr size_t kLeast = size_t{1} << 15;    // bytes that are worth keeping
  static constexpr size_t kAlways = size_t{64} << 20;  // and those that are kept in any case

  static constexpr size_t kBefore = 32;

  // Those of this process, which outlive every array.
  static Blocks& all();

  Blocks() = default;
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks() { drop(0); }

  // At least so many bytes at a cache line, on large pages where the system has them; null where
  // there is no memory. kBefore bytes in front of them are the caller's, too.
  void* take(size_t bytes);

  // Gives back what `take` answered, on any thread. It is kept while all that is kept is at most
  // kAlways or twice what is in use, and with that a quarter more than was in use at some time.
  void give(void* data);

  size_t used() const;  // bytes that were taken and not given back
  size_t kept() const;

 private:
  struct Block {
    void* begin;
    size_t bytes;
  };

  void drop(size_t most);  // keeps no more than this
  size_t bound() const { return peak_ + peak_ / 4; }

  mutable std::mutex mutex_;
  std::vector<Block> blocks_;  // kept, the oldest first
  size_t used_ = 0, kept_ = 0, peak_ = 0;
  size_t in_use_ = 0, taken_ = 0;  // blocks: now, and ever
};

}  // namespace eggroll
