// Tic-tac-toe: White begins; cells row by row; action = cell. Planes: mine, theirs, ones.
#pragma once

#include "state.h"

namespace selfplay {

struct TicTacToe {
  static constexpr int kCells = 9, kActions = 9, kPlanes = 3, kMostLegal = 9, kLongest = 9;
  static constexpr uint64_t kBoard = 0x1ff;

  static State begin() { return {0, 0, 0, {kWhite, 0, 0, 0, 0, 0, 0}}; }

  static bool three(uint64_t x) {
    for (uint64_t line : {0x007u, 0x038u, 0x1c0u, 0x049u, 0x092u, 0x124u, 0x111u, 0x054u})
      if ((x & line) == line) return true;
    return false;
  }

  static int legal(const State& s, int16_t* actions) {
    return s.facts.over ? 0 : list_bits(kBoard & ~(s.white | s.black), 0, actions);
  }

  static bool allows(const State& s, int a) {
    return !s.facts.over && a >= 0 && a < kActions && !((s.white | s.black) >> a & 1);
  }

  static void apply(State& s, int a) {
    s.own() |= bit(a);
    ++s.facts.plies;
    if (three(s.own()))
      s.end(s.facts.mover);
    else if ((s.white | s.black) == kBoard)
      s.end(0);
    s.facts.mover = static_cast<int8_t>(-s.facts.mover);
  }

  static void observe(const State& s, int8_t* planes) {
    show_plane(s.own(), kCells, planes);
    show_plane(s.other(), kCells, planes + kCells);
    std::memset(planes + 2 * kCells, kOne, kCells);
  }

  static void observe_bits(const State& s, uint64_t* words) {
    words[0] = s.own() | s.other() << kCells;
    show_whole_plane<TicTacToe>(2, words);
  }

  static float soft(const State&) { return 0; }  // nothing is taken
};

}  // namespace selfplay
