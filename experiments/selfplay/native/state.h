// A position of any of the games, and positions side by side.
//
// A game is a struct of constants and functions: begin, legal (the actions in ascending order),
// allows, apply, observe, observe_bits and soft. Planes are kOne where they hold, else 0. As bits
// they are one after another, and a plane that holds everywhere is one bit behind them all.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace selfplay {

constexpr int8_t kOne = 1;  // of a plane where it holds
constexpr int8_t kWhite = 1, kBlack = -1;

// What a position has beside its stones, 8 bytes.
struct Facts {
  int8_t mover;     // 1 White, -1 Black
  int8_t over;      // 1 where the game has ended
  int8_t result;    // 1 White won, 0 draw or not over, -1 Black won
  uint8_t phase;    // of liuzhou.h, else 0
  uint8_t pending;  // choices that the phase still has
  uint8_t still;    // plies since a stone was taken
  uint16_t plies;   // since the first
};
static_assert(sizeof(Facts) == 8);

struct State {
  uint64_t white, black, marks;
  Facts facts;

  uint64_t& own() { return facts.mover == kWhite ? white : black; }
  uint64_t& other() { return facts.mover == kWhite ? black : white; }
  uint64_t own() const { return facts.mover == kWhite ? white : black; }
  uint64_t other() const { return facts.mover == kWhite ? black : white; }
  void end(int8_t result) { facts.over = 1, facts.result = result; }
};

// Structure of arrays; place i of each makes a State.
struct Positions {
  uint64_t *white, *black, *marks;
  Facts* facts;

  State load(int64_t i) const { return {white[i], black[i], marks[i], facts[i]}; }
  void store(int64_t i, const State& s) const {
    white[i] = s.white, black[i] = s.black, marks[i] = s.marks, facts[i] = s.facts;
  }
};

inline uint64_t bit(int cell) { return uint64_t{1} << cell; }

// Eight bits as eight bytes of 0 or kOne.
constexpr std::array<uint64_t, 256> spread_bytes() {
  std::array<uint64_t, 256> found{};
  for (int byte = 0; byte < 256; ++byte)
    for (int i = 0; i < 8; ++i)
      if (byte >> i & 1) found[byte] |= uint64_t{kOne} << 8 * i;
  return found;
}
static_assert(std::endian::native == std::endian::little);
inline constexpr std::array<uint64_t, 256> kSpread = spread_bytes();

// The lowest `count` bits as a plane, int8 [count].
inline void show_plane(uint64_t bits, int count, int8_t* plane) {
  for (int i = 0; i < count; i += 8, bits >>= 8) {
    const uint64_t eight = kSpread[bits & 255];
    std::memcpy(plane + i, &eight, count - i < 8 ? count - i : 8);
  }
}

// The same as bits, from place `at` on, of words that are zero there.
inline void show_bits(uint64_t bits, int count, int at, uint64_t* words) {
  words[at / 64] |= bits << at % 64;
  if (at % 64 + count > 64) words[at / 64 + 1] |= bits >> (64 - at % 64);
}

// The words of a game's bits.
template <class Game>
constexpr int kWords = (Game::kPlanes * Game::kCells + Game::kPlanes + 63) / 64;

template <class Game>
void show_whole_plane(int plane, uint64_t* words) {
  const int at = Game::kPlanes * Game::kCells + plane;
  words[at / 64] |= uint64_t{1} << at % 64;
}

// Adds the places of the set bits, each plus `first`, to a list of actions.
inline int list_bits(uint64_t bits, int first, int16_t* actions) {
  int count = 0;
  for (; bits; bits &= bits - 1)
    actions[count++] = static_cast<int16_t>(first + std::countr_zero(bits));
  return count;
}

}  // namespace selfplay
