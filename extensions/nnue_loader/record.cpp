#include "record.h"

#include "attacks.h"

namespace nnue {
namespace {

constexpr uint64_t kEndRanks = 0xff000000000000ffu;

// Codes past the last piece, which a writer leaves 0.
bool codes_left(const Record& record, int pieces) {
  const uint64_t low = nibbles(record, 0), high = nibbles(record, 1);
  if (pieces < 16) return high || low >> (4 * pieces);
  return pieces < 32 && high >> (4 * (pieces - 16));
}

}  // namespace

Fault fault_of(const Record& record, const Board& board) {
  const int pieces = std::popcount(record.occupied);
  if (pieces > kPieces) return {"the board has %d pieces, of 32 at most", pieces};
  for (int code = kCodes; code < 16; ++code)
    if (board.of[code]) return {"a piece has the code %d, of 0 to 11", code};
  if (codes_left(record, pieces))
    return {"it has more codes than the board has pieces (%d)", pieces};
  for (int colour = 0; colour < 2; ++colour)
    if (const uint64_t kings = board.of[kKing + colour]; !kings || kings & (kings - 1))
      return {colour ? "the board has %d black kings, and one is needed"
                     : "the board has %d white kings, and one is needed",
              std::popcount(kings)};
  if (record.stm > 1) return {"the side to move is %d, of 0 (black) and 1 (white)", record.stm};
  if (record.result < -1 || record.result > 1)
    return {"the result is %d, of -1, 0 and 1", record.result};
  if (const uint64_t pawns = (board.of[0] | board.of[1]) & kEndRanks)
    return {"a pawn stands on square %d, of 8 to 55", std::countr_zero(pawns)};
  uint64_t all = 0;
  for (int code = 0; code < kCodes; code += 2) all |= board.of[code];
  const int white = std::popcount(all);
  if (white > 16) return {"white has %d pieces, of 16 at most", white};
  if (pieces - white > 16) return {"black has %d pieces, of 16 at most", pieces - white};
  for (int colour = 0; colour < 2; ++colour)
    if (const int pawns = std::popcount(board.of[colour]); pawns > kMostPawns / 2)
      return {colour ? "black has %d pawns, of 8 at most" : "white has %d pawns, of 8 at most",
              pawns};
  const int mover = record.stm ? 0 : 1, waiting = std::countr_zero(board.of[kKing + 1 - mover]);
  if (attacked(board, record.occupied, waiting, mover))
    return {"the king on square %d is in check and its side is not to move", waiting};
  return {};
}

}  // namespace nnue
