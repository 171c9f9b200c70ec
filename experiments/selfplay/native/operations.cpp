// Operations of a step of self-play on arrays, for operations.py.
//
// Letters: R roots, A actions, n legal actions of all roots, row by row: those of root r are
// row_ptr[r] to row_ptr[r + 1] - 1 (CSR). slots int32 [R]: the board of a root. F values of an
// observation, m children that are to be evaluated.
#include <algorithm>
#include <vector>

#include "chance.h"
#include "eggroll_world.h"
#include "games.h"
#include "puct.h"

using namespace selfplay;

namespace {

AllocateRows chosen_set = nullptr;

AllocateRows allocate_of_choice() { return chosen_set ? chosen_set : allocate_rows(); }

}  // namespace

// Takes an instruction set for root-PUCT: 0 the generic one, 1 AVX2, 2 AVX-512, -1 the widest.
// Returns 0 where it does not run here.
EGGROLL_EXPORT int32_t puct_use(int32_t set) {
  const AllocateRows found = set < 0 ? allocate_rows() : allocate_rows_of(set);
  if (found) chosen_set = found;
  return found != nullptr;
}

// Packs the legal actions of masks uint8 [R, A] row by row; returns n.
EGGROLL_EXPORT int32_t pack_legal_rows(int32_t R, int32_t A, const uint8_t* legal, int32_t* row_ptr,
                                       int32_t* actions) {
  int32_t n = row_ptr[0] = 0;
  for (int32_t r = 0; r < R; ++r) {
    for (int32_t a = 0; a < A; ++a) {
      actions[n] = a;
      n += legal[int64_t{r} * A + a] != 0;
    }
    row_ptr[r + 1] = n;
  }
  return n;
}

// Positions of games, row by row, n of them, for record.py; and of every board the rows of its
// game's moves, int32 [B, longest], and their number. policy: of the legal actions of all rows,
// those of a row from `start` on. outcomes int64 [3] counts White's, drawn, Black's games.
struct Record {
  Positions positions;
  int64_t* start;
  int8_t* value;
  float* soft;
  int32_t* game;
  int16_t* action;
  float* root;
  int8_t* mover;
  float* material;
  int16_t* still;
  uint16_t* policy;
  int32_t longest;
  int32_t *steps, *lengths;
  int64_t* outcomes;
};

// Arrays of a step, taken once. Of R roots: row_ptr [R + 1], games, plies, temperatures, chosen,
// legal uint8 [R, A], and planes int8 [R, F] or bits uint64 [R, words], whichever is not NULL. Of
// their n legal actions: actions, leaves, priors, visits, sums. Of m children to be evaluated:
// places among the n; signs, 1 where the same side is to move as at the root; and what they show,
// child_legal only where not NULL.
struct Step {
  int32_t *row_ptr, *games, *plies, *chosen;
  float* temperatures;
  uint8_t* legal;
  int8_t* planes;
  uint64_t* bits;
  int32_t* actions;
  float *leaves, *priors, *visits, *sums;
  int32_t* places;
  int8_t *signs, *child_planes;
  uint64_t* child_bits;
  uint8_t* child_legal;
  // Slots of the games that ended, and how they ended, for White.
  int32_t* ended;
  int8_t* results;
  float* softs;
};

// What a position shows, in row i of either array.
template <class Game>
void show(const State& s, int64_t i, int8_t* planes, uint64_t* bits) {
  if (planes) Game::observe(s, planes + i * Game::kPlanes * Game::kCells);
  if (!bits) return;
  uint64_t words[kWords<Game>] = {};
  Game::observe_bits(s, words);
  std::memcpy(bits + i * kWords<Game>, words, sizeof words);
}

// Begins a step of boards: packs their legal actions, shows them, and writes them as rows `first`
// and on of the record, policies from `start` on; numbers int32 [B] of their games. Returns n.
EGGROLL_EXPORT int32_t pack_roots(int32_t game, const Positions* boards, int32_t R,
                                  const int32_t* slots, const int32_t* numbers,
                                  int32_t temperature_plies, const Step* step, const Record* record,
                                  int32_t first, int64_t start) {
  return with_game(game, [&]<class G>() {
    int32_t n = step->row_ptr[0] = 0;
    for (int32_t r = 0; r < R; ++r) {
      const int32_t slot = slots[r], row = first + r;
      const State s = boards->load(slot);
      record->positions.store(row, s);
      record->start[row] = start + n;
      record->game[row] = step->games[r] = numbers[slot];
      record->mover[row] = s.facts.mover;
      record->steps[int64_t{slot} * record->longest + record->lengths[slot]++] = row;
      step->plies[r] = s.facts.plies;
      step->temperatures[r] = s.facts.plies < temperature_plies;
      show<G>(s, r, step->planes, step->bits);
      uint8_t* mask = step->legal + int64_t{r} * G::kActions;
      std::memset(mask, 0, G::kActions);
      int16_t found[G::kMostLegal];
      const int count = G::legal(s, found);
      for (int i = 0; i < count; ++i) mask[step->actions[n + i] = found[i]] = 1;
      step->row_ptr[r + 1] = n += count;
    }
    return n;
  });
}

// Children of all legal actions; returns m. leaves: the value, for the root's mover, of those that
// are over, else 0.
EGGROLL_EXPORT int32_t make_children(int32_t game, const Positions* boards, int32_t R,
                                     const int32_t* slots, const Step* step) {
  return with_game(game, [&]<class G>() {
    int32_t m = 0;
    for (int32_t r = 0; r < R; ++r) {
      const State root = boards->load(slots[r]);
      for (int32_t i = step->row_ptr[r]; i < step->row_ptr[r + 1]; ++i) {
        State s = root;
        G::apply(s, step->actions[i]);
        step->leaves[i] = static_cast<float>(s.facts.result * root.facts.mover);
        if (s.facts.over) continue;
        step->places[m] = i;
        step->signs[m] = static_cast<int8_t>(s.facts.mover * root.facts.mover);
        show<G>(s, m, step->child_planes, step->child_bits);
        if (step->child_legal) show_legal<G>(s, step->child_legal + int64_t{m} * G::kActions);
        ++m;
      }
    }
    return m;
  });
}

// The visits of root-PUCT, see puct.h: visits, sums float32 [n], values float32 [R], the mean of
// all simulations for the root's mover.
EGGROLL_EXPORT void allocate_visits_rows(int32_t R, const int32_t* row_ptr, const float* priors,
                                         const float* leaves, int32_t simulations, float c,
                                         float* visits, float* sums, float* values) {
  allocate_of_choice()(R, row_ptr, priors, leaves, simulations, c, visits, sums);
  for (int32_t r = 0; r < R; ++r) {
    float total = 0;
    for (int32_t i = row_ptr[r]; i < row_ptr[r + 1]; ++i) total += sums[i];
    values[r] = simulations ? total / static_cast<float>(simulations) : 0;
  }
}

// How roots are searched; share and shape of Dirichlet noise.
struct Options {
  int32_t simulations;
  float c;
  double share, shape;
};

// Allots visits to the actions of R roots, whose values float32 [R] it gives. Priors are the
// softmax of a root's legal logits, mixed with noise. logits float32 [R, A] of the roots,
// child_values float32 [m] of the children, for their movers.
EGGROLL_EXPORT void search_roots(int32_t R, int32_t A, int32_t m, const Step* step,
                                 const Draws* draws, const Options* o, const float* logits,
                                 const float* child_values, float* values) {
  for (int32_t i = 0; i < m; ++i) step->leaves[step->places[i]] = step->signs[i] * child_values[i];
  for (int32_t r = 0; r < R; ++r, logits += A) {
    const int32_t first = step->row_ptr[r], count = step->row_ptr[r + 1] - first;
    if (!count) continue;
    float legal[kMostActions];
    for (int32_t i = 0; i < count; ++i) legal[i] = logits[step->actions[first + i]];
    softmax(count, legal, step->priors + first);
    add_noise(count, step->priors + first, o->share, o->shape, draws->of(r, kNoise));
  }
  allocate_visits_rows(R, step->row_ptr, step->priors, step->leaves, o->simulations, o->c,
                       step->visits, step->sums, values);
}

// The same of dense rows [R, A] with a mask of valid actions uint8 [R, A]; others get 0.
EGGROLL_EXPORT void root_puct_allocate_visits(int32_t R, int32_t A, const float* priors,
                                              const float* leaves, const uint8_t* valid,
                                              int32_t simulations, float c, float* visits,
                                              float* sums, float* values) {
  constexpr int32_t kRoots = 8;  // at a time, on the stack
  constexpr int32_t kSize = kRoots * kMostActions;
  int32_t row_ptr[kRoots + 1], at[kSize];
  float p[kSize], v[kSize], n[kSize], w[kSize];
  for (int32_t first = 0; first < R; first += kRoots) {
    const int32_t roots = std::min(kRoots, R - first), size = roots * A;
    int32_t count = row_ptr[0] = 0;
    for (int32_t r = 0, i = 0; r < roots; ++r) {
      for (int32_t end = i + A; i < end; ++i) {
        at[count] = i, p[count] = priors[i], v[count] = leaves[i];
        count += valid[i] != 0;
      }
      row_ptr[r + 1] = count;
    }
    allocate_visits_rows(roots, row_ptr, p, v, simulations, c, n, w, values + first);
    std::fill_n(visits, size, 0.0f);
    std::fill_n(sums, size, 0.0f);
    for (int32_t i = 0; i < count; ++i) visits[at[i]] = n[i], sums[at[i]] = w[i];
    priors += size, leaves += size, valid += size, visits += size, sums += size;
  }
}

// From the visits of R roots: the policy of rows `first` and on of the record, and the action drawn
// from visits^(1 / temperature), -1 for a root without actions.
EGGROLL_EXPORT void root_finalize_from_visits(int32_t R, const Step* step, const Draws* draws,
                                              const Record* record, int32_t first) {
  for (int32_t r = 0; r < R; ++r) {
    const int32_t begin = step->row_ptr[r], count = step->row_ptr[r + 1] - begin;
    step->chosen[r] = record->action[first + r] = -1;
    if (!count) continue;
    uint16_t* policy = record->policy + record->start[first + r];
    for (int32_t i = 0; i < count; ++i) policy[i] = static_cast<uint16_t>(step->visits[begin + i]);
    const double u = draws->of(r, kMove).uniform();
    const int place = sampled(step->visits + begin, count, step->temperatures[r], u);
    step->chosen[r] = step->actions[begin + place];
    record->action[first + r] = static_cast<int16_t>(step->chosen[r]);
  }
}

// Plays the chosen actions of R roots on boards `slots`: in place where every board is in play and
// there are `in_place` of them, else by way of a compact copy; both give the same. The record gets
// the soft value for White and the plies since a capture, after the move. Returns the number of
// games that ended.
EGGROLL_EXPORT int32_t self_play_step_inplace(int32_t game, const Positions* boards, int32_t count,
                                              int32_t R, const int32_t* slots, int32_t in_place,
                                              const Step* step, const Record* record,
                                              int32_t first) {
  return with_game(game, [&]<class G>() {
    int32_t ended = 0;
    auto account = [&](int32_t r, const State& s) {
      const float soft = record->material[first + r] = G::soft(s);
      record->still[first + r] = s.facts.still;
      if (!s.facts.over) return;
      step->ended[ended] = slots[r];
      step->results[ended] = s.facts.result;
      step->softs[ended++] = soft;
    };
    if (R == count && R >= in_place) {
      for (int32_t r = 0; r < R; ++r) {
        State s = boards->load(slots[r]);
        G::apply(s, step->chosen[r]);
        boards->store(slots[r], s);
        account(r, s);
      }
      return ended;
    }
    std::vector<State> compact(R);
    for (int32_t r = 0; r < R; ++r) compact[r] = boards->load(slots[r]);
    for (int32_t r = 0; r < R; ++r) G::apply(compact[r], step->chosen[r]);
    for (int32_t r = 0; r < R; ++r) {
      boards->store(slots[r], compact[r]);
      account(r, compact[r]);
    }
    return ended;
  });
}

// Fills the targets of the `count` games that a step ended, results for the mover, and begins games
// on their boards, numbered from `upcoming` while below `last`. Returns how many it began.
EGGROLL_EXPORT int32_t finalize_trajectory_inplace(int32_t game, const Positions* boards,
                                                   int32_t count, const Step* step,
                                                   const Record* record, int32_t* numbers,
                                                   int32_t upcoming, int32_t last) {
  return with_game(game, [&]<class G>() {
    int32_t begun = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t slot = step->ended[i];
      const int32_t* rows = record->steps + int64_t{slot} * record->longest;
      for (int32_t t = 0; t < record->lengths[slot]; ++t) {
        const int8_t mover = record->mover[rows[t]];
        record->value[rows[t]] = static_cast<int8_t>(step->results[i] * mover);
        record->soft[rows[t]] = step->softs[i] * mover;
      }
      record->lengths[slot] = 0;
      ++record->outcomes[1 - step->results[i]];
      if (upcoming + begun >= last) continue;
      numbers[slot] = upcoming + begun++;
      boards->store(slot, G::begin());
    }
    return begun;
  });
}

// Rows of the record in an order int64 [n]: planes int8 [n, F], legal uint8 [n, A] and policy
// uint16 [n, A].
EGGROLL_EXPORT void show_record(int32_t game, int64_t n, const int64_t* order, const Record* record,
                                int8_t* planes, uint8_t* legal, uint16_t* policy) {
  with_game(game, [&]<class G>() {
    for (int64_t i = 0; i < n; ++i) {
      const State s = record->positions.load(order[i]);
      G::observe(s, planes + i * G::kPlanes * G::kCells);
      uint8_t* mask = legal + i * G::kActions;
      uint16_t* row = policy + i * G::kActions;
      std::memset(mask, 0, G::kActions);
      std::memset(row, 0, 2 * G::kActions);
      const uint16_t* given = record->policy + record->start[order[i]];
      int16_t actions[G::kMostLegal];
      const int count = G::legal(s, actions);
      for (int k = 0; k < count; ++k) mask[actions[k]] = 1, row[actions[k]] = given[k];
    }
  });
}

// Log-space sampling alone: of weights float32 [R, A] a place for each u float64 [R].
EGGROLL_EXPORT void sample_rows(int32_t R, int32_t A, const float* weights, double temperature,
                                const double* u, int32_t* chosen) {
  for (int32_t r = 0; r < R; ++r)
    chosen[r] = sampled(weights + int64_t{r} * A, A, temperature, u[r]);
}
