// Games in lockstep, regrouped by game, and advantages.
#pragma once

#include "game.h"
#include "layout.h"
#include "net.h"
#include "policy.h"
#include "random.h"

namespace ppo {

// The learner's moves, one array for each field.
struct Transitions {
  int32_t count;
  Board board[kMaxTransitions];
  int32_t move[kMaxTransitions], game[kMaxTransitions];
  float log_prob[kMaxTransitions], value[kMaxTransitions], reward[kMaxTransitions];
  float advantage[kMaxTransitions], returns[kMaxTransitions];
  int32_t last[kMaxTransitions];
};

// Gives equal boards of a batch one row, as the network answers them equally.
struct Distinct {
  uint32_t now, stamp[kCodes];
  int32_t row[kCodes];

  void clear() { ++now; }
  // The row of a code; `count` grows where it is new.
  int of(int code, int& count) {
    if (stamp[code] != now) {
      stamp[code] = now;
      row[code] = count++;
    }
    return row[code];
  }
};

// A frozen policy: log-probabilities of the moves on every board, by its code.
struct Opponent {
  float log_probs[kCodes][kMoves];
};

struct Game {
  Random random;
  const Opponent* opponent;
  Board board;  // as the player to move sees it
  int32_t winner;
  bool over;
};

struct Collector {
  Game games[kMaxGames];
  Distinct distinct;
  Activations activations;
  int32_t row[kMaxGames], going[kMaxGames];
  float log_probs[kMaxGames][kMoves];
  Transitions met;  // in the order of lockstep: move by move
  int32_t next[kMaxGames + 1];
};

// The learner has X, the first player, in every other game.
inline bool learner_moves(int game, int ply) { return game % 2 == ply % 2; }

// Fills in the moves of a network. It is asked about each of the 4,520 boards once; games then look
// its answers up.
void freeze(const Evaluator& e, const float* weights, Collector& c, Opponent& opponent);

// Plays an iteration's games, each against one of `count` opponents, drawn uniformly. `out` has the
// learner's transitions game by game, or move by move as lockstep met them if `regrouped` is false,
// which is wrong for advantages.
void collect(const Evaluator& e, const Settings& s, const float* learner, const Opponent* opponents,
             int count, uint64_t seed, uint64_t iteration, bool regrouped, Collector& c,
             Transitions& out, Report& report);

// GAE over transitions that lie game by game; a game's last has nothing after it.
void advantages(int count, const float* value, const float* reward, const int32_t* last,
                float discount, float decay, float* advantage, float* returns);

}  // namespace ppo
