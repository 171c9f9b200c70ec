// Tic-tac-toe as native worlds; worlds.py has the same in Python, bit for bit.
//
// states: a random position; was the move optimal? vine: a random position; the frozen policy plays
// both sides on from the move. games: whole games from random openings against frozen policies.
// The members of a group are given the same positions, openings and replies.
#include <cstring>

#include "eggroll_world.h"

namespace {

constexpr int kStates = 5478, kOpen = 4520, kCells = 9, kInputs = 27, kPool = 32;
constexpr int kRows = 4096;  // of an update, at most

// What a caller gives, worlds.Tables in Python. Policies are tables of moves.
struct Shared {
  int32_t replies;    // chance of a random reply, in 1/65536
  int32_t openings;   // a game begins after 0 to so many random moves
  int32_t snapshots;  // policies in use
  int16_t children[kStates][kCells];
  int16_t open[kOpen];  // states that are not over
  uint16_t legal[kStates], optimal[kStates];
  uint8_t mover[kStates], winner[kStates], stones[kStates];
  int8_t inputs[kStates][kInputs];
  int8_t policy[kPool][kStates];
};

struct Member {
  uint64_t key;
  int32_t state, game, first, end, snapshot;  // rows first .. end - 1 are the game's
  int8_t worth[kRows];
};

const Shared& tables(const void* shared) { return *static_cast<const Shared*>(shared); }

// Random bits, the same wherever they are asked for.
uint64_t draw(uint64_t key, int32_t place) {
  uint64_t z = key + static_cast<uint64_t>(place + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

int32_t below(int32_t n, uint64_t random) {
  return static_cast<int32_t>((random >> 32) * static_cast<uint64_t>(n) >> 32);
}

bool over(const Shared& t, int32_t state) { return t.legal[state] == 0; }

// The state after a random move.
int32_t anywhere(const Shared& t, int32_t state, uint64_t random) {
  uint32_t legal = t.legal[state];
  for (int32_t skip = below(__builtin_popcount(legal), random); skip; --skip) legal &= legal - 1;
  return t.children[state][__builtin_ctz(legal)];
}

// The state after a policy's move, or with the caller's chance after a random one.
int32_t replied(const Shared& t, int32_t state, const int8_t* policy, uint64_t random) {
  if (static_cast<int32_t>(random & 0xFFFF) < t.replies) return anywhere(t, state, random);
  return t.children[state][policy[state]];
}

// The first of the highest outputs among the free cells.
int choice(const Shared& t, int32_t state, const void* output) {
  const int8_t* logits = static_cast<const int8_t*>(output);
  int best = -1;
  for (int i = 0; i < kCells; ++i)
    if ((t.legal[state] >> i & 1) && (best < 0 || logits[i] > logits[best])) best = i;
  return best;
}

int8_t result(const Shared& t, int32_t state, uint8_t side) {
  uint8_t winner = t.winner[state];
  return static_cast<int8_t>(winner == 0 ? 0 : winner == side ? 1 : -1);
}

void begin(const void*, void* mine, uint64_t key) { static_cast<Member*>(mine)->key = key; }

void show(const Shared& t, int32_t state, int8_t* inputs) {
  std::memcpy(inputs, t.inputs[state], kInputs);
}

int32_t observe_position(const void* shared, void* mine, int32_t row, int8_t* inputs) {
  const Shared& t = tables(shared);
  Member& m = *static_cast<Member*>(mine);
  m.state = t.open[below(kOpen, draw(m.key, 16 * row))];
  show(t, m.state, inputs);
  return EGGROLL_ROW;
}

void judge_move(const void* shared, void* mine, int32_t row, const void* output) {
  const Shared& t = tables(shared);
  Member& m = *static_cast<Member*>(mine);
  if (row < kRows)
    m.worth[row] = static_cast<int8_t>(t.optimal[m.state] >> choice(t, m.state, output) & 1);
}

void play_on(const void* shared, void* mine, int32_t row, const void* output) {
  const Shared& t = tables(shared);
  Member& m = *static_cast<Member*>(mine);
  uint8_t side = t.mover[m.state];
  int32_t state = t.children[m.state][choice(t, m.state, output)];
  for (int32_t ply = 1; !over(t, state); ++ply)
    state = t.mover[state] == side ? t.children[state][t.policy[0][state]]
                                   : replied(t, state, t.policy[0], draw(m.key, 16 * row + ply));
  if (row < kRows) m.worth[row] = result(t, state, side);
}

// A game from a random opening. It has as many rows as the mover has moves at most, so that all
// members of a group begin their next game in the same row.
void open_game(const Shared& t, Member& m, int32_t row) {
  int32_t place = 32 * m.game++;
  uint64_t random = draw(m.key, place);
  m.snapshot = below(t.snapshots, random << 32);
  m.state = 0;
  for (int32_t left = below(t.openings + 1, random); left; --left) {
    int32_t next = anywhere(t, m.state, draw(m.key, place + left));
    if (over(t, next)) break;
    m.state = next;
  }
  m.first = row, m.end = row + (kCells + 1 - t.stones[m.state]) / 2;
}

int32_t observe_game(const void* shared, void* mine, int32_t row, int8_t* inputs) {
  const Shared& t = tables(shared);
  Member& m = *static_cast<Member*>(mine);
  bool begins = row == m.end;
  if (begins) open_game(t, m, row);
  if (over(t, m.state)) return EGGROLL_IDLE;
  show(t, m.state, inputs);
  return begins ? EGGROLL_BEGINS : EGGROLL_ROW;
}

void move(const void* shared, void* mine, int32_t row, const void* output) {
  const Shared& t = tables(shared);
  Member& m = *static_cast<Member*>(mine);
  uint8_t side = t.mover[m.state];
  m.state = t.children[m.state][choice(t, m.state, output)];
  if (!over(t, m.state)) {
    uint64_t random = draw(m.key, 32 * (m.game - 1) + 16 + row - m.first);
    m.state = replied(t, m.state, t.policy[m.snapshot], random);
  }
  if (over(t, m.state))
    for (int32_t i = m.first; i < m.end && i < kRows; ++i) m.worth[i] = result(t, m.state, side);
}

void value(const void*, void* mine, int32_t rows, int32_t* values) {
  const Member& m = *static_cast<Member*>(mine);
  for (int32_t t = 0; t < rows && t < kRows; ++t) values[t] = m.worth[t];
}

}  // namespace

EGGROLL_WORLD(states) = {EGGROLL_WORLD_ABI, kInputs,    kCells, sizeof(Member), begin,
                         observe_position,  judge_move, value};
EGGROLL_WORLD(vine) = {EGGROLL_WORLD_ABI, kInputs, kCells, sizeof(Member), begin,
                       observe_position,  play_on, value};
EGGROLL_WORLD(games) = {EGGROLL_WORLD_ABI, kInputs, kCells, sizeof(Member), begin,
                        observe_game,      move,    value};
EGGROLL_EXPORT const int32_t shared_bytes;
const int32_t shared_bytes = sizeof(Shared);
