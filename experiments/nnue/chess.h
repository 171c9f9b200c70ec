// Positions of chess, their moves, and what a move changes on the board: for evaluations that are
// kept up to date. Squares are a1 = 0, b1 = 1 ... h8 = 63; a piece's code is 2 * type + (0 white,
// 1 black), types pawn, knight, bishop, rook, queen, king.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace chess {

enum : int8_t { kNone = -1, kPawn = 0, kKnight, kBishop, kRook, kQueen, kKing };

using Move = uint16_t;  // from, 64 * to, 4096 * piece that a pawn becomes (0: none)
constexpr int from_of(Move m) { return m & 63; }
constexpr int to_of(Move m) { return m >> 6 & 63; }
constexpr int promotion_of(Move m) { return m >> 12; }

inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Squares that a piece reaches: a ray for each direction, rook's first; a step for others.
struct Reach {
  struct Squares {
    int8_t n = 0, to[8] = {};
  };
  Squares ray[64][8], knight[64], king[64];

  Reach() {
    constexpr int way[8][2] = {{1, 0}, {-1, 0}, {0, 1},  {0, -1},
                               {1, 1}, {1, -1}, {-1, 1}, {-1, -1}};
    constexpr int jump[8][2] = {{1, 2},   {2, 1},   {2, -1}, {1, -2},
                                {-1, -2}, {-2, -1}, {-2, 1}, {-1, 2}};
    for (int s = 0; s < 64; ++s)
      for (int d = 0; d < 8; ++d) {
        add(knight[s], s, jump[d][0], jump[d][1]);
        add(king[s], s, way[d][0], way[d][1]);
        for (int i = 1; i < 8; ++i) add(ray[s][d], s, i * way[d][0], i * way[d][1]);
      }
  }

 private:
  static void add(Squares& to, int s, int file, int rank) {
    const int f = s % 8 + file, r = s / 8 + rank;
    if (f >= 0 && f < 8 && r >= 0 && r < 8) to.to[to.n++] = static_cast<int8_t>(8 * r + f);
  }
};

inline const Reach& reach() {
  static const Reach made;
  return made;
}

// What a move takes off the board and puts on it.
struct Changes {
  struct One {
    int8_t code, square, sign;
  };
  int n = 0;
  One of[5];

  void note(int code, int square, int sign) {
    of[n++] = {static_cast<int8_t>(code), static_cast<int8_t>(square), static_cast<int8_t>(sign)};
  }
};

struct Position {
  int8_t at[64];           // code or kNone
  int8_t king[2];          // squares
  int8_t side = 0;         // 0: white moves
  int8_t castling = 0;     // bits: white short, white long, black short, black long
  int8_t passant = kNone;  // the square behind a pawn that moved two
  int16_t quiet = 0;       // plies without capture or pawn move
  uint64_t key = 0;        // of the pieces

  uint64_t whole_key() const {
    const int may = passant == kNone ? 0 : 1 + passant % 8;
    return key ^ mixed(static_cast<uint64_t>(1000 + side + 2 * castling + 32 * may));
  }

  void put(int code, int square, Changes* changes) {
    at[square] = static_cast<int8_t>(code);
    key ^= mixed(static_cast<uint64_t>(code * 64 + square));
    if (code / 2 == kKing) king[code & 1] = static_cast<int8_t>(square);
    if (changes) changes->note(code, square, 1);
  }

  int lift(int square, Changes* changes) {
    const int code = at[square];
    at[square] = kNone;
    key ^= mixed(static_cast<uint64_t>(code * 64 + square));
    if (changes) changes->note(code, square, -1);
    return code;
  }

  bool attacked(int square, int by) const {
    const Reach& r = reach();
    const int back = by ? 8 : -8;  // where a pawn that attacks stands
    for (int file : {-1, 1}) {
      const int f = square % 8 + file, s = square + back + file;
      if (f >= 0 && f < 8 && s >= 0 && s < 64 && at[s] == 2 * kPawn + by) return true;
    }
    for (int i = 0; i < r.knight[square].n; ++i)
      if (at[r.knight[square].to[i]] == 2 * kKnight + by) return true;
    for (int d = 0; d < 8; ++d) {
      const auto& ray = r.ray[square][d];
      for (int i = 0; i < ray.n; ++i) {
        const int code = at[ray.to[i]];
        if (code == kNone) continue;
        const int type = code / 2;
        if ((code & 1) == by &&
            (type == kQueen || type == (d < 4 ? kRook : kBishop) || (i == 0 && type == kKing)))
          return true;
        break;
      }
    }
    return false;
  }

  bool in_check(int colour) const { return attacked(king[colour], !colour); }

  // Plays a move that `moves` gave.
  void make(Move m, Changes* changes) {
    const int from = from_of(m), to = to_of(m), type = at[from] / 2;
    const bool passing = type == kPawn && to == passant;
    const int taken = passing ? to + (side ? 8 : -8) : to;
    ++quiet;
    if (at[taken] != kNone) lift(taken, changes), quiet = 0;
    const int code = lift(from, changes);
    put(promotion_of(m) ? 2 * promotion_of(m) + side : code, to, changes);
    if (type == kPawn) quiet = 0;
    if (type == kKing && (to - from == 2 || from - to == 2)) {
      const bool shorter = to > from;
      const int rook = lift(shorter ? from + 3 : from - 4, changes);
      put(rook, shorter ? from + 1 : from - 1, changes);
    }
    passant = static_cast<int8_t>(
        type == kPawn && (to - from == 16 || from - to == 16) ? (from + to) / 2 : kNone);
    for (int square : {from, to}) {
      if (square == 4 || square == 7) castling &= ~1;
      if (square == 4 || square == 0) castling &= ~2;
      if (square == 60 || square == 63) castling &= ~4;
      if (square == 60 || square == 56) castling &= ~8;
    }
    side ^= 1;
  }

  // Moves that may leave the king in check; captures and promotions alone if so asked.
  int pseudo_moves(Move* to, bool captures) const {
    Move* const first = to;
    const Reach& r = reach();
    for (int s = 0; s < 64; ++s) {
      if (at[s] == kNone || (at[s] & 1) != side) continue;
      const int type = at[s] / 2;
      if (type == kPawn) to = pawn_moves(s, to, captures);
      if (type == kKnight) to = steps(s, r.knight[s], to, captures);
      if (type == kKing) to = steps(s, r.king[s], to, captures);
      const int begin = type == kBishop ? 4 : 0, end = type == kRook ? 4 : 8;
      for (int d = begin; (type == kBishop || type == kRook || type == kQueen) && d < end; ++d)
        to = slide(s, r.ray[s][d], to, captures);
    }
    if (!captures) to = castlings(to);
    return static_cast<int>(to - first);
  }

  int moves(Move* to, bool captures = false) const {
    Move all[256];
    const int n = pseudo_moves(all, captures);
    int legal = 0;
    for (int i = 0; i < n; ++i) {
      Position next = *this;
      next.make(all[i], nullptr);
      if (!next.in_check(side)) to[legal++] = all[i];
    }
    return legal;
  }

  // Kings, and a bishop or knight at most.
  bool insufficient() const {
    int minor = 0;
    for (int8_t code : at) {
      if (code == kNone || code / 2 == kKing) continue;
      if (code / 2 != kKnight && code / 2 != kBishop) return false;
      ++minor;
    }
    return minor < 2;
  }

 private:
  static Move* add(Move* to, int from, int square) {
    *to = static_cast<Move>(from | square << 6);
    return to + 1;
  }

  Move* steps(int s, const Reach::Squares& squares, Move* to, bool captures) const {
    for (int i = 0; i < squares.n; ++i) {
      const int code = at[squares.to[i]];
      if (code == kNone ? !captures : (code & 1) != side) to = add(to, s, squares.to[i]);
    }
    return to;
  }

  Move* slide(int s, const Reach::Squares& ray, Move* to, bool captures) const {
    for (int i = 0; i < ray.n; ++i) {
      const int code = at[ray.to[i]];
      if (code == kNone ? !captures : (code & 1) != side) to = add(to, s, ray.to[i]);
      if (code != kNone) break;
    }
    return to;
  }

  Move* pawn_to(int s, int square, Move* to) const {
    if (square >= 8 && square < 56) return add(to, s, square);
    for (int piece = kQueen; piece >= kKnight; --piece)
      *to++ = static_cast<Move>(s | square << 6 | piece << 12);
    return to;
  }

  Move* pawn_moves(int s, Move* to, bool captures) const {
    const int ahead = side ? -8 : 8, last = side ? 0 : 7;
    if (at[s + ahead] == kNone) {
      const bool promotes = (s + ahead) / 8 == last;
      if (promotes || !captures) to = pawn_to(s, s + ahead, to);
      if (!captures && s / 8 == (side ? 6 : 1) && at[s + 2 * ahead] == kNone)
        to = add(to, s, s + 2 * ahead);
    }
    for (int file : {-1, 1}) {
      const int f = s % 8 + file, square = s + ahead + file;
      if (f < 0 || f > 7) continue;
      const int code = at[square];
      if ((code != kNone && (code & 1) != side) || (square == passant && code == kNone))
        to = pawn_to(s, square, to);
    }
    return to;
  }

  Move* castlings(Move* to) const {
    const int home = side ? 60 : 4, mine = castling >> 2 * side & 3, other = !side;
    if (!mine || attacked(home, other)) return to;
    if (mine & 1 && at[home + 1] == kNone && at[home + 2] == kNone && !attacked(home + 1, other))
      to = add(to, home, home + 2);
    if (mine & 2 && at[home - 1] == kNone && at[home - 2] == kNone && at[home - 3] == kNone &&
        !attacked(home - 1, other))
      to = add(to, home, home - 2);
    return to;
  }
};

// A position of a FEN; false if it is none, or has not one king on either side.
inline bool read_fen(const char* fen, Position* to) {
  static const char letters[] = "PpNnBbRrQqKk";
  Position p;
  std::memset(p.at, kNone, sizeof p.at);
  int file = 0, rank = 7, kings[2] = {0, 0};
  for (; *fen && *fen != ' '; ++fen) {
    if (*fen == '/') {
      file = 0, --rank;
    } else if (*fen >= '1' && *fen <= '8') {
      file += *fen - '0';
    } else {
      const char* found = std::strchr(letters, *fen);
      if (!found || file > 7 || rank < 0) return false;
      const int code = static_cast<int>(found - letters);
      if (code / 2 == kPawn && (rank == 0 || rank == 7)) return false;
      if (code / 2 == kKing) ++kings[code & 1];
      p.put(code, 8 * rank + file++, nullptr);
    }
  }
  if (rank != 0 || kings[0] != 1 || kings[1] != 1 || *fen++ != ' ') return false;
  p.side = *fen++ == 'b';
  while (*fen == ' ') ++fen;
  for (; *fen && *fen != ' '; ++fen)
    if (const char* found = std::strchr("KQkq", *fen))
      p.castling = static_cast<int8_t>(p.castling | 1 << (found - "KQkq"));
  for (int i = 0; i < 4; ++i) {  // none without its king and rook at home
    const int home = i / 2 * 56, rook = home + (i % 2 ? 0 : 7);
    if (p.at[home + 4] != 2 * kKing + i / 2 || p.at[rook] != 2 * kRook + i / 2)
      p.castling = static_cast<int8_t>(p.castling & ~(1 << i));
  }
  while (*fen == ' ') ++fen;
  if (fen[0] >= 'a' && fen[0] <= 'h' && fen[1] >= '1' && fen[1] <= '8')
    p.passant = static_cast<int8_t>(fen[0] - 'a' + 8 * (fen[1] - '1'));
  *to = p;
  return true;
}

inline int64_t perft(const Position& p, int depth) {
  Move list[256];
  const int n = p.moves(list);
  if (depth <= 1) return depth == 1 ? n : 1;
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    Position next = p;
    next.make(list[i], nullptr);
    sum += perft(next, depth - 1);
  }
  return sum;
}

}  // namespace chess
