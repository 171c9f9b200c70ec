// Connect four: White begins; 7 columns of 6; action = column. Cells are column by column, from
// below. A column has 7 bits, of which the highest stays empty. Planes: mine, theirs, ones.
#pragma once

#include "state.h"

namespace selfplay {

struct Connect4 {
  static constexpr int kColumns = 7, kRows = 6, kPitch = kRows + 1;
  static constexpr int kCells = 42, kActions = 7, kPlanes = 3, kMostLegal = 7, kLongest = 42;

  static State begin() { return {0, 0, 0, {kWhite, 0, 0, 0, 0, 0, 0}}; }

  static bool four(uint64_t x) {
    for (int step : {1, kPitch - 1, kPitch, kPitch + 1}) {
      const uint64_t pairs = x & x >> step;
      if (pairs & pairs >> 2 * step) return true;
    }
    return false;
  }

  static bool has_room(const State& s, int column) {
    return !((s.white | s.black) >> (column * kPitch + kRows - 1) & 1);
  }

  // The bit of a stone that is dropped into a column; 0 where that is full.
  static uint64_t dropped(uint64_t taken, int column) {
    return (taken + bit(column * kPitch)) & ~taken & uint64_t{0x3f} << column * kPitch;
  }

  static int legal(const State& s, int16_t* actions) {
    int count = 0;
    for (int column = 0; column < kColumns && !s.facts.over; ++column)
      if (has_room(s, column)) actions[count++] = static_cast<int16_t>(column);
    return count;
  }

  static bool allows(const State& s, int a) {
    return !s.facts.over && a >= 0 && a < kActions && has_room(s, a);
  }

  static void apply(State& s, int a) {
    s.own() |= dropped(s.white | s.black, a);
    ++s.facts.plies;
    if (four(s.own()))
      s.end(s.facts.mover);
    else if (s.facts.plies == kCells)
      s.end(0);
    s.facts.mover = static_cast<int8_t>(-s.facts.mover);
  }

  static void observe(const State& s, int8_t* planes) {
    show_columns(s.own(), planes);
    show_columns(s.other(), planes + kCells);
    std::memset(planes + 2 * kCells, kOne, kCells);
  }

  static void observe_bits(const State& s, uint64_t* words) {
    show_bits(dense(s.own()), kCells, 0, words);
    show_bits(dense(s.other()), kCells, kCells, words);
    show_whole_plane<Connect4>(2, words);
  }

  static float soft(const State&) { return 0; }  // nothing is taken

 private:
  // Columns of six bits.
  static uint64_t dense(uint64_t x) {
    uint64_t found = 0;
    for (int column = 0; column < kColumns; ++column)
      found |= (x >> column * kPitch & 0x3f) << column * kRows;
    return found;
  }

  static void show_columns(uint64_t x, int8_t* plane) {
    for (int column = 0; column < kColumns; ++column)
      std::memcpy(plane + column * kRows, &kSpread[x >> column * kPitch & 0x3f], kRows);
  }
};

}  // namespace selfplay
