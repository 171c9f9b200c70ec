// Evaluation by an exported int8 network, whose header net.h the caller's -I names. NET_ROWS is the
// number of its features.
#pragma once

#include <cstdint>

#include "net.h"
#include "rows.h"

struct Evaluator : RowsOf<(NET_ROWS > 768)> {
  struct Sums {
    alignas(64) int16_t side[2][NET_SUMS];
  };
  int32_t offset;  // what is added to the value

  explicit Evaluator(const void* given) : offset(*static_cast<const int32_t*>(given)) {}

  void refresh(const chess::Position& p, int side, Sums& sums) const {
    int32_t index[NET_FEATURES / NET_LISTS];
    int n = 0;
    for (int square = 0; square < 64; ++square)
      if (p.at[square] != chess::kNone) {
        const int found = row(side, p.king[side], p.at[square], square);
        if (found != kNoRow) index[n++] = found;
      }
    while (n < NET_FEATURES / NET_LISTS) index[n++] = -1;
    net_refresh(0, index, sums.side[side]);
  }

  void change(int side, int king, int code, int square, int sign, Sums& sums) const {
    const int found = row(side, king, code, square);
    if (found == kNoRow) return;
    (sign > 0 ? net_add : net_remove)(0, found, sums.side[side]);
  }

  int32_t value(const Sums& sums, int mover) const {
    const int16_t* const lists[2] = {sums.side[mover], sums.side[!mover]};
    int32_t found;
    net_step_sums(lists, &found);
    return found + offset;
  }
};
