// Catch on five by five: a ball falls one row a step, and a paddle below moves left or right.
#include "eggroll_world.h"

namespace {

constexpr int kSide = 5, kSteps = kSide - 1;

// A member's memory: zero at first, games of kSteps rows one after another.
struct Member {
  uint64_t chance;
  int ball, paddle;
  int8_t worth[4096];
};

void begin(const void*, void* mine, uint64_t key) { static_cast<Member*>(mine)->chance = key; }

int32_t observe(const void*, void* mine, int32_t row, int8_t* inputs) {
  Member& m = *static_cast<Member*>(mine);
  int step = row % kSteps;
  if (step == 0) {
    m.chance = m.chance * 6364136223846793005u + 1442695040888963407u;
    m.ball = static_cast<int>((m.chance >> 33) % kSide);
    m.paddle = kSide / 2;
  }
  inputs[kSide * step + m.ball] = 64;
  inputs[kSide * kSide + m.paddle] = 64;
  return step == 0 ? EGGROLL_BEGINS : EGGROLL_ROW;
}

void act(const void*, void* mine, int32_t row, const void* output) {
  Member& m = *static_cast<Member*>(mine);
  const int8_t* logits = static_cast<const int8_t*>(output);
  int move = 0;
  for (int i = 1; i < 3; ++i)
    if (logits[i] > logits[move]) move = i;
  m.paddle += move - 1;
  m.paddle = m.paddle < 0 ? 0 : m.paddle >= kSide ? kSide - 1 : m.paddle;
  if (row % kSteps == kSteps - 1) m.worth[row] = m.paddle == m.ball;
}

// Every step of a game is worth its result.
void value(const void*, void* mine, int32_t rows, int32_t* values) {
  const Member& m = *static_cast<const Member*>(mine);
  for (int32_t t = 0; t < rows - rows % kSteps; ++t)
    values[t] = m.worth[t / kSteps * kSteps + kSteps - 1];
}

}  // namespace

EGGROLL_WORLD(catching) = {
    EGGROLL_WORLD_ABI, kSide * kSide + kSide, 3, sizeof(Member), begin, observe, act, value};
