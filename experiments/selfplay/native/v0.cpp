// The old way, for v0.py: one game, its search tree one object per node, leaves evaluated in
// batches.
//
// It is written as such trees usually are, and searches as the arrays do: scores are those of
// puct.h, and equal evaluations give equal visits. plain.py has the same in Python.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "chance.h"
#include "eggroll_world.h"
#include "games.h"

using namespace selfplay;

namespace {

// states int8 [n, F], legal uint8 [n, A] -> logits float32 [n, A], values float32 [n], for movers.
using Evaluate = void (*)(int32_t n, const int8_t* states, const uint8_t* legal, float* logits,
                          float* values);

struct Options {
  int32_t simulations, leaves;  // leaves of a batch
  int32_t depth;                // 1: all children of the root are evaluated first
  float exploration;
  double share, shape;  // of Dirichlet noise
};

struct Node {
  State state;
  Node* parent = nullptr;
  int action = -1;
  float logit = 0, prior = 0, weight = 0, sum = 0, value = 0;
  int visits = 0, flying = 0;
  bool open = false, fixed = false, waiting = false;
  std::vector<std::unique_ptr<Node>> children;

  int passed() const { return visits + flying; }
  float mean() const {
    return passed() ? (sum - static_cast<float>(flying)) / static_cast<float>(passed()) : 0;
  }
};

class AnySearch {
 public:
  virtual ~AnySearch() = default;
  virtual void search(const State& root, const Options& options, Chance noise, Evaluate call) = 0;
  virtual float result(float* visits) const = 0;  // of every action; returns the root's value
};

template <class Game>
class Search final : public AnySearch {
 public:
  void search(const State& root, const Options& options, Chance noise, Evaluate call) override {
    o_ = options;
    root_ = std::make_unique<Node>();
    root_->state = root;
    evaluate({root_.get()}, call);
    add_noise_to_root(noise);
    if (o_.depth == 1) evaluate_children(call);
    for (int done = 0; done < o_.simulations;) {
      std::vector<Node*> leaves;
      while (static_cast<int>(leaves.size()) < o_.leaves &&
             done + static_cast<int>(leaves.size()) < o_.simulations) {
        Node* leaf = descend();
        if (leaf->waiting) {
          pass(leaf, -1);
          break;
        }
        if (leaf->fixed) {
          back_up(leaf);
          ++done;
        } else {
          leaf->waiting = true;
          leaves.push_back(leaf);
        }
      }
      evaluate(leaves, call);
      for (Node* leaf : leaves) back_up(leaf);
      done += static_cast<int>(leaves.size());
    }
  }

  float result(float* visits) const override {
    std::fill_n(visits, Game::kActions, 0.0f);
    float sum = 0, all = 0;
    for (const auto& child : root_->children) {
      visits[child->action] = static_cast<float>(child->visits);
      sum += child->sum, all += static_cast<float>(child->visits);
    }
    return all > 0 ? sum / all : 0;
  }

 private:
  int depth(const Node* n) const { return n->state.facts.plies - root_->state.facts.plies; }

  Node* descend() {
    Node* at = root_.get();
    while (at->open) {
      int all = 1;
      for (const auto& child : at->children) all += child->passed();
      const float root = std::sqrt(static_cast<float>(all));
      Node* best = nullptr;
      float most = 0;
      for (const auto& child : at->children) {
        const float bonus = child->weight / static_cast<float>(1 + child->passed());
        const float score = child->mean() + root * bonus;
        if (!best || score > most) best = child.get(), most = score;
      }
      at = best;
      ++at->flying;
      if (at->action >= 0 && !at->fixed && !at->open && !at->waiting) make_state(at);
    }
    return at;
  }

  void make_state(Node* n) {
    n->state = n->parent->state;
    Game::apply(n->state, n->action);
    if (n->state.facts.over) n->fixed = true, n->value = n->state.facts.result;
  }

  void pass(Node* n, int by) {
    for (; n->parent; n = n->parent) n->flying += by;
  }

  void back_up(Node* leaf) {
    for (Node* n = leaf; n->parent; n = n->parent) {
      --n->flying;
      ++n->visits;
      n->sum += leaf->value * n->parent->state.facts.mover;
    }
  }

  // Batches of as many nodes as the options say.
  void evaluate(const std::vector<Node*>& nodes, Evaluate call) {
    for (size_t first = 0; first < nodes.size(); first += o_.leaves) {
      const int n = static_cast<int>(std::min<size_t>(o_.leaves, nodes.size() - first));
      std::vector<int8_t> states(size_t{1} * n * Game::kPlanes * Game::kCells);
      std::vector<uint8_t> legal(size_t{1} * n * Game::kActions);
      std::vector<float> logits(legal.size()), values(n);
      for (int i = 0; i < n; ++i) {
        Game::observe(nodes[first + i]->state,
                      &states[size_t{1} * i * Game::kPlanes * Game::kCells]);
        show_legal<Game>(nodes[first + i]->state, &legal[size_t{1} * i * Game::kActions]);
      }
      call(n, states.data(), legal.data(), logits.data(), values.data());
      for (int i = 0; i < n; ++i)
        take(nodes[first + i], &logits[size_t{1} * i * Game::kActions], values[i]);
    }
  }

  void take(Node* n, const float* logits, float value) {
    n->waiting = false;
    n->value = value * n->state.facts.mover;
    if (depth(n) >= o_.depth) {
      n->fixed = true;
      return;
    }
    int16_t actions[Game::kMostLegal];
    const int count = Game::legal(n->state, actions);
    float of_legal[Game::kMostLegal], priors[Game::kMostLegal];
    for (int i = 0; i < count; ++i) of_legal[i] = logits[actions[i]];
    softmax(count, of_legal, priors);
    for (int i = 0; i < count; ++i) {
      auto child = std::make_unique<Node>();
      child->parent = n, child->action = actions[i];
      child->prior = priors[i], child->weight = o_.exploration * priors[i];
      n->children.push_back(std::move(child));
    }
    n->open = true;
  }

  void add_noise_to_root(Chance noise) {
    std::vector<float> priors;
    for (const auto& child : root_->children) priors.push_back(child->prior);
    add_noise(static_cast<int>(priors.size()), priors.data(), o_.share, o_.shape, noise);
    for (size_t i = 0; i < priors.size(); ++i)
      root_->children[i]->weight = o_.exploration * priors[i];
  }

  void evaluate_children(Evaluate call) {
    std::vector<Node*> open;
    for (const auto& child : root_->children) {
      make_state(child.get());
      if (!child->fixed) open.push_back(child.get());
    }
    evaluate(open, call);
  }

  Options o_{};
  std::unique_ptr<Node> root_;
};

}  // namespace

EGGROLL_EXPORT AnySearch* v0_new(int32_t game) {
  return with_game(game, []<class G>() -> AnySearch* { return new Search<G>(); });
}

EGGROLL_EXPORT void v0_delete(AnySearch* search) { delete search; }

// A search from a position; visits float32 [A]. Returns the root's value for its mover.
EGGROLL_EXPORT float v0_search(AnySearch* search, const State* root, const Options* options,
                               uint64_t seed, uint64_t game, Evaluate call, float* visits) {
  const Chance noise(seed, game, root->facts.plies, kNoise);
  search->search(*root, *options, noise, call);
  return search->result(visits);
}
