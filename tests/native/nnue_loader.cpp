// The loader of experiments/nnue under sanitizers: whole epochs, early ends, bad files, cut texts.
// Arguments: a pack, the offset and the number of its records, a plain text, its positions, a
// binpack.
#include "nnue_loader.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what);
  std::exit(1);
}

// Sums over every array of a batch, so that each element is read.
uint64_t digest(const nnue_batch& batch, uint64_t sum) {
  for (int32_t i = 0; i < batch.size; ++i)
    sum = sum * 31 + static_cast<uint64_t>(batch.stm[i] * 7 + batch.score[i] * 3 + batch.result[i]);
  for (const nnue_lists* lists : {&batch.white, &batch.black}) {
    require(lists->starts[0] == 0 && lists->starts[batch.size] == lists->active, "starts");
    for (int32_t i = 0; i < batch.size; ++i)
      for (int32_t j = lists->starts[i]; j < lists->starts[i + 1]; ++j) {
        require(j == lists->starts[i] || lists->index[j] > lists->index[j - 1], "rows ascend");
        sum = sum * 31 + static_cast<uint64_t>(lists->index[j]);
        if (lists->counts) sum += static_cast<uint64_t>(lists->counts[j]);
      }
  }
  return sum;
}

uint64_t epochs(const char* path, nnue_settings settings) {
  char error[NNUE_ERROR_BYTES] = "";
  nnue_loader* loader = nnue_loader_create(path, &settings, error);
  require(loader, error);
  nnue_batch* batch = nullptr;
  uint64_t sum = 0;
  int64_t positions = 0;
  int32_t state;
  while ((state = nnue_loader_next(loader, &batch, error)) == 1) {
    positions += batch->size;
    sum = digest(*batch, sum);
    nnue_batch_destroy(batch);
  }
  require(state == 0, error);
  require(nnue_loader_next(loader, &batch, error) == 0, "the end stays");
  require(positions == settings.epochs * nnue_loader_positions(loader), "every position comes");
  nnue_loader_destroy(loader);
  return sum;
}

void every_set(const char* path, nnue_settings settings) {
  for (int32_t features = 1; features <= NNUE_BLOCKS; ++features) {
    settings.features = features, settings.threads = 1;
    const uint64_t one = epochs(path, settings);
    settings.threads = 3;
    require(epochs(path, settings) == one, "the order is that of one thread");
  }
}

// Ends at every moment: before the first batch, with batches in the queue, with some still held.
void early_ends(const char* path, nnue_settings settings) {
  settings.epochs = -1, settings.batch = 64;
  char error[NNUE_ERROR_BYTES] = "";
  for (int take = 0; take < 40; ++take) {
    settings.threads = 1 + take % 4;
    nnue_loader* loader = nnue_loader_create(path, &settings, error);
    require(loader, error);
    std::vector<nnue_batch*> held;
    for (int i = 0; i < take; ++i) {
      nnue_batch* batch = nullptr;
      require(nnue_loader_next(loader, &batch, error) == 1, error);
      held.push_back(batch);
    }
    nnue_loader_destroy(loader);
    for (nnue_batch* batch : held) {
      digest(*batch, 0);
      nnue_batch_destroy(batch);
    }
  }
}

// A thousand batches, each destroyed when it was read.
void many_batches(const char* path, nnue_settings settings) {
  settings.epochs = -1, settings.batch = 128, settings.threads = 2;
  char error[NNUE_ERROR_BYTES] = "";
  nnue_loader* loader = nnue_loader_create(path, &settings, error);
  require(loader, error);
  for (int i = 0; i < 1000; ++i) {
    nnue_batch* batch = nullptr;
    require(nnue_loader_next(loader, &batch, error) == 1 && batch->size == 128, error);
    nnue_batch_destroy(batch);
  }
  nnue_loader_destroy(loader);
}

// A batch that is held keeps what it has while others come, go, and are used again.
void held_batches(const char* path, nnue_settings settings) {
  settings.epochs = -1, settings.batch = 128, settings.threads = 2;
  char error[NNUE_ERROR_BYTES] = "";
  nnue_loader* loader = nnue_loader_create(path, &settings, error);
  require(loader, error);
  std::vector<std::pair<nnue_batch*, uint64_t>> held;
  for (int i = 0; i < 300; ++i) {
    nnue_batch* batch = nullptr;
    require(nnue_loader_next(loader, &batch, error) == 1, error);
    if (i % 3)
      nnue_batch_destroy(batch);
    else
      held.emplace_back(batch, digest(*batch, 0));
    if (held.size() < 9) continue;
    require(digest(*held[4].first, 0) == held[4].second, "a held batch keeps its rows");
    nnue_batch_destroy(held[4].first);
    held.erase(held.begin() + 4);
  }
  nnue_loader_destroy(loader);
  for (auto [batch, sum] : held) {
    require(digest(*batch, 0) == sum, "a held batch keeps its rows when the loader has gone");
    nnue_batch_destroy(batch);
  }
}

void bad_files(const char* path, nnue_settings settings) {
  char error[NNUE_ERROR_BYTES] = "";
  require(!nnue_loader_create("/nowhere", &settings, error) && std::strstr(error, "opened"), error);
  settings.records += 1;
  require(!nnue_loader_create(path, &settings, error) && std::strstr(error, "shorter"), error);
  settings.records -= 1, settings.offset -= 8;  // records that are none
  settings.threads = 2, settings.shuffle = 0, settings.split = NNUE_ALL;
  nnue_loader* loader = nnue_loader_create(path, &settings, error);
  require(loader, error);
  nnue_batch* batch = nullptr;
  for (int i = 0; i < 2; ++i)
    require(nnue_loader_next(loader, &batch, error) == -1 && std::strstr(error, "record 0: "),
            error);
  nnue_loader_destroy(loader);
}

std::vector<char> contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The text as a whole, and cut off after every byte of its first entries.
void plain_text(const char* path, int64_t positions) {
  const std::vector<char> text = contents(path);
  const size_t capacity = static_cast<size_t>(positions) + 1;
  const auto records = std::make_unique<char[]>(32 * capacity);
  char error[NNUE_ERROR_BYTES] = "";
  nnue_plain whole{};
  require(nnue_plain_read(text.data(), static_cast<int64_t>(text.size()), &whole, records.get(),
                          static_cast<int64_t>(capacity), error) == positions,
          error);
  require(nnue_check(records.get(), positions, error) == -1, error);
  for (size_t end = 0; end < text.size() && end < 600; ++end) {
    const auto cut = std::make_unique<char[]>(end + 1);  // its end is guarded
    std::memcpy(cut.get() + 1, text.data(), end);
    nnue_plain plain{};
    const int64_t found = nnue_plain_read(cut.get() + 1, static_cast<int64_t>(end), &plain,
                                          records.get(), static_cast<int64_t>(capacity), error);
    require(found >= -1 && found < positions, "a cut text has fewer positions, or says so");
  }
}

// Reads a copy whose both ends are guarded; -1 if it is bad.
int64_t read_binpack(const std::vector<char>& data, size_t bytes, char* records) {
  const auto copy = std::make_unique<uint8_t[]>(bytes);
  std::memcpy(copy.get(), data.data(), bytes);
  char error[NNUE_ERROR_BYTES] = "";
  nnue_binpack at{};
  int64_t whole = 0, found;
  do {
    found = nnue_binpack_read(copy.get(), static_cast<int64_t>(bytes), &at, records,
                              NNUE_BINPACK_CHAIN, error);
    require(found >= 0 || *error, "a bad file is explained");
    whole += found;
  } while (found > 0);
  return found < 0 ? -1 : whole;
}

// Whole, cut off after every byte, and with every bit turned.
void binpack(const char* path) {
  std::vector<char> data = contents(path);
  std::vector<char> room(32 * NNUE_BINPACK_CHAIN);
  const int64_t records = read_binpack(data, data.size(), room.data());
  require(records > 20, "the games are read");
  for (size_t end = 1; end < data.size(); ++end)
    require(read_binpack(data, end, room.data()) < records,
            "a cut file has fewer records, or says so");
  for (size_t i = 0; i < 8 * data.size(); ++i) {
    data[i / 8] = static_cast<char>(data[i / 8] ^ 1 << i % 8);
    read_binpack(data, data.size(), room.data());
    data[i / 8] = static_cast<char>(data[i / 8] ^ 1 << i % 8);
  }
}

}  // namespace

int main(int count, char** words) {
  require(count == 7, "pack, offset, records, text, positions, binpack");
  nnue_settings settings{};
  settings.offset = std::strtoull(words[2], nullptr, 10);
  settings.records = std::strtoull(words[3], nullptr, 10);
  settings.seed = 5, settings.epochs = 2, settings.batch = 100, settings.threads = 2;
  settings.features = NNUE_BLOCKS, settings.split = NNUE_TRAIN, settings.shuffle = 1;
  every_set(words[1], settings);
  early_ends(words[1], settings);
  many_batches(words[1], settings);
  held_batches(words[1], settings);
  bad_files(words[1], settings);
  plain_text(words[4], std::strtoll(words[5], nullptr, 10));
  binpack(words[6]);
  std::printf("all well\n");
}
