// Squares that pieces reach.
#pragma once

#include "record.h"

namespace nnue {

constexpr uint64_t kFileA = 0x0101010101010101u, kFileH = kFileA << 7;

// Squares of the eight directions from a square; the first four lead to higher squares.
struct Rays {
  uint64_t of[8][64];
};

constexpr Rays make_rays() {
  constexpr int kFiles[8] = {1, 0, 1, -1, -1, 0, -1, 1}, kRanks[8] = {0, 1, 1, 1, 0, -1, -1, -1};
  Rays rays{};
  for (int d = 0; d < 8; ++d)
    for (int square = 0; square < 64; ++square) {
      int file = square % 8 + kFiles[d], rank = square / 8 + kRanks[d];
      for (; file >= 0 && file < 8 && rank >= 0 && rank < 8; file += kFiles[d], rank += kRanks[d])
        rays.of[d][square] |= uint64_t{1} << (rank * 8 + file);
    }
  return rays;
}

inline constexpr Rays kRays = make_rays();

inline uint64_t knight_squares(uint64_t at) {
  const uint64_t one = (at & ~kFileH) << 1 | (at & ~kFileA) >> 1;
  const uint64_t two = (at & ~(kFileH | kFileH >> 1)) << 2 | (at & ~(kFileA | kFileA << 1)) >> 2;
  return one << 16 | one >> 16 | two << 8 | two >> 8;
}

inline uint64_t king_squares(uint64_t at) {
  const uint64_t row = at | (at & ~kFileH) << 1 | (at & ~kFileA) >> 1;
  return (row | row << 8 | row >> 8) & ~at;
}

// Squares from which a pawn of the colour reaches `at`.
inline uint64_t pawn_squares(uint64_t at, int colour) {
  return colour == 0 ? (at & ~kFileA) >> 9 | (at & ~kFileH) >> 7
                     : (at & ~kFileH) << 9 | (at & ~kFileA) << 7;
}

// Squares that a slider reaches from a square, the first piece of each direction among them.
inline uint64_t slider_squares(int square, uint64_t occupied, bool straight, bool diagonal) {
  uint64_t found = 0;
  for (int d = 0; d < 8; ++d) {
    if (!(d % 4 < 2 ? straight : diagonal)) continue;
    const uint64_t ray = kRays.of[d][square], stops = ray & occupied;
    found |= ray;
    if (!stops) continue;
    found ^= kRays.of[d][d < 4 ? std::countr_zero(stops) : 63 - std::countl_zero(stops)];
  }
  return found;
}

// Tells if pieces of the colour `by` reach a square.
inline bool attacked(const Board& board, uint64_t occupied, int square, int by) {
  const uint64_t* of = board.of + by;
  const uint64_t at = uint64_t{1} << square;
  if (pawn_squares(at, by) & of[0] || knight_squares(at) & of[2] || king_squares(at) & of[10])
    return true;
  const uint64_t straight = of[6] | of[8], diagonal = of[4] | of[8];
  for (int d = 0; d < 8; ++d) {
    const uint64_t sliders = d % 4 < 2 ? straight : diagonal;
    const uint64_t ray = kRays.of[d][square];
    if (!(ray & sliders)) continue;
    const uint64_t stops = ray & occupied;
    const uint64_t first = d < 4 ? stops & (~stops + 1) : std::bit_floor(stops);
    if (first & sliders) return true;
  }
  return false;
}

}  // namespace nnue
