// Alpha-beta search of connect four, with random choice among equals: the opponent of evaluations.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "connect4.h"
#include "eggroll_world.h"

using namespace selfplay;

namespace {

using Game = Connect4;
constexpr int kWon = 1 << 20, kLeast = -kWon - Game::kCells;
constexpr std::array<int, Game::kColumns> kOrder = {3, 2, 4, 1, 5, 0, 6};  // centre first
constexpr std::array<int, 4> kWorth = {0, 1, 4, 16};  // of a window with so many own cells

// All windows of four cells.
constexpr std::array<uint64_t, 69> windows() {
  std::array<uint64_t, 69> found{};
  size_t count = 0;
  constexpr int right[4] = {0, 1, 1, 1}, up[4] = {1, -1, 0, 1};
  for (int column = 0; column < Game::kColumns; ++column)
    for (int row = 0; row < Game::kRows; ++row)
      for (int way = 0; way < 4; ++way) {
        const int last_column = column + 3 * right[way], last_row = row + 3 * up[way];
        if (last_column >= Game::kColumns || last_row >= Game::kRows || last_row < 0) continue;
        const int step = right[way] * Game::kPitch + up[way];
        for (int i = 0; i < 4; ++i)
          found[count] |= uint64_t{1} << (column * Game::kPitch + row + i * step);
        ++count;
      }
  return found;
}
constexpr auto kWindows = windows();

// Open windows of four, more for more own cells.
int estimate(uint64_t own, uint64_t other) {
  int sum = 0;
  for (const uint64_t mask : kWindows) {
    if (!(mask & other)) sum += kWorth[std::popcount(mask & own)];
    if (!(mask & own)) sum -= kWorth[std::popcount(mask & other)];
  }
  return sum;
}

int search(uint64_t own, uint64_t other, int depth, int alpha, int beta);

// What the mover gets for a stone on `cell`, if it is at least alpha.
int worth(uint64_t own, uint64_t other, uint64_t cell, int depth, int alpha, int beta) {
  if (Game::four(own | cell)) return kWon + depth;
  return -search(other, own | cell, depth - 1, -beta, -alpha);
}

// What the mover can be sure of; `own` is the mover's, who has not lost yet.
int search(uint64_t own, uint64_t other, int depth, int alpha, int beta) {
  if (std::popcount(own | other) == Game::kCells) return 0;
  if (depth == 0) return estimate(own, other);
  int best = kLeast;
  for (const int column : kOrder) {
    const uint64_t cell = Game::dropped(own | other, column);
    if (!cell) continue;
    best = std::max(best, worth(own, other, cell, depth, alpha, beta));
    alpha = std::max(alpha, best);
    if (alpha >= beta) break;
  }
  return best;
}

}  // namespace

// planes: int8 [count, 2, 7, 6], the mover's cells and the other's, column by column from below;
// keys: a random word for each board; actions: int32 [count], a best column, each equally likely;
// -1 on full boards. scores: int32 [count], what it is worth.
EGGROLL_EXPORT void connect4_alphabeta(const int8_t* planes, int64_t count, int depth,
                                       const uint64_t* keys, int32_t* actions, int32_t* scores) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t side[2] = {0, 0};
    for (int cell = 0; cell < 2 * Game::kCells; ++cell)
      if (planes[i * 2 * Game::kCells + cell]) {
        const int at = cell % Game::kCells;
        side[cell / Game::kCells] |= bit(at / Game::kRows * Game::kPitch + at % Game::kRows);
      }
    std::array<int, Game::kColumns> equals{};
    int best = kLeast - 1, alike = 0;
    for (const int column : kOrder) {
      const uint64_t cell = Game::dropped(side[0] | side[1], column);
      if (!cell) continue;
      const int found = worth(side[0], side[1], cell, depth, best - 1, -kLeast);
      if (found > best) best = found, alike = 0;
      if (found == best) equals[alike++] = column;
    }
    actions[i] = alike ? equals[(keys[i] >> 33) % static_cast<unsigned>(alike)] : -1;
    scores[i] = alike ? best : 0;
  }
}
