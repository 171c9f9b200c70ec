// Active rows of a board, as one side sees it.
#pragma once

#include "nnue_loader.h"
#include "record.h"

namespace nnue {

constexpr int kBoardRows = 12 * 64, kHalfKpRows = 64 * 640, kPRows = 640, kKRows = 64;
constexpr int kRelativeRows = 10 * 15 * 15, kPairRows = 96 * 95 / 2, kMostPairs = 16 * 15 / 2;

// The rows of all blocks of a set.
inline int rows_of(int features) {
  return (features & NNUE_768 ? kBoardRows : 0) + (features & NNUE_HALFKP ? kHalfKpRows : 0) +
         (features & NNUE_P ? kPRows : 0) + (features & NNUE_K ? kKRows : 0) +
         (features & NNUE_RELATIVE ? kRelativeRows : 0) + (features & NNUE_PAIRS ? kPairRows : 0);
}

// The most active rows of a position, for one side.
inline int most_active(int features) {
  return (features & NNUE_768 ? kPieces : 0) + (features & NNUE_K ? 1 : 0) +
         (features & NNUE_PAIRS ? kMostPairs : 0) +
         kMostActive * std::popcount(static_cast<unsigned>(features &
                                                           (NNUE_HALFKP | NNUE_P | NNUE_RELATIVE)));
}

// Writes the active rows of a good record's board as a colour (0 white, 1 black) sees it,
// ascending, and their values where `counts` is not NULL; returns how many.
int list_rows(const Board& board, int colour, int features, int32_t* index, int8_t* counts);

}  // namespace nnue
