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

// Legal actions of roots, and what the search finds of each.
struct Rows {
  int32_t count;           // R
  const int32_t* row_ptr;  // int32 [R + 1]
  const int32_t* actions;  // int32 [n]
};

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

// The same for boards, and what they show: planes int8 [R, F], legal uint8 [R, A].
EGGROLL_EXPORT int32_t pack_roots(int32_t game, const Positions* boards, int32_t R,
                                  const int32_t* slots, int8_t* planes, uint8_t* legal,
                                  int32_t* row_ptr, int32_t* actions) {
  return with_game(game, [&]<class G>() {
    int32_t n = row_ptr[0] = 0;
    for (int32_t r = 0; r < R; ++r) {
      const State s = boards->load(slots[r]);
      G::observe(s, planes + int64_t{r} * G::kPlanes * G::kCells);
      uint8_t* mask = legal + int64_t{r} * G::kActions;
      std::memset(mask, 0, G::kActions);
      int16_t found[G::kMostLegal];
      const int count = G::legal(s, found);
      for (int i = 0; i < count; ++i) mask[actions[n + i] = found[i]] = 1;
      row_ptr[r + 1] = n += count;
    }
    return n;
  });
}

// Children that are to be evaluated: places int32 [m] among the n, signs int8 [m], 1 where the same
// side is to move as at the root, and what they show, planes int8 [m, F] and legal uint8 [m, A] or
// NULL.
struct Waiting {
  int32_t* places;
  int8_t* signs;
  int8_t* planes;
  uint8_t* legal;
};

// Children of all legal actions; returns m. leaves float32 [n]: the value, for the root's mover, of
// those that are over, else 0.
EGGROLL_EXPORT int32_t make_children(int32_t game, const Positions* boards, const Rows* rows,
                                     const int32_t* slots, float* leaves, const Waiting* waiting) {
  return with_game(game, [&]<class G>() {
    int32_t m = 0;
    for (int32_t r = 0; r < rows->count; ++r) {
      const State root = boards->load(slots[r]);
      for (int32_t i = rows->row_ptr[r]; i < rows->row_ptr[r + 1]; ++i) {
        State s = root;
        G::apply(s, rows->actions[i]);
        leaves[i] = static_cast<float>(s.facts.result * root.facts.mover);
        if (s.facts.over) continue;
        waiting->places[m] = i;
        waiting->signs[m] = static_cast<int8_t>(s.facts.mover * root.facts.mover);
        G::observe(s, waiting->planes + int64_t{m} * G::kPlanes * G::kCells);
        if (waiting->legal) show_legal<G>(s, waiting->legal + int64_t{m} * G::kActions);
        ++m;
      }
    }
    return m;
  });
}

// leaves[waiting[i]] = signs[i] values[i].
EGGROLL_EXPORT void fill_leaves(int32_t m, const int32_t* waiting, const int8_t* signs,
                                const float* values, float* leaves) {
  for (int32_t i = 0; i < m; ++i) leaves[waiting[i]] = signs[i] * values[i];
}

// Priors float32 [n]: softmax of each root's legal logits, mixed with Dirichlet noise.
EGGROLL_EXPORT void make_priors(const Rows* rows, int32_t A, const float* logits, double share,
                                double shape, const Draws* draws, float* priors) {
  for (int32_t r = 0; r < rows->count; ++r) {
    const int32_t first = rows->row_ptr[r], count = rows->row_ptr[r + 1] - first;
    if (!count) continue;
    float legal[kMostActions];
    for (int32_t i = 0; i < count; ++i)
      legal[i] = logits[int64_t{r} * A + rows->actions[first + i]];
    softmax(count, legal, priors + first);
    add_noise(count, priors + first, share, shape, draws->of(r, kNoise));
  }
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

// The same of dense rows [R, A] with a mask of valid actions uint8 [R, A]; others get 0.
EGGROLL_EXPORT void root_puct_allocate_visits(int32_t R, int32_t A, const float* priors,
                                              const float* leaves, const uint8_t* valid,
                                              int32_t simulations, float c, float* visits,
                                              float* sums, float* values) {
  const int64_t size = int64_t{R} * A;
  std::vector<int32_t> row_ptr(R + 1), at(size);
  std::vector<float> p(size), v(size), n(size), w(size);
  int32_t count = 0;
  for (int32_t r = 0; r < R; ++r) {
    for (int32_t a = 0; a < A; ++a) {
      const int32_t i = r * A + a;
      if (!valid[i]) continue;
      at[count] = i, p[count] = priors[i], v[count] = leaves[i];
      ++count;
    }
    row_ptr[r + 1] = count;
  }
  allocate_visits_rows(R, row_ptr.data(), p.data(), v.data(), simulations, c, n.data(), w.data(),
                       values);
  std::fill_n(visits, size, 0.0f);
  std::fill_n(sums, size, 0.0f);
  for (int32_t i = 0; i < count; ++i) visits[at[i]] = n[i], sums[at[i]] = w[i];
}

// From visits float32 [n]: policy uint16 [R, A], the visits of all actions, and chosen int32 [R],
// drawn from visits^(1 / temperature), temperatures float32 [R]; -1 for a root without actions.
EGGROLL_EXPORT void root_finalize_from_visits(const Rows* rows, int32_t A, const float* visits,
                                              const float* temperatures, const Draws* draws,
                                              uint16_t* policy, int32_t* chosen) {
  std::fill_n(policy, int64_t{rows->count} * A, uint16_t{0});
  for (int32_t r = 0; r < rows->count; ++r) {
    const int32_t first = rows->row_ptr[r], count = rows->row_ptr[r + 1] - first;
    chosen[r] = -1;
    if (!count) continue;
    for (int32_t i = first; i < first + count; ++i)
      policy[int64_t{r} * A + rows->actions[i]] = static_cast<uint16_t>(visits[i]);
    const double u = draws->of(r, kMove).uniform();
    chosen[r] = rows->actions[first + sampled(visits + first, count, temperatures[r], u)];
  }
}

// The slots of the games that a step has ended, and how they ended, for White.
struct Finished {
  int32_t* slots;
  int8_t* results;
  float* softs;
};

// Plays chosen int32 [R] on boards `slots`: in place where every board is in play and there are
// kInPlace of them, else by way of a compact copy; both give the same. after float32 [R] and still
// int16 [R] are the soft value for White and the plies since a capture, after the move. Returns the
// number of games that ended.
EGGROLL_EXPORT int32_t self_play_step_inplace(int32_t game, const Positions* boards, int32_t count,
                                              int32_t R, const int32_t* slots,
                                              const int32_t* chosen, int32_t in_place, float* after,
                                              int16_t* still, const Finished* finished) {
  return with_game(game, [&]<class G>() {
    int32_t ended = 0;
    auto account = [&](int32_t r, const State& s) {
      after[r] = G::soft(s), still[r] = s.facts.still;
      if (!s.facts.over) return;
      finished->slots[ended] = slots[r];
      finished->results[ended] = s.facts.result;
      finished->softs[ended++] = after[r];
    };
    if (R == count && R >= in_place) {
      for (int32_t r = 0; r < R; ++r) {
        State s = boards->load(slots[r]);
        G::apply(s, chosen[r]);
        boards->store(slots[r], s);
        account(r, s);
      }
      return ended;
    }
    std::vector<State> compact(R);
    for (int32_t r = 0; r < R; ++r) compact[r] = boards->load(slots[r]);
    for (int32_t r = 0; r < R; ++r) G::apply(compact[r], chosen[r]);
    for (int32_t r = 0; r < R; ++r) {
      boards->store(slots[r], compact[r]);
      account(r, compact[r]);
    }
    return ended;
  });
}

// Fills the targets of the games that ended in `count` slots: steps int32 [B, longest] are the rows
// of a slot's moves, lengths int32 [B] their number, movers int8 [rows]. values int8 and softs
// float32 [rows] become the results for the mover; outcomes int64 [3] counts White's, drawn,
// Black's games.
EGGROLL_EXPORT void finalize_trajectory_inplace(int32_t count, const Finished* finished,
                                                int32_t longest, const int32_t* steps,
                                                const int32_t* lengths, const int8_t* movers,
                                                int8_t* values, float* softs, int64_t* outcomes) {
  for (int32_t i = 0; i < count; ++i) {
    const int64_t slot = finished->slots[i];
    for (int32_t t = 0; t < lengths[slot]; ++t) {
      const int32_t row = steps[slot * longest + t];
      values[row] = static_cast<int8_t>(finished->results[i] * movers[row]);
      softs[row] = finished->softs[i] * movers[row];
    }
    ++outcomes[1 - finished->results[i]];
  }
}

// Log-space sampling alone: of weights float32 [R, A] a place for each u float64 [R].
EGGROLL_EXPORT void sample_rows(int32_t R, int32_t A, const float* weights, double temperature,
                                const double* u, int32_t* chosen) {
  for (int32_t r = 0; r < R; ++r)
    chosen[r] = sampled(weights + int64_t{r} * A, A, temperature, u[r]);
}
