// Liuzhou chess, see LIUZHOU.md: 6 x 6, cells row by row. Black begins.
//
// Actions: 0 to 35 a stone is placed; 36 + 4 cell + direction it moves up, down, left or right;
// 180 + cell it is chosen, to be marked or taken; 216 marked stones are taken off; 217 to 219 are
// never legal. Planes: mine, theirs, mine marked, theirs marked, and one of each phase.
#pragma once

#include <algorithm>
#include <cmath>

#include "state.h"

namespace selfplay {

struct Liuzhou {
  static constexpr int kSide = 6, kCells = 36, kActions = 220, kPlanes = 11, kMostLegal = 72;
  static constexpr int kLongest = 144, kMostStill = 36;  // plies after which a game is a draw
  static constexpr int kMove = 36, kChoose = 180, kClear = 216;
  static constexpr uint64_t kBoard = (uint64_t{1} << kCells) - 1;
  static constexpr uint64_t kRow = 0x3f, kColumn = 0x041041041;  // the first of each

  enum Phase : uint8_t { kPlace, kMark, kRemoval, kMoves, kCapture, kForced, kCounter, kPhases };

  static State begin() { return {0, 0, 0, {kBlack, 0, 0, kPlace, 0, 0, 0}}; }

  // The cells of x in squares of four.
  static uint64_t squares(uint64_t x) {
    const uint64_t corners = x & x >> 1 & x >> kSide & x >> (kSide + 1) & ~(kColumn << 5);
    return corners | corners << 1 | corners << kSide | corners << (kSide + 1);
  }

  // The cells of x in full rows and columns.
  static uint64_t lines(uint64_t x) {
    uint64_t found = 0;
    for (int i = 0; i < kSide; ++i) {
      const uint64_t row = kRow << kSide * i, column = kColumn << i;
      if ((x & row) == row) found |= row;
      if ((x & column) == column) found |= column;
    }
    return found;
  }

  // What a stone of x that came to a cell earns: 2 for a line, else 1 for a square.
  static int earned(uint64_t x, int cell) {
    const uint64_t row = kRow << kSide * (cell / kSide), column = kColumn << cell % kSide;
    if ((x & row) == row || (x & column) == column) return 2;
    return squares(x) >> cell & 1;
  }

  // Stones of x that may be marked or taken: those in no shape, or all where each is in one.
  static uint64_t targets(uint64_t x) {
    const uint64_t ordinary = x & ~(squares(x) | lines(x));
    return ordinary ? ordinary : x;
  }

  // Stones of x that can move up, down, left and right.
  static std::array<uint64_t, 4> movable(uint64_t x, uint64_t taken) {
    const uint64_t open = kBoard & ~taken;
    return {x & open << kSide, x & open >> kSide, x & (open & ~(kColumn << 5)) << 1,
            x & (open & ~kColumn) >> 1};
  }

  static uint64_t choices(const State& s) {
    switch (s.facts.phase) {
      case kMark:
        return targets(s.other() & ~s.marks);
      case kCapture:
      case kForced:
      case kCounter:
        return targets(s.other());
      default:
        return 0;
    }
  }

  static int legal(const State& s, int16_t* actions) {
    if (s.facts.over) return 0;
    if (s.facts.phase == kPlace) return list_bits(kBoard & ~(s.white | s.black), 0, actions);
    if (s.facts.phase == kRemoval) return actions[0] = kClear, 1;
    if (s.facts.phase != kMoves) return list_bits(choices(s), kChoose, actions);
    const auto movers = movable(s.own(), s.white | s.black);
    int count = 0;
    for (uint64_t any = movers[0] | movers[1] | movers[2] | movers[3]; any; any &= any - 1) {
      const int cell = std::countr_zero(any);
      for (int d = 0; d < 4; ++d)
        if (movers[d] >> cell & 1) actions[count++] = static_cast<int16_t>(kMove + 4 * cell + d);
    }
    return count ? count : list_bits(targets(s.other()), kChoose, actions);
  }

  static bool allows(const State& s, int a) {
    int16_t actions[kMostLegal];
    const int count = legal(s, actions);
    return std::binary_search(actions, actions + count, a);
  }

  static void apply(State& s, int a) {
    const bool counted = s.facts.phase != kPlace && s.facts.phase != kMark;
    const bool taken = counted && a >= kChoose && (a != kClear || s.marks);
    if (a < kMove)
      place(s, a);
    else if (a < kChoose)
      move(s, (a - kMove) / 4, (a - kMove) % 4);
    else if (a == kClear)
      clear(s);
    else if (s.facts.phase == kMark)
      mark(s, a - kChoose);
    else
      take(s, a - kChoose);
    s.facts.still = static_cast<uint8_t>(counted && !taken ? s.facts.still + 1 : 0);
    ++s.facts.plies;
    if (!s.facts.over && (s.facts.plies >= kLongest || s.facts.still >= kMostStill)) s.end(0);
  }

  static void observe(const State& s, int8_t* planes) {
    const uint64_t mine = s.own(), theirs = s.other();
    for (uint64_t x : {mine, theirs, mine & s.marks, theirs & s.marks}) {
      show_plane(x, kCells, planes);
      planes += kCells;
    }
    std::memset(planes, 0, kPhases * kCells);
    std::memset(planes + s.facts.phase * kCells, kOne, kCells);
  }

  static void observe_bits(const State& s, uint64_t* words) {
    const uint64_t mine = s.own(), theirs = s.other();
    show_bits(mine, kCells, 0, words);
    show_bits(theirs, kCells, kCells, words);
    show_bits(mine & s.marks, kCells, 2 * kCells, words);
    show_bits(theirs & s.marks, kCells, 3 * kCells, words);
    show_whole_plane<Liuzhou>(4 + s.facts.phase, words);
  }

  // White's stones less Black's, d: tan(2 d / 18) within [-1, 1].
  static float soft(const State& s) {
    static const std::array<float, 2 * 18 + 1> values = [] {
      std::array<float, 2 * 18 + 1> found;
      for (int d = -18; d <= 18; ++d) {
        const double angle = std::clamp(2 * d / 18.0, -1.5697963267948966, 1.5697963267948966);
        found[d + 18] = static_cast<float>(std::clamp(std::tan(angle), -1.0, 1.0));
      }
      return found;
    }();
    return values[std::popcount(s.white) - std::popcount(s.black) + 18];
  }

 private:
  static void pass(State& s) { s.facts.mover = static_cast<int8_t>(-s.facts.mover); }

  static void go_on(State& s, int8_t mover, Phase phase, int pending = 0) {
    s.facts.mover = mover, s.facts.phase = phase, s.facts.pending = static_cast<uint8_t>(pending);
  }

  static void place(State& s, int cell) {
    s.own() |= bit(cell);
    const int count = earned(s.own() & ~s.marks, cell);
    if (count && (s.other() & ~s.marks))
      go_on(s, s.facts.mover, kMark, count);
    else
      end_placement(s);
  }

  static void mark(State& s, int cell) {
    s.marks |= bit(cell);
    if (--s.facts.pending == 0 || !(s.other() & ~s.marks)) end_placement(s);
  }

  static void end_placement(State& s) {
    if ((s.white | s.black) == kBoard)
      go_on(s, kWhite, kRemoval);
    else
      go_on(s, static_cast<int8_t>(-s.facts.mover), kPlace);
  }

  static void clear(State& s) {
    if (!s.marks) return go_on(s, kWhite, kForced, 2);
    s.white &= ~s.marks, s.black &= ~s.marks, s.marks = 0;
    go_on(s, kWhite, kMoves);
    if (!s.white || !s.black) s.end(static_cast<int8_t>((s.white != 0) - (s.black != 0)));
  }

  static void move(State& s, int cell, int direction) {
    constexpr int kSteps[4] = {-kSide, kSide, -1, 1};
    const int to = cell + kSteps[direction];
    s.own() = (s.own() & ~bit(cell)) | bit(to);
    const int count = earned(s.own(), to);
    if (count)
      go_on(s, s.facts.mover, kCapture, count);
    else
      pass(s);
  }

  // A stone of the other side is taken: as captured, in forced removal, where the mover could not
  // move, or in answer to that.
  static void take(State& s, int cell) {
    s.other() &= ~bit(cell);
    const int8_t me = s.facts.mover, them = static_cast<int8_t>(-me);
    const int left = s.facts.pending - 1;
    if (!s.other()) return s.end(me);
    switch (s.facts.phase) {
      case kCapture:
        return left ? go_on(s, me, kCapture, left) : go_on(s, them, kMoves);
      case kForced:
        return left ? go_on(s, them, kForced, left) : go_on(s, kWhite, kMoves);
      case kCounter:
        return go_on(s, them, kMoves);
      default:
        return go_on(s, them, kCounter);
    }
  }
};

}  // namespace selfplay
