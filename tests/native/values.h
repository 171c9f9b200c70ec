// Sizes and values kernels go wrong at, and a generator that draws the same ones everywhere.
#pragma once

#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "reference.h"

inline const std::vector<int> kSizes = {1,  2,  3,  4,  5,  7,  8,  9,   15,  16,
                                        17, 31, 32, 33, 63, 64, 65, 127, 128, 129};

// Of inputs that fill several sections, tiles and pairs of a product: fewer of them, as they take
// long.
inline const std::vector<int> kWide = {192, 256, 257, 512, 1024};

inline std::mt19937 chance(1);
inline int draw(int low, int high) { return low + static_cast<int>(chance() % (high - low + 1u)); }

// near: 107..127, whose products with `balanced` (in each row as many 127 as -127, shuffled, and a
// 0 where its length is odd) cancel, so that sums at the ends on the way come out unclipped.
enum class Fill { top, bottom, ones, alternating, ends, near, balanced, any };

inline int value(Fill how, size_t i) {
  switch (how) {
    case Fill::top:
      return 127;
    case Fill::bottom:
      return -127;
    case Fill::ones:
      return 2 * draw(0, 1) - 1;
    case Fill::alternating:
    case Fill::balanced:
      return i % 2 ? -127 : 127;
    case Fill::ends:
      return 254 * draw(0, 1) - 127;
    case Fill::near:
      return draw(107, 127);
    default:
      return draw(-127, 127);
  }
}

// Whole rows of `row` values.
inline Bytes fill(Fill how, size_t count, size_t row) {
  Bytes out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<int8_t>(value(how, i % row));
  for (size_t first = 0; how == Fill::balanced && first < count; first += row) {
    if (row % 2) out[first + row - 1] = 0;
    for (size_t i = 1; i < row; ++i) std::swap(out[first + i], out[first + chance() % (i + 1)]);
  }
  return out;
}

inline Bytes fill(Fill how, size_t count) { return fill(how, count, count); }
