// Worlds stepped row by row for all members at once, for engines that do not step them themselves.
// Independent of MLX.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "eggroll_world.h"

namespace eggroll {

// A world of this ABI, with its functions. Throws std::invalid_argument for any other.
const eggroll_world* check_world(const eggroll_world* world);

class WorldStepper {
 public:
  // Begins every member's world; keys: [members]. Throws std::invalid_argument, as check_world.
  WorldStepper(const eggroll_world* world, const void* shared, const uint64_t* keys,
               int64_t members, int threads);

  // inputs: int8 [members, world->inputs]; flags: [members], what observe answered: 0, 1 or 2.
  void observe(int32_t row, int8_t* inputs, uint8_t* flags) const;

  // outputs: [members] of `bytes` each.
  void act(int32_t row, const char* outputs, int64_t bytes, const uint8_t* flags) const;

  // values: [members, rows].
  void value(int32_t rows, int32_t* values) const;

  int64_t members() const { return members_; }
  int inputs() const { return world_->inputs; }
  int outputs() const { return world_->outputs; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };

  // Calls each(member, its memory), by several threads.
  template <typename Each>
  void all(Each each) const;

  const eggroll_world* world_;
  const void* shared_;
  int64_t members_;
  int threads_;
  size_t stride_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace eggroll
