#include "active_rows.h"

namespace nnue {
namespace {

// Rows first + code * squares + square of the codes below `codes`.
int32_t* list_squares(const uint64_t* of, int codes, int32_t first, int32_t* at) {
  for (int code = 0; code < codes; ++code, first += 64)
    for (uint64_t rest = of[code]; rest; rest &= rest - 1) *at++ = first + std::countr_zero(rest);
  return at;
}

// The board with files and ranks exchanged, by swaps of ever larger blocks.
uint64_t exchanged(uint64_t x) {
  uint64_t t = 0x00aa00aa00aa00aau & (x ^ x >> 7);
  x ^= t ^ t << 7;
  t = 0x0000cccc0000ccccu & (x ^ x >> 14);
  x ^= t ^ t << 14;
  t = 0x00000000f0f0f0f0u & (x ^ x >> 28);
  return x ^ t ^ t << 28;
}

// Files go before ranks in a row's number, hence the exchange: the rows are to ascend.
int32_t* list_relative(const Board& seen, int king, int32_t first, int32_t* at) {
  const int32_t middle = (7 - king % 8) * 15 + 7 - king / 8;
  for (int code = 0; code < kKing; ++code, first += 15 * 15)
    for (uint64_t rest = exchanged(seen.of[code]); rest; rest &= rest - 1) {
      const int square = std::countr_zero(rest);  // 8 * file + rank
      *at++ = first + middle + square / 8 * 15 + square % 8;
    }
  return at;
}

// Pairs of pawns, those of the own side first; a record has 16 pawns at most.
int32_t* list_pairs(const Board& seen, int32_t first, int32_t* at) {
  int32_t pawns[kMostPawns];
  const int32_t* const end = list_squares(seen.of, 1, -8, pawns);
  const int32_t* const all = list_squares(seen.of + 1, 1, 48 - 8, pawns + (end - pawns));
  for (const int32_t* j = pawns; j != all; ++j)
    for (const int32_t* i = pawns; i != j; ++i) *at++ = first + *j * (*j - 1) / 2 + *i;
  return at;
}

}  // namespace

int list_rows(const Board& seen, int features, int32_t* index, int8_t* counts) {
  const int king = std::countr_zero(seen.of[kKing]);
  int32_t first = 0, *at = index;
  if (features & NNUE_768) {
    at = list_squares(seen.of, kCodes, first, at);
    first += kBoardRows;
  }
  const int32_t* half = at;
  const int32_t shift = first + king * kPRows;
  if (features & NNUE_HALFKP) {
    at = list_squares(seen.of, kKing, shift, at);
    first += kHalfKpRows;
  }
  if (features & NNUE_P) {
    if (const int64_t n = at - half) {  // the same rows without the king
      for (int64_t i = 0; i < n; ++i) at[i] = half[i] - shift + first;
      at += n;
    } else {
      at = list_squares(seen.of, kKing, first, at);
    }
    first += kPRows;
  }
  int32_t* factor = nullptr;
  int pieces = 0;
  if (features & NNUE_K) {
    uint64_t all = 0;
    for (int code = 0; code < kKing; ++code) all |= seen.of[code];
    pieces = std::popcount(all);
    if (pieces) *(factor = at++) = first + king;
    first += kKRows;
  }
  if (features & NNUE_RELATIVE) {
    at = list_relative(seen, king, first, at);
    first += kRelativeRows;
  }
  if (features & NNUE_PAIRS) at = list_pairs(seen, first, at);
  const int64_t active = at - index;
  if (counts) {
    std::memset(counts, 1, static_cast<size_t>(active));
    if (factor) counts[factor - index] = static_cast<int8_t>(pieces);
  }
  return static_cast<int>(active);
}

}  // namespace nnue
