// A position of 32 bytes, its board as sets of squares, and what makes it bad.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace nnue {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr int kCodes = 12, kKing = 10;  // of white's view: white even, black odd
constexpr int kCountBits = 5;
constexpr int kPieces = 32, kMostPawns = 16,
              kMostActive = kPieces - 2;  // kings are no features of HalfKP

struct Record {
  uint64_t occupied;  // bit s: a piece stands on square s
  uint8_t codes[16];  // of the pieces in the order of their squares, four bits each, low half first
  int16_t score;      // centipawns, from the side to move
  uint8_t stm;        // 1: white moves, 0: black
  int8_t result;      // -1, 0, 1 from the side to move
  uint32_t game;
};
static_assert(sizeof(Record) == 32);

struct Board {
  uint64_t of[16];   // squares of each code; 12 to 15 are none
  uint8_t code[64];  // of the piece on a square, 0 where there is none
  uint64_t counts;   // kCountBits each: pieces of the codes 0 to 11, of a good record
};

inline uint64_t nibbles(const Record& record, int half) {
  uint64_t word;
  std::memcpy(&word, record.codes + 8 * half, 8);
  return word;
}

inline Board board_of(const Record& record) {
  Board board{};
  uint64_t rest = record.occupied, counts = 0;
  for (int half = 0; half < 2 && rest; ++half) {
    uint64_t word = nibbles(record, half);
    for (int i = 0; i < 16 && rest; ++i, word >>= 4, rest &= rest - 1) {
      const uint8_t code = word & 15;
      board.of[code] |= rest & (~rest + 1);
      board.code[std::countr_zero(rest)] = code;
      counts += uint64_t{1} << (kCountBits * code & 63);
    }
  }
  board.counts = counts;
  return board;
}

// What is wrong with a record, "" if nothing is, and a number for it: "%d white kings", 2.
struct Fault {
  const char* text = "";
  int number = 0;
  explicit operator bool() const { return *text; }
};

Fault fault_of(const Record& record, const Board& board);

}  // namespace nnue
