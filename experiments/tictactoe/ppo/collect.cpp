#include "collect.h"

#include <algorithm>
#include <vector>

namespace ppo {

// The boards of games that are not over, each once.
static const std::vector<Board>& open_boards() {
  static const std::vector<Board> found = [] {
    std::vector<Board> boards = {Board()};
    std::vector<bool> known(kCodes);
    for (size_t at = 0; at < boards.size(); ++at) {
      for (int move = 0; move < kMoves; ++move) {
        const Board b = boards[at];
        if (!(b.legal() >> move & 1)) continue;
        const Board next = {b.theirs, static_cast<uint16_t>(b.mine | 1 << move)};
        const int code = code_of(next);
        if (kWins[next.theirs] || !next.legal() || known[code]) continue;
        known[code] = true;
        boards.push_back(next);
      }
    }
    return boards;
  }();
  return found;
}

static void begin(const Settings& s, const Opponent* opponents, int count, uint64_t seed,
                  uint64_t iteration, Collector& c) {
  for (int g = 0; g < s.games; ++g) {
    Game& game = c.games[g];
    game = {Random(seed, iteration, g), nullptr, Board(), -1, false};
    game.opponent = opponents + game.random.below(count);
  }
  c.met.count = 0;
}

static void play(Game& game, int move, int ply) {
  Board& b = game.board;
  b.mine |= static_cast<uint16_t>(1 << move);
  if (kWins[b.mine]) game.winner = ply % 2;
  game.over = kWins[b.mine] || !(0x1ff & ~(b.mine | b.theirs));
  b = {b.theirs, b.mine};
}

static void record(Transitions& t, const Game& game, int index, int move, float log_prob,
                   float value) {
  const int i = t.count++;
  t.board[i] = game.board;
  t.move[i] = move;
  t.game[i] = index;
  t.log_prob[i] = log_prob;
  t.value[i] = value;
  t.reward[i] = 0;
  t.last[i] = 0;
}

// Moves of the learner on the boards that are its to move; `rows` grows by the boards evaluated.
static void move_learner(const Evaluator& e, const Settings& s, const float* weights, int ply,
                         Collector& c, int64_t& rows) {
  int count = 0, going = 0;
  c.distinct.clear();
  for (int g = 0; g < s.games; ++g) {
    if (c.games[g].over || !learner_moves(g, ply)) continue;
    const Board b = c.games[g].board;
    const int before = count;
    const int row = s.distinct ? c.distinct.of(code_of(b), count) : count++;
    if (count > before) observe(b, c.activations.inputs + row * kInputs);
    c.row[going] = row;
    c.going[going++] = g;
  }
  if (!count) return;
  forward(e, weights, c.activations, count);
  rows += count;
  int ready = 0;  // rows are numbered in the order in which they are met
  for (int i = 0; i < going; ++i) {
    Game& game = c.games[c.going[i]];
    const float* heads = c.activations.heads + c.row[i] * kHeadsApart;
    float* log_probs = c.log_probs[c.row[i]];
    if (c.row[i] == ready) {
      masked_log_softmax(heads, game.board.legal(), log_probs);
      ++ready;
    }
    const int move = draw_move(log_probs, game.board.legal(), game.random.uniform());
    record(c.met, game, c.going[i], move, log_probs[move], heads[kMoves]);
    play(game, move, ply);
  }
}

static void move_opponents(const Settings& s, int ply, Collector& c) {
  for (int g = 0; g < s.games; ++g) {
    Game& game = c.games[g];
    if (game.over || learner_moves(g, ply)) continue;
    const float* log_probs = game.opponent->log_probs[code_of(game.board)];
    play(game, draw_move(log_probs, game.board.legal(), game.random.uniform()), ply);
  }
}

void freeze(const Evaluator& e, const float* weights, Collector& c, Opponent& opponent) {
  const std::vector<Board>& boards = open_boards();
  for (size_t first = 0; first < boards.size(); first += kMaxBatch) {
    const int count = static_cast<int>(std::min<size_t>(kMaxBatch, boards.size() - first));
    for (int i = 0; i < count; ++i) observe(boards[first + i], c.activations.inputs + i * kInputs);
    forward(e, weights, c.activations, count);
    for (int i = 0; i < count; ++i) {
      const Board b = boards[first + i];
      masked_log_softmax(c.activations.heads + i * kHeadsApart, b.legal(),
                         opponent.log_probs[code_of(b)]);
    }
  }
}

// Rewards the last transition of each game, and counts wins, draws and losses.
static void reward_all(const Settings& s, Collector& c, Report& report) {
  int last[kMaxGames];
  for (int i = 0; i < c.met.count; ++i) last[c.met.game[i]] = i;
  for (int g = 0; g < s.games; ++g) {
    const int winner = c.games[g].winner, end = winner < 0 ? 1 : winner == g % 2 ? 0 : 2;
    ++report.results[end];
    c.met.reward[last[g]] = s.reward[end];
    c.met.last[last[g]] = 1;
  }
}

static void copy(const Transitions& from, int i, Transitions& to, int j) {
  to.board[j] = from.board[i];
  to.move[j] = from.move[i];
  to.game[j] = from.game[i];
  to.log_prob[j] = from.log_prob[i];
  to.value[j] = from.value[i];
  to.reward[j] = from.reward[i];
  to.last[j] = from.last[i];
}

// A counting sort by game: a game's transitions keep their order.
static void regroup(const Settings& s, Collector& c, Transitions& out) {
  for (int g = 0; g <= s.games; ++g) c.next[g] = 0;
  for (int i = 0; i < c.met.count; ++i) ++c.next[c.met.game[i] + 1];
  for (int g = 0; g < s.games; ++g) c.next[g + 1] += c.next[g];
  for (int i = 0; i < c.met.count; ++i) copy(c.met, i, out, c.next[c.met.game[i]]++);
}

void collect(const Evaluator& e, const Settings& s, const float* learner, const Opponent* opponents,
             int count, uint64_t seed, uint64_t iteration, bool regrouped, Collector& c,
             Transitions& out, Report& report) {
  begin(s, opponents, count, seed, iteration, c);
  for (int ply = 0; ply < 9; ++ply) {
    move_learner(e, s, learner, ply, c, report.rows);
    move_opponents(s, ply, c);
  }
  reward_all(s, c, report);
  out.count = c.met.count;
  report.transitions = out.count;
  if (regrouped) {
    regroup(s, c, out);
  } else {
    for (int i = 0; i < out.count; ++i) copy(c.met, i, out, i);
  }
}

void advantages(int count, const float* value, const float* reward, const int32_t* last,
                float discount, float decay, float* advantage, float* returns) {
  float ahead = 0, after = 0;
  for (int t = count - 1; t >= 0; --t) {
    if (last[t]) ahead = after = 0;
    const float delta = reward[t] + discount * after - value[t];
    ahead = delta + discount * decay * ahead;
    advantage[t] = ahead;
    returns[t] = ahead + value[t];
    after = value[t];
  }
}

}  // namespace ppo
