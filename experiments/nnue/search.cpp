// A searcher of fixed depth with captures followed to their end, over an evaluation whose sums are
// kept up to date move by move. EVALUATOR names the header that has struct Evaluator:
//
//   Sums                            of both sides
//   kFollowsKing                    whether a side's sums are new when its king moves
//   refresh(position, side, sums)   a side's sums from the whole board
//   change(side, king, code, square, sign, sums)
//   value(sums, mover)              larger is better for the side to move
#include <algorithm>
#include <new>
#include <vector>

#include "chess.h"
#include "eggroll_world.h"
#include EVALUATOR

namespace {

using chess::Changes;
using chess::Move;
using chess::Position;

constexpr int32_t kMate = 1 << 28;
constexpr int kLongest = 64;  // plies below the root, captures included

struct Node {
  Position position;
  Evaluator::Sums sums;
};

struct Game {
  Evaluator evaluator;
  Node now{};
  std::vector<uint64_t> keys;  // of all positions so far, the present one too
  int64_t evaluations = 0;

  explicit Game(const void* net) : evaluator(net) {}

  bool begin(const char* fen) {
    if (!chess::read_fen(fen, &now.position)) return false;
    refresh(now);
    keys.assign(1, now.position.whole_key());
    return true;
  }

  void refresh(Node& node) const {
    for (int side : {0, 1}) evaluator.refresh(node.position, side, node.sums);
  }

  // The node after a move, its sums by the difference.
  void step(const Node& from, Move move, Node& to) const {
    Changes changes;
    const int mover = from.position.side;
    const bool king = from.position.at[chess::from_of(move)] / 2 == chess::kKing;
    to.position = from.position;
    to.position.make(move, &changes);
    to.sums = from.sums;
    for (int side : {0, 1}) {
      if (Evaluator::kFollowsKing && king && side == mover) {
        evaluator.refresh(to.position, side, to.sums);
        continue;
      }
      const int at = to.position.king[side];
      for (int i = 0; i < changes.n; ++i) {
        const auto& [code, square, sign] = changes.of[i];
        evaluator.change(side, at, code, square, sign, to.sums);
      }
    }
  }

  int32_t evaluate(const Node& node) {
    ++evaluations;
    return evaluator.value(node.sums, node.position.side);
  }

  void play(Move move) {
    Node next;
    step(now, move, next);
    now = next;
    keys.push_back(now.position.whole_key());
  }

  int seen(uint64_t key) const {
    return static_cast<int>(std::count(keys.begin(), keys.end(), key));
  }

  // 0: goes on, 1: the side to move is mated, 2: a draw.
  int state() const {
    Move list[256];
    if (!now.position.moves(list)) return now.position.in_check(now.position.side) ? 1 : 2;
    return now.position.quiet >= 100 || now.position.insufficient() || seen(keys.back()) >= 3 ? 2
                                                                                              : 0;
  }

  // Captures of the most by the least come first, then other moves in their order.
  static int order(const Position& p, Move* list, bool captures) {
    const int n = p.moves(list, captures);
    std::stable_sort(list, list + n, [&](Move a, Move b) { return gain(p, a) > gain(p, b); });
    return n;
  }

  static int gain(const Position& p, Move m) {
    const int taken = p.at[chess::to_of(m)], piece = p.at[chess::from_of(m)] / 2;
    return 16 * chess::promotion_of(m) + (taken == chess::kNone ? 0 : 16 * (taken / 2 + 1) - piece);
  }

  int32_t captures(const Node& node, int32_t low, int32_t high, int ply) {
    int32_t best = evaluate(node);
    if (best >= high || ply >= kLongest) return best;
    Move list[256];
    const int n = order(node.position, list, true);
    for (int i = 0; i < n; ++i) {
      Node next;
      step(node, list[i], next);
      best = std::max(best, -captures(next, -high, -std::max(low, best), ply + 1));
      if (best >= high) break;
    }
    return best;
  }

  int32_t search(const Node& node, int depth, int32_t low, int32_t high, int ply) {
    if (node.position.quiet >= 100 || node.position.insufficient() ||
        seen(node.position.whole_key()) > 1)
      return 0;
    if (depth == 0) return captures(node, low, high, ply);
    Move list[256];
    const int n = order(node.position, list, false);
    if (!n) return node.position.in_check(node.position.side) ? ply - kMate : 0;
    int32_t best = -kMate;
    for (int i = 0; i < n; ++i) {
      Node next;
      step(node, list[i], next);
      best = std::max(best, -search(next, depth - 1, -high, -std::max(low, best), ply + 1));
      if (best >= high) break;
    }
    return best;
  }

  Move best(int depth) {
    Move list[256], found = 0;
    const int n = order(now.position, list, false);
    int32_t most = -kMate;
    for (int i = 0; i < n; ++i) {
      Node next;
      step(now, list[i], next);
      const int32_t value = -search(next, depth - 1, -kMate, -most, 1);
      if (i == 0 || value > most) most = value, found = list[i];
    }
    return found;
  }
};

// The bytes of both sides' sums are equal.
bool equal(const Evaluator::Sums& a, const Evaluator::Sums& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

extern "C" {

// Null: no memory, or no position. net is what the evaluator is made of.
EGGROLL_EXPORT void* search_new(const char* fen, const void* net) {
  Game* game = new (std::nothrow) Game(net);
  if (game && !game->begin(fen)) delete game, game = nullptr;
  return game;
}

EGGROLL_EXPORT void search_delete(void* game) { delete static_cast<Game*>(game); }

// Legal moves to `to` [256]; returns how many.
EGGROLL_EXPORT int32_t search_moves(const void* game, Move* to) {
  return static_cast<const Game*>(game)->now.position.moves(to);
}

EGGROLL_EXPORT void search_play(void* game, Move move) { static_cast<Game*>(game)->play(move); }

EGGROLL_EXPORT int32_t search_state(const void* game) {
  return static_cast<const Game*>(game)->state();
}

// depth: 1 or more.
EGGROLL_EXPORT Move search_best(void* game, int32_t depth) {
  return static_cast<Game*>(game)->best(depth);
}

EGGROLL_EXPORT int64_t search_evaluations(const void* game) {
  return static_cast<const Game*>(game)->evaluations;
}

// The value of the position, by the sums that were kept or, with `anew`, from the whole board.
EGGROLL_EXPORT int32_t search_value(const void* game, int32_t anew) {
  const Game& g = *static_cast<const Game*>(game);
  Node node = g.now;
  if (anew) g.refresh(node);
  return g.evaluator.value(node.sums, node.position.side);
}

// Codes of the pieces to `to` [64], -1 for none; returns the side to move, 1 for black.
EGGROLL_EXPORT int32_t search_board(const void* game, int8_t* to) {
  const Position& p = static_cast<const Game*>(game)->now.position;
  std::memcpy(to, p.at, sizeof p.at);
  return p.side;
}

EGGROLL_EXPORT int64_t search_perft(const void* game, int32_t depth) {
  return chess::perft(static_cast<const Game*>(game)->now.position, depth);
}

// Random games of `plies` at most, each position's sums by the difference to the one before. how: 0
// evaluates each, 1 from the whole board; 2 compares the two and adds those that differ to
// `different`. Returns the positions; `sum` keeps values from being left out.
EGGROLL_EXPORT int64_t search_walk(const char* fen, const void* net, uint64_t seed, int32_t games,
                                   int32_t plies, int32_t how, int64_t* different, int64_t* sum) {
  int64_t positions = 0;
  Game game(net);
  for (int g = 0; g < games; ++g) {
    if (!game.begin(fen)) return -1;
    uint64_t random = chess::mixed(seed + static_cast<uint64_t>(g));
    for (int ply = 0; ply < plies; ++ply, ++positions) {
      Move list[256];
      const int n = game.now.position.moves(list);
      if (!n) break;
      random = chess::mixed(random);
      Node next;
      game.step(game.now, list[random % static_cast<uint64_t>(n)], next);
      if (how) {
        Node whole = next;
        game.refresh(whole);
        if (how == 2 && !equal(whole.sums, next.sums)) ++*different;
        next.sums = how == 1 ? whole.sums : next.sums;
      }
      *sum += game.evaluator.value(next.sums, next.position.side);
      game.now = next;
    }
  }
  return positions;
}

// Nodes of a random game, evaluated `times` over each: by the difference to the node before, or
// from the whole board (`anew`). Move generation is left out. Returns evaluations.
EGGROLL_EXPORT int64_t search_speed(const char* fen, const void* net, uint64_t seed, int32_t plies,
                                    int32_t times, int32_t anew, int64_t* sum) {
  Game game(net);
  if (!game.begin(fen)) return -1;
  std::vector<Node> nodes(1, game.now);
  std::vector<Move> made;
  for (int ply = 0; ply < plies; ++ply) {
    Move list[256];
    const int n = nodes.back().position.moves(list);
    if (!n) break;
    seed = chess::mixed(seed);
    made.push_back(list[seed % static_cast<uint64_t>(n)]);
    Node next;
    game.step(nodes.back(), made.back(), next);
    nodes.push_back(next);
  }
  int64_t count = 0;
  for (int t = 0; t < times; ++t)
    for (size_t i = 0; i < made.size(); ++i, ++count) {
      Node next = nodes[i + 1];
      if (anew) {
        game.refresh(next);
      } else {
        game.step(nodes[i], made[i], next);
      }
      *sum += game.evaluator.value(next.sums, next.position.side);
    }
  return count;
}

}  // extern "C"
