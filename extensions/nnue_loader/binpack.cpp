// Stockfish's .binpack: chunks of chains, a chain being a position and the moves and scores that
// follow it; experiments/nnue/DATA.md has the facts of the format.
#include <cstdio>

#include "attacks.h"
#include "nnue_loader.h"

namespace nnue {
namespace {

// Bad data; `text` may have one %d.
struct Broken {
  const char* text;
  int number = 0;
};

enum Kind { kNormal, kPromotion, kCastling, kEnPassant };

struct Move {
  int from = 0, to = 0, kind = kNormal, type = 0;  // type: 1 knight to 4 queen, of a promotion
};

// Castling rights by the rook's square: bits of a1, h1, a8, h8.
constexpr int kRooks[4] = {0, 7, 56, 63}, kKings[2] = {4, 60};

uint64_t bit(int square) { return uint64_t{1} << square; }

// The n-th lowest set bit's place.
int nth(uint64_t bits, int n) {
  for (; n; --n) bits &= bits - 1;
  return std::countr_zero(bits);
}

// A position with all that moves depend on.
class Position {
 public:
  Position() = default;

  // From 24 bytes: occupied squares, first byte highest, and four bits a piece, where 12 is a pawn
  // that can be taken en passant, 13 and 14 a rook that may castle, 15 the black king to move.
  explicit Position(const uint8_t* bytes) {
    uint64_t occupied = 0;
    for (int i = 0; i < 8; ++i) occupied = occupied << 8 | bytes[i];
    if (std::popcount(occupied) > kPieces) throw Broken{"the board has more than 32 pieces"};
    int i = 0;
    for (uint64_t rest = occupied; rest; rest &= rest - 1, ++i) {
      const int square = std::countr_zero(rest);
      put(square, bytes[8 + i / 2] >> (i % 2 * 4) & 15);
    }
    for (int side = 0; side < 2; ++side)
      if (std::popcount(board_.of[kKing + side]) != 1)
        throw Broken{"the board has %d kings of a side, and one is needed",
                     std::popcount(board_.of[kKing + side])};
  }

  uint64_t all(int side) const {
    uint64_t found = 0;
    for (int code = side; code < kCodes; code += 2) found |= board_.of[code];
    return found;
  }
  int side() const { return side_; }
  uint64_t occupied() const { return all(0) | all(1); }
  const Board& board() const { return board_; }

  int code_on(int square) const {
    for (int code = 0; code < kCodes; ++code)
      if (board_.of[code] & bit(square)) return code;
    return -1;
  }

  // Rights of the side to move: bit 0 to the a-file, bit 1 to the h-file.
  int rights() const { return rights_ >> (2 * side_) & 3; }

  // Squares that the chains' moves may name for the piece on `from`, of the side to move.
  uint64_t squares_from(int from) const {
    const int kind = code_on(from) / 2;
    const uint64_t own = all(side_), occupied = own | all(1 - side_), at = bit(from);
    switch (kind) {
      case 0: {
        const uint64_t other = all(1 - side_) | (passed_ < 0 ? 0 : bit(passed_));
        const uint64_t one = (side_ ? at >> 8 : at << 8) & ~occupied;
        const uint64_t start = side_ ? uint64_t{0xff} << 40 : uint64_t{0xff} << 16;
        const uint64_t two = (side_ ? (one & start) >> 8 : (one & start) << 8) & ~occupied;
        return one | two | (pawn_squares(at, 1 - side_) & other);
      }
      case 1:
        return knight_squares(at) & ~own;
      case 5:
        return king_squares(at) & ~own;
      default:
        return slider_squares(from, occupied, kind != 2, kind != 3) & ~own;
    }
  }

  int passed() const { return passed_; }

  void play(const Move& move) {
    const int code = code_on(move.from);
    if (code < 0 || code % 2 != side_)
      throw Broken{"a move begins on square %d, where nobody is", move.from};
    if (move.kind == kCastling) {
      castle(move, code);
    } else {
      if ((all(side_) | board_.of[kKing + 1 - side_]) & bit(move.to))
        throw Broken{"a move takes an own piece or a king, on square %d", move.to};
      if (move.kind == kEnPassant && move.to != passed_)
        throw Broken{"a move takes en passant on square %d, and may not", move.to};
      remove(move.kind == kEnPassant ? move.to ^ 8 : move.to);
      remove(move.from);
      board_.of[move.kind == kPromotion ? 2 * move.type + side_ : code] |= bit(move.to);
    }
    for (int i = 0; i < 4; ++i)
      if (move.from == kRooks[i] || move.to == kRooks[i] || move.from == kKings[i / 2])
        rights_ &= ~(1 << i);
    passed_ = -1;
    side_ = 1 - side_;
    const int way = move.to > move.from ? move.to - move.from : move.from - move.to;
    if (code < 2 && way == 16 && can_take((move.from + move.to) / 2, move.to))
      passed_ = (move.from + move.to) / 2;
  }

  void write(Record& record) const {
    record = {};
    record.occupied = occupied();
    record.stm = side_ == 0;
    int i = 0;
    for (uint64_t rest = record.occupied; rest; rest &= rest - 1, ++i)
      record.codes[i / 2] |= static_cast<uint8_t>(code_on(std::countr_zero(rest)) << (i % 2 * 4));
  }

 private:
  void put(int square, int nibble) {
    int code = nibble;
    if (nibble == 12) {
      const int rank = square / 8;
      if (rank != 3 && rank != 4) throw Broken{"a pawn to take en passant is on square %d", square};
      code = rank == 3 ? 0 : 1;
      passed_ = rank == 3 ? square - 8 : square + 8;
    } else if (nibble == 13 || nibble == 14) {
      code = nibble - 7;
      int i = 2 * (nibble - 13);
      if (square == kRooks[i + 1]) ++i;
      if (square != kRooks[i]) throw Broken{"a rook that may castle is on square %d", square};
      rights_ |= 1 << i;
    } else if (nibble == 15) {
      code = kKing + 1;
      side_ = 1;
    }
    board_.of[code] |= bit(square);
  }

  void remove(int square) {
    for (int code = 0; code < kCodes; ++code) board_.of[code] &= ~bit(square);
  }

  void castle(const Move& move, int code) {
    const int i = 2 * side_ + (move.to > move.from);
    if (!(rights_ >> i & 1) || move.from != kKings[side_] || move.to != kRooks[i])
      throw Broken{"a king castles to square %d, and may not", move.to};
    remove(move.from);
    remove(move.to);
    board_.of[code] |= bit(move.from + (i % 2 ? 2 : -2));
    board_.of[6 + side_] |= bit(move.from + (i % 2 ? 1 : -1));
  }

  // Tells if the side to move may take the pawn on `pawn` by a move to `passed`, its king safe.
  bool can_take(int passed, int pawn) const {
    const int own = kKing + side_, king = std::countr_zero(board_.of[own]);
    for (uint64_t from = pawn_squares(bit(passed), side_) & board_.of[side_]; from;
         from &= from - 1) {
      Board after = board_;
      after.of[1 - side_] &= ~bit(pawn);
      const uint64_t gone = bit(pawn) | (from & (~from + 1));
      if (!attacked(after, (occupied() & ~gone) | bit(passed), king, 1 - side_)) return true;
    }
    return false;
  }

  Board board_{};
  int side_ = 0;     // to move: 0 white, 1 black
  int passed_ = -1;  // the square that a pawn passed over and may be taken on
  int rights_ = 0;
};

// Bits of bytes, the highest first.
class Bits {
 public:
  Bits(const uint8_t* data, int64_t bytes) : data_(data), end_(8 * bytes) {}

  int take(int count) {
    int found = 0;
    for (; count; --count, ++at_) {
      if (at_ == end_) throw Broken{"the chunk ends within a chain"};
      found = found << 1 | (data_[at_ / 8] >> (7 - at_ % 8) & 1);
    }
    return found;
  }

  // One of `count` numbers, in as few bits as they need.
  int take_below(int count) {
    if (count < 1) throw Broken{"a piece without moves moves"};
    const int found = take(std::bit_width(static_cast<unsigned>(count - 1)));
    if (found >= count) throw Broken{"a move has the number %d, which is too large", found};
    return found;
  }

  // Four bits at a time, the lowest first, each after a bit that says if more follow.
  int take_blocks() {
    int found = 0;
    for (int shift = 0; shift < 16; shift += 4) {
      const int block = take(5);
      found |= (block & 15) << shift;
      if (block < 16) return found;
    }
    throw Broken{"a score has more than 16 bits"};
  }

  int64_t bytes() const { return (at_ + 7) / 8; }

 private:
  const uint8_t* data_;
  int64_t at_ = 0, end_;
};

int16_t signed_of(int value) {  // the sign is bit 0
  const int turned = (value << 15 | value >> 1) & 0xffff;
  return static_cast<int16_t>(turned & 0x8000 ? turned ^ 0x7fff : turned);
}

int pair_at(const uint8_t* bytes) { return bytes[0] << 8 | bytes[1]; }

Move move_at(const uint8_t* bytes) {
  const int word = pair_at(bytes);
  return {word >> 8 & 63, word >> 2 & 63, word >> 14, 1 + (word & 3)};
}

Move take_move(Bits& bits, const Position& position) {
  const uint64_t own = position.all(position.side());
  Move move;
  move.from = nth(own, bits.take_below(std::popcount(own)));
  const int kind = position.code_on(move.from) / 2;
  const uint64_t squares = position.squares_from(move.from);
  const int count = std::popcount(squares);
  if (kind == 5) {
    const int rights = position.rights();
    const int number = bits.take_below(count + std::popcount(static_cast<unsigned>(rights)));
    if (number >= count) {
      const int wing = number == count && rights & 1 ? 0 : 1;
      return {move.from, kRooks[2 * position.side() + wing], kCastling, 0};
    }
    move.to = nth(squares, number);
  } else if (kind == 0 && move.from / 8 == (position.side() ? 1 : 6)) {
    const int number = bits.take_below(4 * count);
    move = {move.from, nth(squares, number / 4), kPromotion, 1 + number % 4};
  } else {
    move.to = nth(squares, bits.take_below(count));
    if (kind == 0 && move.to == position.passed()) move.kind = kEnPassant;
  }
  return move;
}

class Reader {
 public:
  Reader(const uint8_t* data, int64_t bytes, nnue_binpack& at)
      : data_(data), bytes_(bytes), at_(at) {}

  // Reads a chain into records [room]; 0 where it does not fit or the data end.
  int64_t read(char* records, int64_t room) {
    while (at_.offset == at_.chunk_end && at_.offset < bytes_) begin_chunk();
    if (at_.offset == bytes_) return 0;
    if (at_.chunk_end - at_.offset < kStem + 2) throw Broken{"the chunk ends within a chain"};
    const uint8_t* stem = data_ + at_.offset;
    const int64_t moves = pair_at(stem + kStem);
    if (moves + 1 > room) return 0;
    Position position(stem);
    Bits bits(stem + kStem + 2, at_.chunk_end - at_.offset - kStem - 2);
    Move move = move_at(stem + 24);
    int score = signed_of(pair_at(stem + 26)), labels = pair_at(stem + 28);
    int result = signed_of(labels >> 14);
    const int64_t ply = labels & 0x3fff;
    if (at_.record && ply <= at_.ply) ++at_.game;
    for (int64_t i = 0;; ++i) {
      add(position, score, result, records + i * static_cast<int64_t>(sizeof(Record)));
      at_.ply = ply + i;
      if (i == moves) break;
      position.play(move);
      move = take_move(bits, position);
      score = static_cast<int16_t>(signed_of(bits.take_blocks()) - score);
      result = -result;
    }
    at_.offset += kStem + 2 + bits.bytes();
    return moves + 1;
  }

 private:
  static constexpr int64_t kStem = 32, kHead = 8;

  void begin_chunk() {
    const uint8_t* head = data_ + at_.offset;
    if (bytes_ - at_.offset < kHead) throw Broken{"the file ends within the head of a chunk"};
    if (std::memcmp(head, "BINP", 4)) throw Broken{"a chunk does not begin with BINP"};
    int64_t size = 0;
    for (int i = 3; i >= 0; --i) size = size << 8 | head[4 + i];
    if (size > bytes_ - at_.offset - kHead) throw Broken{"the file ends within a chunk"};
    at_.offset += kHead;
    at_.chunk_end = at_.offset + size;
  }

  void add(const Position& position, int score, int result, char* to) {
    Record record;
    position.write(record);
    record.score = static_cast<int16_t>(score);
    record.result = static_cast<int8_t>(result);
    record.game = at_.game;
    if (const Fault fault = fault_of(record, position.board()))
      throw Broken{fault.text, fault.number};
    std::memcpy(to, &record, sizeof record);
    ++at_.record;
  }

  const uint8_t* data_;
  int64_t bytes_;
  nnue_binpack& at_;
};

}  // namespace
}  // namespace nnue

extern "C" int64_t nnue_binpack_read(const uint8_t* data, int64_t bytes, nnue_binpack* binpack,
                                     void* records, int64_t capacity, char* error) {
  nnue::Reader reader(data, bytes, *binpack);
  char* out = static_cast<char*>(records);
  int64_t count = 0;
  try {
    while (const int64_t found = reader.read(out + count * 32, capacity - count)) count += found;
    return count;
  } catch (const nnue::Broken& broken) {
    const int said =
        std::snprintf(error, NNUE_ERROR_BYTES,
                      "record %lld, byte %lld: ", static_cast<long long>(binpack->record),
                      static_cast<long long>(binpack->offset));
    std::snprintf(error + said, static_cast<size_t>(NNUE_ERROR_BYTES - said), broken.text,
                  broken.number);
  }
  return -1;
}
