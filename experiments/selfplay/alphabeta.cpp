// Alpha-beta search of connect four: the opponent of evaluations, with random choice among equals.
//
// A board is two words of 7 columns of 7 bits, the lowest bit of a column its lowest cell; the
// seventh bit of a column stays empty, so that lines do not wrap.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace {

constexpr int COLUMNS = 7, ROWS = 6, HEIGHT = ROWS + 1, CELLS = ROWS * COLUMNS;
constexpr int WON = 1 << 20;
constexpr std::array<int, COLUMNS> ORDER = {3, 2, 4, 1, 5, 0, 6};  // centre first
constexpr std::array<int, 4> STEPS = {1, HEIGHT - 1, HEIGHT, HEIGHT + 1};
constexpr std::array<int, 4> WORTH = {0, 1, 4, 16};  // of a window with so many own cells

struct Lines {
  std::array<std::uint64_t, 69> masks;

  constexpr Lines() : masks{} {
    int count = 0;
    constexpr int right[4] = {0, 1, 1, 1}, up[4] = {1, -1, 0, 1};
    for (int column = 0; column < COLUMNS; ++column)
      for (int row = 0; row < ROWS; ++row)
        for (int way = 0; way < 4; ++way) {
          const int lastColumn = column + 3 * right[way], lastRow = row + 3 * up[way];
          if (lastColumn >= COLUMNS || lastRow >= ROWS || lastRow < 0) continue;
          std::uint64_t mask = 0;
          for (int i = 0; i < 4; ++i)
            mask |= std::uint64_t{1} << ((column + i * right[way]) * HEIGHT + row + i * up[way]);
          masks[count++] = mask;
        }
  }
};
constexpr Lines LINES;

bool wins(std::uint64_t own) {
  for (const int step : STEPS) {
    const std::uint64_t pairs = own & (own >> step);
    if (pairs & (pairs >> (2 * step))) return true;
  }
  return false;
}

// Open windows of four, more for more own cells.
int estimate(std::uint64_t own, std::uint64_t other) {
  int sum = 0;
  for (const std::uint64_t mask : LINES.masks) {
    if (!(mask & other)) sum += WORTH[std::popcount(mask & own)];
    if (!(mask & own)) sum -= WORTH[std::popcount(mask & other)];
  }
  return sum;
}

std::uint64_t drop(std::uint64_t filled, int column) {
  const std::uint64_t whole = ((std::uint64_t{1} << ROWS) - 1) << (column * HEIGHT);
  return (filled + (std::uint64_t{1} << (column * HEIGHT))) & whole & ~filled;
}

// What the mover can be sure of; `own` is the mover's, who has not lost yet.
int search(std::uint64_t own, std::uint64_t other, int depth, int alpha, int beta) {
  const std::uint64_t filled = own | other;
  if (std::popcount(filled) == CELLS) return 0;
  if (depth == 0) return estimate(own, other);
  int best = -WON - CELLS;
  for (const int column : ORDER) {
    const std::uint64_t cell = drop(filled, column);
    if (!cell) continue;
    const int found =
        wins(own | cell) ? WON + depth : -search(other, own | cell, depth - 1, -beta, -alpha);
    best = std::max(best, found);
    alpha = std::max(alpha, best);
    if (alpha >= beta) break;
  }
  return best;
}

}  // namespace

// planes: int8 [count, 2, 7, 6], the mover's cells and the other's, column by column from below;
// keys: a random word for each board; actions: int32 [count], a best column, each equally likely;
// -1 on full boards. scores: int32 [count], what it is worth.
extern "C" void connect4_alphabeta(const std::int8_t* planes, std::int64_t count, int depth,
                                   const std::uint64_t* keys, std::int32_t* actions,
                                   std::int32_t* scores) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t side[2] = {0, 0};
    for (int cell = 0; cell < 2 * CELLS; ++cell)
      if (planes[i * 2 * CELLS + cell]) {
        const int at = cell % CELLS;
        side[cell / CELLS] |= std::uint64_t{1} << (at / ROWS * HEIGHT + at % ROWS);
      }
    std::array<int, COLUMNS> equals{};
    int best = -WON - CELLS - 1, alike = 0;
    for (const int column : ORDER) {
      const std::uint64_t cell = drop(side[0] | side[1], column);
      if (!cell) continue;
      const int found = wins(side[0] | cell) ? WON + depth
                                             : -search(side[1], side[0] | cell, depth - 1,
                                                       -WON - CELLS, -(best - 1));
      if (found > best) best = found, alike = 0;
      if (found == best) equals[alike++] = column;
    }
    actions[i] = alike ? equals[(keys[i] >> 33) % static_cast<unsigned>(alike)] : -1;
    scores[i] = alike ? best : 0;
  }
}
