// Evaluation by material alone, in centipawns.
#pragma once

#include "chess.h"

struct Evaluator {
  struct Sums {
    int32_t side[2] = {};  // of the pieces of each side
  };
  static constexpr bool kFollowsKing = false;

  explicit Evaluator(const void*) {}

  void refresh(const chess::Position& p, int side, Sums& sums) const {
    sums.side[side] = 0;
    for (int square = 0; square < 64; ++square)
      if (p.at[square] != chess::kNone) change(side, 0, p.at[square], square, 1, sums);
  }

  void change(int side, int, int code, int, int sign, Sums& sums) const {
    static constexpr int kWorth[6] = {100, 300, 310, 500, 900, 0};
    if ((code & 1) == side) sums.side[side] += sign * kWorth[code / 2];
  }

  int32_t value(const Sums& sums, int mover) const { return sums.side[mover] - sums.side[!mover]; }
};
