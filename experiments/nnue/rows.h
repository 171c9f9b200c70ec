// Rows of a feature set, as extensions/nnue_loader numbers them: of all 12 pieces on 64 squares, or
// of HalfKP, where a row depends on the own king's square and kings have none.
#pragma once

#include "chess.h"

constexpr int kNoRow = -1;

template <bool kHalfKP>
struct RowsOf {
  static constexpr bool kFollowsKing = kHalfKP;

  // The row of a piece, seen from a side whose king stands on `king`; kNoRow if it has none.
  static int row(int side, int king, int code, int square) {
    const int turned = side ? square ^ 56 : square, seen = code ^ side;
    if (!kHalfKP) return 64 * seen + turned;
    if (code / 2 == chess::kKing) return kNoRow;
    return 640 * (side ? king ^ 56 : king) + 64 * seen + turned;
  }
};
