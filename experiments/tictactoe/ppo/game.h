// Tic-tac-toe on two masks of nine bits: the mover's stones and the other's.
#pragma once

#include <array>
#include <cstdint>

#include "layout.h"

namespace ppo {

struct Board {
  uint16_t mine = 0, theirs = 0;  // of the player to move
  uint32_t legal() const { return 0x1ffu & ~(mine | theirs); }
};

constexpr std::array<bool, 512> winning_masks() {
  constexpr uint16_t lines[] = {0007, 0070, 0700, 0111, 0222, 0444, 0421, 0124};
  std::array<bool, 512> wins{};
  for (int mask = 0; mask < 512; ++mask)
    for (uint16_t line : lines) wins[mask] = wins[mask] || (mask & line) == line;
  return wins;
}

constexpr std::array<uint16_t, 512> base_three() {
  std::array<uint16_t, 512> sums{};
  for (int mask = 0; mask < 512; ++mask)
    for (int cell = 0, power = 1; cell < 9; ++cell, power *= 3)
      if (mask >> cell & 1) sums[mask] += power;
  return sums;
}

inline constexpr std::array<bool, 512> kWins = winning_masks();
inline constexpr std::array<uint16_t, 512> kBaseThree = base_three();

// A number below kCodes for what the mover sees: digit 1 mine, 2 theirs.
inline int code_of(Board b) { return kBaseThree[b.mine] + 2 * kBaseThree[b.theirs]; }

// 27 inputs, cell by cell: mine, theirs, 1. Grouped by channel instead, the same weights would
// mean another network.
inline void observe(Board b, float* inputs) {
  for (int cell = 0; cell < 9; ++cell, inputs += 3) {
    inputs[0] = static_cast<float>(b.mine >> cell & 1);
    inputs[1] = static_cast<float>(b.theirs >> cell & 1);
    inputs[2] = 1;
  }
}

}  // namespace ppo
