// The three games by their number, in the order of GAMES in games.py.
#pragma once

#include "connect4.h"
#include "liuzhou.h"
#include "tictactoe.h"

namespace selfplay {

// call.template operator()<Game>() for the game of a number.
template <class Call>
auto with_game(int32_t game, Call call) {
  switch (game) {
    case 0:
      return call.template operator()<TicTacToe>();
    case 1:
      return call.template operator()<Connect4>();
    default:
      return call.template operator()<Liuzhou>();
  }
}

// Legal actions as a row of bytes, uint8 [actions].
template <class Game>
int show_legal(const State& s, uint8_t* legal) {
  int16_t actions[Game::kMostLegal];
  const int count = Game::legal(s, actions);
  std::memset(legal, 0, Game::kActions);
  for (int i = 0; i < count; ++i) legal[actions[i]] = 1;
  return count;
}

}  // namespace selfplay
