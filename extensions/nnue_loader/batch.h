// A batch with the memory of its arrays, and random numbers that depend on nothing but their keys.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "active_rows.h"

namespace nnue {

// Mixes 64 bits (splitmix64).
inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// One game in 20 is for validation, whatever the seed; loader.py has the same rule.
inline bool is_validation(uint32_t game) { return mixed(game) % 20 == 0; }

// The numbers 0 to n - 1 in another order: a Feistel network over the next power of two, repeated
// until the number is below n. It needs no memory, so every thread finds its positions alone.
class Shuffle {
 public:
  Shuffle(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
    const int bits = n > 4 ? std::bit_width(n - 1) : 2;
    low_bits_ = bits / 2;
    low_ = (uint64_t{1} << low_bits_) - 1, high_ = (uint64_t{1} << (bits - low_bits_)) - 1;
    uint64_t key = mixed(mixed(seed) ^ epoch);
    for (uint64_t& each : keys_) each = key = mixed(key);
  }

  uint64_t operator()(uint64_t i) const {
    do {
      uint64_t low = i & low_, high = i >> low_bits_;
      for (int round = 0; round < kRounds; round += 2) {
        high ^= mixed(low ^ keys_[round]) & high_;
        low ^= mixed(high ^ keys_[round + 1]) & low_;
      }
      i = high << low_bits_ | low;
    } while (i >= n_);
    return i;
  }

 private:
  static constexpr int kRounds = 4;
  uint64_t n_, low_, high_, keys_[kRounds];
  int low_bits_;
};

class Spare;

class Batch : public nnue_batch {
 public:
  // Room for so many positions.
  Batch(int32_t positions, int features) : nnue_batch{}, features_(features) {
    const size_t n = static_cast<size_t>(positions), most = n * most_active(features);
    stm = (stm_ = make<int8_t>(n)).get();
    score = (score_ = make<int16_t>(n)).get();
    result = (result_ = make<int8_t>(n)).get();
    for (auto [lists, memory] : {std::pair{&white, &memory_[0]}, {&black, &memory_[1]}}) {
      lists->starts = (memory->starts = make<int32_t>(n + 1)).get();
      lists->index = (memory->index = make<int32_t>(most)).get();
      if (features & NNUE_K) lists->counts = (memory->counts = make<int8_t>(most)).get();
    }
    clear();
  }

  void clear() {
    size = 0;
    for (nnue_lists* lists : {&white, &black}) lists->active = lists->starts[0] = 0;
  }

  // Adds a position; there is room for as many as the constructor was told.
  void add(const Record& record, const Board& board) {
    stm[size] = static_cast<int8_t>(record.stm);
    score[size] = record.score;
    result[size] = record.result;
    add_lists(white, board, 0);
    add_lists(black, board, 1);
    ++size;
  }

 private:
  // Left as it comes: every element that counts is written.
  template <class T>
  static std::unique_ptr<T[]> make(size_t n) {
    return std::unique_ptr<T[]>(new T[n]);
  }

  void add_lists(nnue_lists& lists, const Board& board, int colour) {
    int8_t* counts = lists.counts ? lists.counts + lists.active : nullptr;
    lists.active += list_rows(board, colour, features_, lists.index + lists.active, counts);
    lists.starts[size + 1] = lists.active;
  }

  struct Memory {
    std::unique_ptr<int32_t[]> starts, index;
    std::unique_ptr<int8_t[]> counts;
  };

  friend Spare;
  int features_;
  std::unique_ptr<int8_t[]> stm_, result_;
  std::unique_ptr<int16_t[]> score_;
  Memory memory_[2];
  std::shared_ptr<Spare> home_;  // where it goes when it is not needed any more
};

// Batches that were given back, for the next ones of their loader: the system clears every page of
// new memory first, a third of the time that long lists take.
class Spare {
 public:
  Spare(size_t most, int32_t positions, int features)
      : most_(most), positions_(positions), features_(features) {
    batches_.reserve(most);
  }

  static std::unique_ptr<Batch> take(const std::shared_ptr<Spare>& spare) {
    std::unique_ptr<Batch> batch;
    {
      std::lock_guard lock(spare->mutex_);
      if (!spare->batches_.empty()) {
        batch = std::move(spare->batches_.back());
        spare->batches_.pop_back();
      }
    }
    if (batch) {
      batch->clear();
    } else {
      batch = std::make_unique<Batch>(spare->positions_, spare->features_);
    }
    batch->home_ = spare;
    return batch;
  }

  static void give_back(std::unique_ptr<Batch> batch) {
    const std::shared_ptr<Spare> spare = std::move(batch->home_);
    std::lock_guard lock(spare->mutex_);
    if (spare->batches_.size() < spare->most_) spare->batches_.push_back(std::move(batch));
  }

  // Frees them, and keeps none any more.
  void close() {
    std::lock_guard lock(mutex_);
    batches_.clear();
    most_ = 0;
  }

 private:
  size_t most_;
  const int32_t positions_;
  const int features_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace nnue
