// Tic-tac-toe against random replies, games one after another: 27 inputs, 9 outputs.
#include "eggroll_world.h"

namespace {

constexpr uint16_t kFull = 0x1FF, kLines[] = {0007, 0070, 0700, 0111, 0222, 0444, 0421, 0124};

struct Mine {
  uint64_t chance;
  uint16_t own, other;
  bool begun;
};

constexpr int kRows = 4096;  // of an update, at most

struct Memory {
  Mine mine;
  int8_t worth[kRows];
};

uint32_t random(Mine& m) {
  m.chance = m.chance * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(m.chance >> 33);
}

bool wins(uint16_t stones) {
  for (uint16_t line : kLines)
    if ((stones & line) == line) return true;
  return false;
}

void begin(const void*, void* mine, uint64_t key) { static_cast<Memory*>(mine)->mine.chance = key; }

int32_t observe(const void*, void* mine, int32_t, int8_t* to) {
  Mine& m = static_cast<Memory*>(mine)->mine;
  for (int i = 0; i < 9; ++i) {
    to[3 * i] = static_cast<int8_t>(64 * (m.own >> i & 1));
    to[3 * i + 1] = static_cast<int8_t>(64 * (m.other >> i & 1));
    to[3 * i + 2] = 64;
  }
  bool begins = !m.begun;
  m.begun = true;
  return begins ? EGGROLL_BEGINS : EGGROLL_ROW;
}

// The highest output among the free places moves; a place at random answers.
void act(const void*, void* mine, int32_t row, const void* output) {
  Memory& memory = *static_cast<Memory*>(mine);
  Mine& m = memory.mine;
  const int8_t* logits = static_cast<const int8_t*>(output);
  uint16_t taken = m.own | m.other;
  int best = -1;
  for (int i = 0; i < 9; ++i)
    if (!(taken >> i & 1) && (best < 0 || logits[i] > logits[best])) best = i;
  m.own = static_cast<uint16_t>(m.own | 1 << best), taken = m.own | m.other;
  int8_t result = wins(m.own) ? 1 : 0;
  bool over = result || taken == kFull;
  if (!over) {
    int left = 9 - __builtin_popcount(taken);
    int skip = static_cast<int>((uint64_t{random(m)} * static_cast<uint64_t>(left)) >> 31);
    uint16_t open = static_cast<uint16_t>(~taken & kFull);
    while (skip--) open &= static_cast<uint16_t>(open - 1);
    m.other = static_cast<uint16_t>(m.other | (open & -open));
    if (wins(m.other)) result = -1;
    over = result || (m.own | m.other) == kFull;
  }
  memory.worth[row] = result;
  if (over) m.own = m.other = 0, m.begun = false;
}

// A game's result is what each of its rows was worth.
void value(const void*, void* mine, int32_t rows, int32_t* values) {
  const int8_t* worth = static_cast<Memory*>(mine)->worth;
  for (int32_t t = rows - 1, result = 0; t >= 0; --t)
    values[t] = result = worth[t] ? worth[t] : result;
}

}  // namespace

EGGROLL_WORLD(tictactoe) = {EGGROLL_WORLD_ABI, 27, 9, sizeof(Memory), begin, observe, act, value};
