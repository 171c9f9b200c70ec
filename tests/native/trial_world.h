// A world that no network can learn, for the comparison of the ways to run one: everything it
// shows and values hangs on everything before. tests/test_native_worlds.py has the same in NumPy.
#pragma once

#include <cstdint>
#include <cstring>

#include "eggroll_world.h"

namespace trial {

constexpr int kRows = 128;  // of an update, at most

struct Mine {
  uint32_t state;
  int32_t rows;
  int32_t worth[kRows];
  uint8_t odd;  // the size is no multiple of anything
} __attribute__((packed));

inline uint32_t mixed(uint32_t v) {
  v = (v ^ (v >> 16)) * 0x7FEB352Du;
  v = (v ^ (v >> 15)) * 0x846CA68Bu;
  return v ^ (v >> 16);
}

// What the caller shares: how often rows are idle or begin an episode, in 256ths, and by how much
// values are shifted left.
struct Shared {
  int32_t idle, begins, shift;
};

inline void begin(const void*, void* mine, uint64_t key) {
  Mine& m = *static_cast<Mine*>(mine);
  m.state = mixed(static_cast<uint32_t>(key ^ key >> 32) + m.state);  // zero before
}

template <int inputs>
int32_t observe(const void* shared, void* mine, int32_t row, int8_t* to) {
  const Shared& s = *static_cast<const Shared*>(shared);
  Mine& m = *static_cast<Mine*>(mine);
  m.state = mixed(m.state + static_cast<uint32_t>(row));
  m.rows = row + 1;
  m.worth[row] = static_cast<int32_t>(m.state % 31) - 15;
  for (int i = 0; i < inputs; ++i)  // the last stays as it was, but in a network of one
    if (i < inputs - 1 || inputs == 1)
      to[i] = static_cast<int8_t>(mixed(m.state + static_cast<uint32_t>(i)));
  int32_t chance = static_cast<int32_t>(m.state >> 24);
  if (chance < s.idle) return 0;
  return chance < s.idle + s.begins ? 2 : chance % 2 ? 1 : -7;
}

template <int outputs, typename Value>
void act(const void* shared, void* mine, int32_t row, const void* output) {
  const Shared& s = *static_cast<const Shared*>(shared);
  Mine& m = *static_cast<Mine*>(mine);
  uint32_t sum = 0;
  for (int i = 0; i < outputs; ++i) {
    Value v;
    std::memcpy(&v, static_cast<const char*>(output) + i * sizeof v, sizeof v);
    sum += static_cast<uint32_t>(static_cast<int32_t>(v)) * static_cast<uint32_t>(2 * i + 1);
  }
  m.state ^= mixed(sum);
  uint32_t worth = static_cast<uint32_t>(m.worth[row]) + sum % 7;
  m.worth[row] = static_cast<int32_t>(worth << s.shift);
}

inline void value(const void*, void* mine, int32_t rows, int32_t* values) {
  const Mine& m = *static_cast<const Mine*>(mine);
  for (int t = 0; t < rows && t < m.rows; ++t) values[t] = m.worth[t];
}

template <int inputs, int outputs, typename Value>
constexpr eggroll_world world{EGGROLL_WORLD_ABI,   inputs, outputs,
                              sizeof(Mine),        begin,  observe<inputs>,
                              act<outputs, Value>, value};

}  // namespace trial
