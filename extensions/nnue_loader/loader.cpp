// Threads that build batches in order; see nnue_loader.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "batch.h"

namespace nnue {
namespace {

using Text = std::array<char, NNUE_ERROR_BYTES>;

// A bad record; its text is ready, as memory may be short when it is needed.
struct BadRecord {
  Text text;
  BadRecord(uint64_t number, const Fault& fault) {
    const int said = std::snprintf(text.data(), text.size(),
                                   "record %llu: ", static_cast<unsigned long long>(number));
    std::snprintf(text.data() + said, text.size() - static_cast<size_t>(said), fault.text,
                  fault.number);
  }
};

// The records of a file, mapped for as long as this lives.
class Mapping {
 public:
  Mapping(const char* path, uint64_t offset, uint64_t count) : count_(count) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category(), "it cannot be opened");
    struct stat facts{};
    const bool known = fstat(file, &facts) == 0;
    bytes_ = offset + count * sizeof(Record);
    void* start = MAP_FAILED;
    if (known && static_cast<uint64_t>(facts.st_size) >= bytes_)
      start = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    close(file);
    if (known && static_cast<uint64_t>(facts.st_size) < bytes_)
      throw std::runtime_error("it is shorter than its header says");
    if (start == MAP_FAILED)
      throw std::system_error(error, std::generic_category(), "it cannot be mapped");
    start_ = start;
    records_ = reinterpret_cast<const Record*>(static_cast<const char*>(start) + offset);
  }
  ~Mapping() { munmap(start_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const Record& operator[](uint64_t i) const { return records_[i]; }
  uint64_t count() const { return count_; }

 private:
  void* start_;
  uint64_t bytes_, count_;
  const Record* records_;
};

class Loader {
 public:
  Loader(const char* path, const nnue_settings& settings)
      : settings_(settings), records_(path, settings.offset, settings.records) {
    choose();
    const uint64_t n = positions(), size = static_cast<uint64_t>(settings.batch);
    if (!n) throw std::runtime_error("it has no positions of that split");
    total_ = settings.epochs < 0 ? UINT64_MAX / 2 : n * static_cast<uint64_t>(settings.epochs);
    batches_ = (total_ + size - 1) / size;
    slots_.resize(2 * static_cast<size_t>(settings.threads) + 2);
    const auto most = static_cast<int32_t>(std::min(total_, size));
    spare_ = std::make_shared<Spare>(slots_.size(), most, settings.features);
    try {
      for (int i = 0; i < settings.threads; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Loader() {
    stop();
    spare_->close();
  }

  uint64_t positions() const { return everything_ ? records_.count() : chosen_.size(); }

  // As nnue_loader_next.
  int next(nnue_batch** batch, char* error) {
    std::unique_lock lock(mutex_);
    if (taken_ == batches_) return 0;
    Slot& slot = slots_[taken_ % slots_.size()];
    done_.wait(lock, [&] { return slot.state != 0; });
    if (slot.state < 0) {  // stays there, for further calls
      std::snprintf(error, NNUE_ERROR_BYTES, "%s", slot.error.data());
      return slot.state;
    }
    *batch = slot.batch.release();
    slot.state = 0;
    ++taken_;
    room_.notify_one();
    return 1;
  }

 private:
  struct Slot {
    int state = 0;  // 0: not built yet, else what nnue_loader_next returns
    std::unique_ptr<Batch> batch;
    Text error{};
  };

  // The records of the split's games.
  void choose() {
    everything_ = settings_.split == NNUE_ALL;
    if (everything_) return;
    if (records_.count() > UINT32_MAX) throw std::runtime_error("it has more than 2^32 records");
    for (uint64_t i = 0; i < records_.count(); ++i)
      if (is_validation(records_[i].game) == (settings_.split == NNUE_VALIDATION))
        chosen_.push_back(static_cast<uint32_t>(i));
  }

  void work(int worker) {
    for (;;) {
      std::unique_lock lock(mutex_);
      room_.wait(lock,
                 [&] { return stopped_ || begun_ == batches_ || begun_ - taken_ < slots_.size(); });
      if (stopped_ || begun_ == batches_) return;
      const uint64_t number = begun_++;
      lock.unlock();
      Slot found = build(number, worker);
      const bool failed = found.state < 0;
      lock.lock();
      slots_[number % slots_.size()] = std::move(found);
      lock.unlock();
      done_.notify_one();
      if (failed) return;
    }
  }

  // A batch, or why there is none.
  Slot build(uint64_t number, int worker) const {
    Slot slot;
    auto died = [&](const char* cause) {
      std::snprintf(slot.error.data(), slot.error.size(), "worker %d of %d died at batch %llu: %s",
                    worker + 1, settings_.threads, static_cast<unsigned long long>(number), cause);
      slot.state = -2;
    };
    try {
      slot.batch = make_batch(number);
      slot.state = 1;
    } catch (const BadRecord& bad) {
      slot.error = bad.text, slot.state = -1;
    } catch (const std::bad_alloc&) {
      died("out of memory");
    } catch (const std::exception& exception) {
      died(exception.what());
    } catch (...) {
      died("an unknown exception");
    }
    return slot;
  }

  std::unique_ptr<Batch> make_batch(uint64_t number) const {
    const uint64_t first = number * static_cast<uint64_t>(settings_.batch);
    const uint64_t end = std::min(total_, first + static_cast<uint64_t>(settings_.batch));
    const std::vector<uint64_t> places = places_of(first, end);
    std::unique_ptr<Batch> batch = Spare::take(spare_);
    constexpr size_t kAhead = 16;  // records lie anywhere, so they are fetched before they are used
    for (size_t i = 0; i < places.size(); ++i) {
      if (i + kAhead < places.size()) __builtin_prefetch(&records_[places[i + kAhead]]);
      const Record& record = records_[places[i]];
      const Board board = board_of(record);
      if (const Fault fault = fault_of(record, board)) throw BadRecord(places[i], fault);
      batch->add(record, board);
    }
    return batch;
  }

  // Records of places first to end - 1 in the order of all epochs.
  std::vector<uint64_t> places_of(uint64_t first, uint64_t end) const {
    std::vector<uint64_t> places;
    places.reserve(end - first);
    const uint64_t n = positions();
    while (first < end) {
      const uint64_t epoch = first / n, stop = std::min(end, (epoch + 1) * n);
      const Shuffle shuffle(n, settings_.seed, epoch);
      for (; first < stop; ++first) {
        const uint64_t at = first - epoch * n;
        places.push_back(settings_.shuffle ? shuffle(at) : at);
      }
    }
    if (!everything_)  // a loop of its own: a processor has more of these far reads under way
      for (uint64_t& place : places) place = chosen_[place];
    return places;
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const nnue_settings settings_;
  const Mapping records_;
  std::vector<uint32_t> chosen_;
  bool everything_ = false;
  uint64_t total_ = 0, batches_ = 0;  // positions and batches of all epochs
  std::shared_ptr<Spare> spare_;

  std::mutex mutex_;
  std::condition_variable room_, done_;
  std::vector<Slot> slots_;         // of batch b: b % size
  uint64_t begun_ = 0, taken_ = 0;  // batches
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace nnue

struct nnue_loader {
  nnue::Loader loader;
};

extern "C" {

int32_t nnue_loader_abi(void) { return NNUE_LOADER_ABI; }

int32_t nnue_rows(int32_t features) {
  return features & ~NNUE_BLOCKS ? 0 : nnue::rows_of(features);
}

nnue_loader* nnue_loader_create(const char* path, const nnue_settings* settings, char* error) {
  try {
    return new nnue_loader{{path, *settings}};
  } catch (const std::bad_alloc&) {
    std::snprintf(error, NNUE_ERROR_BYTES, "there is not enough memory");
  } catch (const std::exception& exception) {
    std::snprintf(error, NNUE_ERROR_BYTES, "%s", exception.what());
  }
  return nullptr;
}

int64_t nnue_loader_positions(const nnue_loader* loader) {
  return static_cast<int64_t>(loader->loader.positions());
}

int32_t nnue_loader_next(nnue_loader* loader, nnue_batch** batch, char* error) {
  return loader->loader.next(batch, error);
}

void nnue_loader_destroy(nnue_loader* loader) { delete loader; }

void nnue_batch_destroy(nnue_batch* batch) {
  if (batch) nnue::Spare::give_back(std::unique_ptr<nnue::Batch>(static_cast<nnue::Batch*>(batch)));
}

int64_t nnue_check(const void* records, int64_t count, char* error) {
  for (int64_t i = 0; i < count; ++i) {
    nnue::Record record;
    std::memcpy(&record, static_cast<const char*>(records) + i * sizeof record, sizeof record);
    if (const nnue::Fault fault = nnue::fault_of(record, nnue::board_of(record))) {
      std::snprintf(error, NNUE_ERROR_BYTES, fault.text, fault.number);
      return i;
    }
  }
  return -1;
}

}  // extern "C"
