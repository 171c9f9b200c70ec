// Evaluation by a float network of FLOAT_ROWS features, FLOAT_WIDTH and FLOAT_HIDDEN: thousandths
// of a logit.
#pragma once

#include <algorithm>
#include <cmath>

#include "rows.h"

struct Evaluator : RowsOf<(FLOAT_ROWS > 768)> {
  static constexpr int kWidth = FLOAT_WIDTH, kHidden = FLOAT_HIDDEN;
  struct Sums {
    alignas(64) float side[2][kWidth];
  };
  const float *ft, *bias, *w1, *b1, *w2, *b2;

  explicit Evaluator(const void* flat) {
    ft = static_cast<const float*>(flat);
    bias = ft + static_cast<int64_t>(FLOAT_ROWS) * kWidth;
    w1 = bias + kWidth;
    b1 = w1 + 2 * kWidth * kHidden;
    w2 = b1 + kHidden;
    b2 = w2 + kHidden;
  }

  void refresh(const chess::Position& p, int side, Sums& sums) const {
    std::copy(bias, bias + kWidth, sums.side[side]);
    for (int square = 0; square < 64; ++square)
      if (p.at[square] != chess::kNone) change(side, p.king[side], p.at[square], square, 1, sums);
  }

  void change(int side, int king, int code, int square, int sign, Sums& sums) const {
    const int found = row(side, king, code, square);
    if (found == kNoRow) return;
    const float* from = ft + static_cast<int64_t>(found) * kWidth;
    const float by = static_cast<float>(sign);
    for (int i = 0; i < kWidth; ++i) sums.side[side][i] += by * from[i];
  }

  static float clamp(float x) { return std::min(std::max(x, 0.0f), 1.0f); }

  int32_t value(const Sums& sums, int mover) const {
    float x[2 * kWidth], y = *b2;
    for (int i = 0; i < kWidth; ++i) {
      x[i] = clamp(sums.side[mover][i]);
      x[kWidth + i] = clamp(sums.side[!mover][i]);
    }
    for (int n = 0; n < kHidden; ++n) {
      float sum = b1[n];
      for (int i = 0; i < 2 * kWidth; ++i) sum += w1[n * 2 * kWidth + i] * x[i];
      y += w2[n] * clamp(sum);
    }
    return static_cast<int32_t>(std::lround(1000 * y));
  }
};
