#include "active_rows.h"

namespace nnue {
namespace {

// A board as one side sees it: own codes even, for black the ranks turned over.
class Side {
 public:
  Side(const Board& board, int colour)
      : board_(board),
        colour_(colour),
        turn_(colour ? 56 : 0),
        king_(std::countr_zero(board.of[kKing + colour]) ^ turn_) {
    uint64_t counts = board.counts;
    if (colour) counts = (counts & kEven) << kCountBits | (counts >> kCountBits & kEven);
    before_ = (counts << kCountBits) * kOnes;
    for (int code = 0; code < kKing; ++code) pieces_ |= board.of[code];
    pieces_ = seen(pieces_);
  }

  int king() const { return king_; }
  uint64_t of(int code) const { return seen(board_.of[code ^ colour_]); }
  // Squares and number of all pieces but the kings.
  uint64_t pieces() const { return pieces_; }
  int count() const { return static_cast<int>(before_ >> kCountBits * kKing & kMask); }
  uint64_t occupied() const { return pieces_ | of(kKing) | of(kKing + 1); }

  // Writes the rows of pieces in the order of their codes and, within one, of the bits; bit b
  // stands for the piece on square_of(b), whose row is row(code, b). One loop over all of them: one
  // for each code would have as many ends that no processor foresees.
  template <class Square, class Row>
  void list(uint64_t bits, Square square_of, Row row, int32_t* at) const {
    for (uint64_t next = before_; bits; bits &= bits - 1) {
      const int bit = std::countr_zero(bits), code = board_.code[square_of(bit) ^ turn_] ^ colour_;
      const int lane = kCountBits * code;
      at[next >> lane & kMask] = row(code, bit);
      next += uint64_t{1} << lane;
    }
  }

  // The same where bits are squares, and rows are first + 64 * code + square.
  void list_squares(uint64_t squares, int32_t first, int32_t* at) const {
    list(
        squares, [](int square) { return square; },
        [first](int code, int square) { return first + 64 * code + square; }, at);
  }

 private:
  // As Board::counts: 1 in each number, and all bits of those of the even codes.
  static constexpr uint64_t kOnes = 0x0084210842108421u, kEven = 0x007c1f07c1f07c1fu;
  static constexpr int kMask = (1 << kCountBits) - 1;

  uint64_t seen(uint64_t squares) const { return turn_ ? __builtin_bswap64(squares) : squares; }

  const Board& board_;
  int colour_, turn_, king_;
  uint64_t pieces_ = 0, before_;  // before_: as Board::counts, pieces with smaller codes
};

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
void list_relative(const Side& side, int32_t first, int32_t* at) {
  first += (7 - side.king() % 8) * 15 + 7 - side.king() / 8;
  side.list(
      exchanged(side.pieces()), [](int bit) { return bit % 8 * 8 + bit / 8; },  // 8 * file + rank
      [first](int code, int bit) { return first + 15 * 15 * code + bit / 8 * 15 + bit % 8; }, at);
}

int32_t* put_squares(uint64_t squares, int32_t first, int32_t* at) {
  for (; squares; squares &= squares - 1) *at++ = first + std::countr_zero(squares);
  return at;
}

// Pairs of pawns, those of the own side first; a record has 16 pawns at most.
int32_t* list_pairs(const Side& side, int32_t first, int32_t* at) {
  int32_t pawns[kMostPawns];
  const int32_t* const all = put_squares(side.of(1), 48 - 8, put_squares(side.of(0), -8, pawns));
  for (const int32_t* j = pawns; j != all; ++j)
    for (const int32_t* i = pawns; i != j; ++i) *at++ = first + *j * (*j - 1) / 2 + *i;
  return at;
}

}  // namespace

int list_rows(const Board& board, int colour, int features, int32_t* index, int8_t* counts) {
  const Side side(board, colour);
  const int pieces = side.count();
  int32_t first = 0, *at = index;
  if (features & NNUE_768) {
    side.list_squares(side.occupied(), first, at);
    at += pieces + 2;
    first += kBoardRows;
  }
  if (features & NNUE_HALFKP) {
    side.list_squares(side.pieces(), first + side.king() * kPRows, at);
    at += pieces;
    first += kHalfKpRows;
  }
  if (features & NNUE_P) {
    if (features & NNUE_HALFKP) {  // the same rows without the king
      const int32_t shift = kHalfKpRows - side.king() * kPRows;
      for (int i = 0; i < pieces; ++i) at[i] = at[i - pieces] + shift;
    } else {
      side.list_squares(side.pieces(), first, at);
    }
    at += pieces;
    first += kPRows;
  }
  int32_t* factor = nullptr;
  if (features & NNUE_K) {
    if (pieces) *(factor = at++) = first + side.king();
    first += kKRows;
  }
  if (features & NNUE_RELATIVE) {
    list_relative(side, first, at);
    at += pieces;
    first += kRelativeRows;
  }
  if (features & NNUE_PAIRS) at = list_pairs(side, first, at);
  const int64_t active = at - index;
  if (counts) {
    std::memset(counts, 1, static_cast<size_t>(active));
    if (factor) counts[factor - index] = static_cast<int8_t>(pieces);
  }
  return static_cast<int>(active);
}

}  // namespace nnue
