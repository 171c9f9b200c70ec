// Search trees of many games side by side, as a structure of arrays: PUCT of any depth, with
// several leaves at a time, reuse of the subtree and a Gumbel root.
//
// A round: `select` walks every game's tree to `leaves` leaves and shows them, the caller evaluates
// all of them, `expand` hangs in their actions and adds their values to the edges above. The score
// of an action is that of puct.h, so that depth 1 gives the visits of root-PUCT. An edge that a
// walk has passed counts as one visit that lost until its value is there.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "chance.h"
#include "games.h"

namespace selfplay {

struct TreeOptions {
  int32_t slots, simulations, leaves;
  int32_t depth;   // plies below the root, at most; a node there keeps its first value
  int32_t reuse;   // the subtree of the move that was played stays
  int32_t gumbel;  // actions that a Gumbel root considers; 0 for PUCT
  float exploration;
};

template <class T>
using Array = std::unique_ptr<T[]>;

enum NodeKind : uint8_t { kNew, kWaiting, kOpen, kFixed };  // kFixed: over, or at the depth

struct Nodes {
  Array<uint64_t> white, black, marks;
  Array<Facts> facts;
  Array<int32_t> parent, edge;  // the node above, and the edge there that leads here
  Array<int32_t> first, count;  // edges
  Array<int32_t> visits;        // 1 and those of the edges, walks under way included
  Array<float> value;           // the first, for White
  Array<NodeKind> kind;
};

struct Edges {
  Array<int16_t> action;
  Array<int32_t> child, visits, flying;  // -1: no node yet; walks done; walks under way
  Array<float> logit, prior, weight;     // weight: exploration times the prior, with noise
  Array<float> sum, mean, bonus;         // for the mover above
};

// Trees of any game.
class AnyTrees {
 public:
  virtual ~AnyTrees() = default;

  // Before a move: the roots of `slots` are the boards' positions, unless a subtree was kept.
  virtual void start(const Positions& boards, int32_t R, const int32_t* slots, const Draws& draws,
                     double share, double shape) = 0;

  // Walks to leaves; planes int8 [m, F], legal uint8 [m, A]. 0 once all simulations are done.
  virtual int32_t select(int32_t R, const int32_t* slots, int8_t* planes, uint8_t* legal) = 0;

  // logits float32 [m, A], values float32 [m] of the leaves that `select` showed, for their movers.
  virtual void expand(const float* logits, const float* values) = 0;

  // After the search: policy uint16 [R, A], chosen int32 [R], values float32 [R] for the mover.
  virtual void finish(int32_t R, const int32_t* slots, const float* temperatures,
                      const Draws& draws, uint16_t* policy, int32_t* chosen, float* values) = 0;

  // Visits of the roots' actions, int32 [R, A], which a Gumbel root's policy does not tell.
  virtual void visits(int32_t R, const int32_t* slots, int32_t* out) const = 0;

  // After a move was played: keeps its subtree where that is asked for, known and not too large.
  virtual void advance(int32_t R, const int32_t* slots, const int32_t* played) = 0;

  virtual void forget(int32_t slot) = 0;  // a new game begins there
};

template <class Game>
class Trees final : public AnyTrees {
 public:
  explicit Trees(const TreeOptions& options)
      : o_(options),
        node_room_((options.reuse ? 3 : 1) * (options.simulations + 2)),
        edge_room_(node_room_ * Game::kMostLegal) {
    const size_t n = static_cast<size_t>(o_.slots) * node_room_;
    const size_t e = static_cast<size_t>(o_.slots) * edge_room_;
    take(n, nodes_.white, nodes_.black, nodes_.marks, nodes_.facts, nodes_.parent, nodes_.edge,
         nodes_.first, nodes_.count, nodes_.visits, nodes_.value, nodes_.kind);
    take(e, edges_.action, edges_.child, edges_.visits, edges_.flying, edges_.logit, edges_.prior,
         edges_.weight, edges_.sum, edges_.mean, edges_.bonus);
    slots_.resize(o_.slots);
    positions_ = {nodes_.white.get(), nodes_.black.get(), nodes_.marks.get(), nodes_.facts.get()};
    if (o_.gumbel)
      for (int m = 0; m <= std::min(o_.gumbel, Game::kMostLegal); ++m)
        halvings_.push_back(halving(m, o_.simulations));
  }

  void start(const Positions& boards, int32_t R, const int32_t* slots, const Draws& draws,
             double share, double shape) override {
    for (int32_t r = 0; r < R; ++r) {
      Slot& s = slots_[slots[r]];
      s.done = s.asked = 0;
      s.share = share, s.shape = shape;
      s.chance = draws.of(r, kNoise);
      if (s.nodes == 0) {
        add_node(slots[r], boards.load(slots[r]), -1, -1);
      }
      if (o_.gumbel) draw_gumbel(s, draws.of(r, kGumbel));
      if (nodes_.kind[root(slots[r])] == kOpen) weigh_root(slots[r]);
    }
  }

  int32_t select(int32_t R, const int32_t* slots, int8_t* planes, uint8_t* legal) override {
    waiting_.clear();
    for (int32_t r = 0; r < R; ++r) {
      Slot& s = slots_[slots[r]];
      s.asked = 0;
      if (nodes_.kind[root(slots[r])] == kNew) {
        ask(slots[r], root(slots[r]));
        continue;
      }
      while (s.asked < o_.leaves && s.done + s.asked < o_.simulations)
        if (!walk(slots[r])) break;
    }
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const State state = positions_.load(waiting_[i].node);
      Game::observe(state, planes + i * (Game::kPlanes * Game::kCells));
      show_legal<Game>(state, legal + i * Game::kActions);
    }
    return static_cast<int32_t>(waiting_.size());
  }

  void expand(const float* logits, const float* values) override {
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const auto [slot, node] = waiting_[i];
      const Facts facts = nodes_.facts[node];
      nodes_.value[node] = values[i] * facts.mover;
      const bool is_root = node == root(slot);
      if (facts.plies - nodes_.facts[root(slot)].plies < o_.depth)
        open(slot, node, logits + i * Game::kActions);
      else
        nodes_.kind[node] = kFixed;
      if (is_root)
        weigh_root(slot);
      else
        back_up(slot, node);
    }
  }

  void finish(int32_t R, const int32_t* slots, const float* temperatures, const Draws& draws,
              uint16_t* policy, int32_t* chosen, float* values) override {
    std::fill_n(policy, static_cast<int64_t>(R) * Game::kActions, uint16_t{0});
    for (int32_t r = 0; r < R; ++r) {
      const int32_t at = root(slots[r]), first = nodes_.first[at], count = nodes_.count[at];
      float visits[Game::kMostLegal], sum = 0, all = 0;
      for (int i = 0; i < count; ++i) {
        visits[i] = static_cast<float>(edges_.visits[first + i]);
        all += visits[i], sum += edges_.sum[first + i];
      }
      values[r] = all > 0 ? sum / all : nodes_.value[at] * nodes_.facts[at].mover;
      uint16_t* row = policy + static_cast<int64_t>(r) * Game::kActions;
      const double u = draws.of(r, kMove).uniform();
      int best = 0;
      if (o_.gumbel) {
        float improved[Game::kMostLegal];
        best = gumbel_best(slots[r], *std::max_element(visits, visits + count));
        improve(slots[r], improved);
        for (int i = 0; i < count; ++i)
          row[edges_.action[first + i]] = static_cast<uint16_t>(std::lround(65535 * improved[i]));
      } else {
        best = sampled(visits, count, temperatures[r], u);
        for (int i = 0; i < count; ++i)
          row[edges_.action[first + i]] = static_cast<uint16_t>(std::min(visits[i], 65535.0f));
      }
      chosen[r] = edges_.action[first + best];
    }
  }

  void visits(int32_t R, const int32_t* slots, int32_t* out) const override {
    std::fill_n(out, static_cast<int64_t>(R) * Game::kActions, 0);
    for (int32_t r = 0; r < R; ++r, out += Game::kActions) {
      const int32_t at = root(slots[r]), first = nodes_.first[at];
      for (int32_t e = first; e < first + nodes_.count[at]; ++e)
        out[edges_.action[e]] = edges_.visits[e];
    }
  }

  void advance(int32_t R, const int32_t* slots, const int32_t* played) override {
    for (int32_t r = 0; r < R; ++r) {
      const int32_t slot = slots[r], at = root(slot);
      int32_t child = -1;
      for (int32_t i = 0; o_.reuse && slots_[slot].nodes && i < nodes_.count[at]; ++i)
        if (edges_.action[nodes_.first[at] + i] == played[r])
          child = edges_.child[nodes_.first[at] + i];
      if (child < 0 || nodes_.kind[child] != kOpen || !keep(slot, child)) forget(slot);
    }
  }

  void forget(int32_t slot) override { slots_[slot].nodes = slots_[slot].edges = 0; }

 private:
  struct Slot {
    int32_t nodes = 0, edges = 0;  // of the slot's room
    int32_t done = 0, asked = 0;   // simulations
    double share = 0, shape = 1;
    Chance chance{0, 0, 0, kNoise};
    std::vector<float> gumbel;
  };
  struct Leaf {
    int32_t slot, node;
  };

  template <class... T>
  static void take(size_t count, T&... arrays) {
    ((arrays = std::make_unique_for_overwrite<typename T::element_type[]>(count)), ...);
  }

  int32_t root(int32_t slot) const { return slot * node_room_; }

  int32_t add_node(int32_t slot, const State& state, int32_t parent, int32_t edge) {
    const int32_t at = root(slot) + slots_[slot].nodes++;
    positions_.store(at, state);
    nodes_.parent[at] = parent, nodes_.edge[at] = edge;
    nodes_.first[at] = nodes_.count[at] = 0;
    nodes_.visits[at] = 1;
    nodes_.kind[at] = kNew;
    if (state.facts.over) nodes_.kind[at] = kFixed, nodes_.value[at] = state.facts.result;
    return at;
  }

  void ask(int32_t slot, int32_t node) {
    nodes_.kind[node] = kWaiting;
    waiting_.push_back({slot, node});
    ++slots_[slot].asked;
  }

  // One walk to a leaf; false where it met a leaf that is waiting, and left no trace.
  bool walk(int32_t slot) {
    int32_t at = root(slot);
    while (nodes_.kind[at] == kOpen) {
      const int32_t e = at == root(slot) && o_.gumbel ? gumbel_edge(slot) : best_edge(at);
      ++nodes_.visits[at];
      if (o_.leaves > 1) fly(e, 1);
      int32_t child = edges_.child[e];
      if (child < 0) {
        State state = positions_.load(at);
        Game::apply(state, edges_.action[e]);
        child = edges_.child[e] = add_node(slot, state, at, e);
      }
      at = child;
    }
    if (nodes_.kind[at] == kNew) return ask(slot, at), true;
    if (nodes_.kind[at] == kFixed) return back_up(slot, at), true;
    for (; nodes_.parent[at] >= 0; at = nodes_.parent[at]) {
      --nodes_.visits[nodes_.parent[at]];
      fly(nodes_.edge[at], -1);
    }
    return false;
  }

  int32_t best_edge(int32_t at) const {
    const int32_t first = nodes_.first[at], end = first + nodes_.count[at];
    const float root = std::sqrt(static_cast<float>(nodes_.visits[at]));
    int32_t best = first;
    float most = edges_.mean[first] + root * edges_.bonus[first];
    for (int32_t e = first + 1; e < end; ++e) {
      const float score = edges_.mean[e] + root * edges_.bonus[e];
      if (score > most) most = score, best = e;
    }
    return best;
  }

  void fly(int32_t e, int32_t by) {
    edges_.flying[e] += by;
    score(e);
  }

  void score(int32_t e) {
    const int32_t n = edges_.visits[e] + edges_.flying[e];
    const float sum = edges_.sum[e] - static_cast<float>(edges_.flying[e]);
    edges_.mean[e] = n ? sum / static_cast<float>(n) : 0;
    edges_.bonus[e] = edges_.weight[e] / static_cast<float>(1 + n);
  }

  void open(int32_t slot, int32_t node, const float* logits) {
    int16_t actions[Game::kMostLegal];
    const int count = Game::legal(positions_.load(node), actions);
    const int32_t first = slot * edge_room_ + slots_[slot].edges;
    slots_[slot].edges += count;
    for (int i = 0; i < count; ++i) {
      edges_.action[first + i] = actions[i];
      edges_.logit[first + i] = logits[actions[i]];
    }
    softmax(count, &edges_.logit[first], &edges_.prior[first]);
    for (int32_t e = first; e < first + count; ++e) {
      edges_.child[e] = -1, edges_.visits[e] = edges_.flying[e] = 0;
      edges_.sum[e] = edges_.mean[e] = 0;
      edges_.bonus[e] = edges_.weight[e] = o_.exploration * edges_.prior[e];
    }
    nodes_.first[node] = first, nodes_.count[node] = count, nodes_.kind[node] = kOpen;
  }

  // Noise belongs to the root of a search alone.
  void weigh_root(int32_t slot) {
    const int32_t at = root(slot), first = nodes_.first[at], count = nodes_.count[at];
    Slot& s = slots_[slot];
    float mixed[Game::kMostLegal];
    std::copy_n(&edges_.prior[first], count, mixed);
    add_noise(count, mixed, s.share, s.shape, s.chance);
    for (int i = 0; i < count; ++i) {
      edges_.weight[first + i] = o_.exploration * mixed[i];
      score(first + i);
    }
  }

  void back_up(int32_t slot, int32_t node) {
    const float value = nodes_.value[node];
    for (int32_t at = node; nodes_.parent[at] >= 0; at = nodes_.parent[at]) {
      const int32_t e = nodes_.edge[at];
      if (o_.leaves > 1) --edges_.flying[e];
      ++edges_.visits[e];
      edges_.sum[e] += value * nodes_.facts[nodes_.parent[at]].mover;
      score(e);
    }
    ++slots_[slot].done;
  }

  // Moves the subtree of a node to the front of the slot's room; false where it leaves too little
  // room for the next search. Nodes go in order of breadth, so none is overwritten before its turn.
  bool keep(int32_t slot, int32_t top) {
    std::vector<int32_t>& order = order_;
    order.assign(1, top);
    for (size_t i = 0; i < order.size(); ++i) {
      const int32_t n = order[i];
      for (int32_t e = nodes_.first[n]; e < nodes_.first[n] + nodes_.count[n]; ++e)
        if (edges_.child[e] >= 0) order.push_back(edges_.child[e]);
    }
    if (static_cast<int32_t>(order.size()) + o_.simulations + 1 > node_room_) return false;
    std::sort(order.begin() + 1, order.end());  // ascending: every node moves towards the front
    moved_.assign(node_room_, -1);
    const int32_t base = root(slot);
    for (size_t i = 0; i < order.size(); ++i) moved_[order[i] - base] = static_cast<int32_t>(i);
    int32_t edges = 0;
    std::vector<std::pair<int32_t, int32_t>> by_edges;  // first edge, node: edges keep their order
    for (int32_t n : order) by_edges.push_back({nodes_.first[n], n});
    std::sort(by_edges.begin(), by_edges.end());
    for (auto [first, n] : by_edges) {
      if (!nodes_.count[n]) continue;
      const int32_t to = slot * edge_room_ + edges;
      for (int32_t i = 0; i < nodes_.count[n]; ++i) move_edge(first + i, to + i, base);
      nodes_.first[n] = to;
      edges += nodes_.count[n];
    }
    for (size_t i = 0; i < order.size(); ++i)
      move_node(order[i], base + static_cast<int32_t>(i), base);
    nodes_.parent[base] = nodes_.edge[base] = -1;
    slots_[slot].nodes = static_cast<int32_t>(order.size()), slots_[slot].edges = edges;
    return true;
  }

  void move_edge(int32_t from, int32_t to, int32_t base) {
    const int32_t child = edges_.child[from];
    edges_.action[to] = edges_.action[from];
    edges_.child[to] = child < 0 ? -1 : base + moved_[child - base];
    edges_.visits[to] = edges_.visits[from], edges_.flying[to] = edges_.flying[from];
    edges_.logit[to] = edges_.logit[from], edges_.prior[to] = edges_.prior[from];
    edges_.weight[to] = edges_.weight[from], edges_.sum[to] = edges_.sum[from];
    edges_.mean[to] = edges_.mean[from], edges_.bonus[to] = edges_.bonus[from];
    if (child >= 0) nodes_.edge[child] = to;
  }

  void move_node(int32_t from, int32_t to, int32_t base) {
    positions_.store(to, positions_.load(from));
    const int32_t parent = nodes_.parent[from];
    nodes_.parent[to] = parent < 0 || moved_[parent - base] < 0 ? -1 : base + moved_[parent - base];
    nodes_.edge[to] = nodes_.edge[from];
    nodes_.first[to] = nodes_.first[from], nodes_.count[to] = nodes_.count[from];
    nodes_.visits[to] = nodes_.visits[from], nodes_.value[to] = nodes_.value[from];
    nodes_.kind[to] = nodes_.kind[from];
  }

  // Sequential halving (Karnin, Koren and Somekh, 2013): the visits that the action of simulation i
  // must have, of m actions that are considered; as Danihelka et al. (2022) use it.
  static std::vector<int32_t> halving(int m, int simulations) {
    std::vector<int32_t> found, visits(std::max(m, 1), 0);
    if (m <= 1) {
      for (int i = 0; i < simulations; ++i) found.push_back(i);
      return found;
    }
    const int phases = std::bit_width(static_cast<unsigned>(m - 1));
    for (int alive = m; static_cast<int>(found.size()) < simulations;
         alive = std::max(2, alive / 2))
      for (int i = 0; i < std::max(1, simulations / (phases * alive)); ++i)
        for (int a = 0; a < alive; ++a) found.push_back(visits[a]++);
    found.resize(simulations);
    return found;
  }

  static void draw_gumbel(Slot& s, Chance chance) {
    s.gumbel.resize(Game::kMostLegal);
    for (float& g : s.gumbel) g = static_cast<float>(chance.gumbel());
  }

  int32_t gumbel_edge(int32_t slot) {
    const int32_t at = root(slot), first = nodes_.first[at];
    const Slot& s = slots_[slot];
    const auto& plan = halvings_[std::min(o_.gumbel, nodes_.count[at])];
    const int32_t i = std::min<int32_t>(s.done + s.asked, o_.simulations - 1);
    return first + gumbel_best(slot, static_cast<float>(plan[i]));
  }

  // The action of the largest gumbel + logit + worth among those with so many visits, or among all
  // where none has.
  int gumbel_best(int32_t slot, float visits) const {
    const int32_t at = root(slot), first = nodes_.first[at], count = nodes_.count[at];
    float worth[Game::kMostLegal];
    worths(slot, worth);
    int best = -1;
    float most = 0;
    for (bool any : {false, true}) {
      for (int i = 0; i < count; ++i) {
        const int32_t e = first + i, n = edges_.visits[e] + edges_.flying[e];
        if (!any && static_cast<float>(n) != visits) continue;
        const float score = slots_[slot].gumbel[i] + edges_.logit[e] + worth[i];
        if (best < 0 || score > most) best = i, most = score;
      }
      if (best >= 0) break;
    }
    return best;
  }

  // What actions are worth in units of logits: values completed by the mixed value of the root,
  // stretched to 0 .. 1, times a tenth of 50 and the most visits.
  void worths(int32_t slot, float* worth) const {
    const int32_t at = root(slot), first = nodes_.first[at], count = nodes_.count[at];
    float weight = 0, weighted = 0, total = 0, most = 0;
    for (int32_t e = first; e < first + count; ++e) {
      const float n = static_cast<float>(edges_.visits[e]);
      total += n, most = std::max(most, n);
      if (n > 0) weight += edges_.prior[e], weighted += edges_.prior[e] * edges_.sum[e] / n;
    }
    const float raw = nodes_.value[at] * nodes_.facts[at].mover;
    const float mixed = weight > 0 ? (raw + total * weighted / weight) / (1 + total) : raw;
    float low = std::numeric_limits<float>::infinity(), high = -low;
    for (int i = 0; i < count; ++i) {
      const float n = static_cast<float>(edges_.visits[first + i]);
      worth[i] = n > 0 ? edges_.sum[first + i] / n : mixed;
      low = std::min(low, worth[i]), high = std::max(high, worth[i]);
    }
    for (int i = 0; i < count; ++i)
      worth[i] = (50 + most) * 0.1f * (worth[i] - low) / std::max(high - low, 1e-8f);
  }

  // The improved policy: softmax of logits + worths, float32 [actions of the root].
  void improve(int32_t slot, float* improved) const {
    const int32_t at = root(slot), first = nodes_.first[at], count = nodes_.count[at];
    float total[Game::kMostLegal];
    worths(slot, total);
    for (int i = 0; i < count; ++i) total[i] += edges_.logit[first + i];
    softmax(count, total, improved);
  }

  TreeOptions o_;
  int32_t node_room_, edge_room_;
  Nodes nodes_;
  Edges edges_;
  Positions positions_;
  std::vector<Slot> slots_;
  std::vector<Leaf> waiting_;
  std::vector<int32_t> order_, moved_;
  std::vector<std::vector<int32_t>> halvings_;
};

}  // namespace selfplay
