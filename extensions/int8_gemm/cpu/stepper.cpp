#include "stepper.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "checks.h"
#include "machine.h"
#include "plan.h"

namespace eggroll {

namespace {

constexpr int64_t kPart = 256;  // members that a thread takes at a time

}  // namespace

const eggroll_world* check_world(const eggroll_world* world) {
  require(world && world->abi == EGGROLL_WORLD_ABI, "no world of this ABI");
  in_range("a world's number of inputs", world->inputs, 1, kSize);
  in_range("a world's number of outputs", world->outputs, 1, kSize);
  in_range("a world's number of bytes", world->bytes, 0, (int64_t{1} << 31) - 1);
  require(world->begin && world->observe && world->act && world->value,
          "a world lacks one of its functions");
  return world;
}

WorldStepper::WorldStepper(const eggroll_world* world, const void* shared, const uint64_t* keys,
                           int64_t members, int threads)
    : world_(check_world(world)),
      shared_(shared),
      members_(members),
      threads_(threads),
      stride_((static_cast<size_t>(world->bytes) + 63) / 64 * 64) {
  check_threads(threads);
  size_t bytes = std::max<size_t>(stride_ * static_cast<size_t>(members), 64);
  memory_.reset(static_cast<char*>(std::aligned_alloc(64, bytes)));
  if (!memory_) throw std::bad_alloc();
  std::memset(memory_.get(), 0, bytes);
  all([&](int64_t m, char* mine) { world_->begin(shared_, mine, keys[m]); });
}

template <typename Each>
void WorldStepper::all(Each each) const {
  parallel_for((members_ + kPart - 1) / kPart, threads_, [&](int64_t part, int) {
    int64_t last = std::min(members_, (part + 1) * kPart);
    for (int64_t m = part * kPart; m < last; ++m)
      each(m, memory_.get() + static_cast<size_t>(m) * stride_);
  });
}

void WorldStepper::observe(int32_t row, int8_t* inputs, uint8_t* flags) const {
  all([&](int64_t m, char* mine) {
    int8_t* to = inputs + m * world_->inputs;
    std::memset(to, 0, static_cast<size_t>(world_->inputs));
    flags[m] = world_flag(world_->observe(shared_, mine, row, to));
  });
}

void WorldStepper::act(int32_t row, const char* outputs, int64_t bytes,
                       const uint8_t* flags) const {
  all([&](int64_t m, char* mine) {
    if (flags[m] != kWorldIdle) world_->act(shared_, mine, row, outputs + m * bytes);
  });
}

void WorldStepper::value(int32_t rows, int32_t* values) const {
  all([&](int64_t m, char* mine) { world_value(*world_, shared_, mine, rows, values + m * rows); });
}

}  // namespace eggroll
