// PPO by self-play in native code: what Python calls. See native.py.
#include <chrono>
#include <cstring>
#include <new>

#include "denormals.h"
#include "eggroll_world.h"
#include "update.h"

using ppo::Evaluator;
using ppo::Learner;
using ppo::Report;

static Evaluator evaluator(const float_kernels* k, Learner& l) {
  return {k, l.settings.sparse != 0, l.settings.threads, &l.work};
}

// They lie behind the learner.
static ppo::Opponent* opponents(Learner* l) { return reinterpret_cast<ppo::Opponent*>(l + 1); }

extern "C" {

// All memory of a run, with room for `opponents`, in one piece that never grows; NULL where there
// is none.
EGGROLL_EXPORT void* ppo_new(const ppo::Settings* settings, const float* weights,
                             int32_t opponents) {
  const size_t bytes = sizeof(Learner) + sizeof(ppo::Opponent) * opponents;
  void* memory = ::operator new(bytes, std::align_val_t{64}, std::nothrow);
  if (!memory) return nullptr;
  std::memset(memory, 0, bytes);
  Learner* l = static_cast<Learner*>(memory);
  l->settings = *settings;
  ppo::from_torch(weights, l->optimiser.weights);
  return l;
}

EGGROLL_EXPORT void ppo_delete(void* memory) { ::operator delete(memory, std::align_val_t{64}); }

EGGROLL_EXPORT void ppo_get_work(const Learner* l, ppo::Work* work) { *work = l->work; }

EGGROLL_EXPORT void ppo_get_weights(const Learner* l, float* weights) {
  ppo::to_torch(l->optimiser.weights, weights);
}

EGGROLL_EXPORT void ppo_set_weights(Learner* l, const float* weights) {
  ppo::from_torch(weights, l->optimiser.weights);
}

// heads [count, 10] of inputs [count, 27], count at most 1,024.
EGGROLL_EXPORT void ppo_forward(const float_kernels* k, Learner* l, int32_t count,
                                const float* inputs, float* heads) {
  std::memcpy(l->activations.inputs, inputs, sizeof(float) * ppo::kInputs * count);
  const ppo::FlushDenormals flush;
  ppo::forward(evaluator(k, *l), l->optimiser.weights, l->activations, count);
  for (int i = 0; i < count; ++i)
    std::memcpy(heads + i * ppo::kHeads, l->activations.heads + i * ppo::kHeadsApart,
                sizeof(float) * ppo::kHeads);
}

// Weights in torch's order become opponent `index`.
EGGROLL_EXPORT void ppo_freeze(const float_kernels* k, Learner* l, int32_t index,
                               const float* weights) {
  const ppo::FlushDenormals flush;
  ppo::from_torch(weights, l->frozen);
  ppo::freeze(evaluator(k, *l), l->frozen, l->collector, opponents(l)[index]);
}

// Games against opponents first .. first + count, into the learner's transitions.
EGGROLL_EXPORT void ppo_collect(const float_kernels* k, Learner* l, int32_t first, int32_t count,
                                uint64_t seed, uint64_t iteration, int32_t regrouped,
                                Report* report) {
  const ppo::FlushDenormals flush;
  const auto began = std::chrono::steady_clock::now();
  ppo::collect(evaluator(k, *l), l->settings, l->optimiser.weights, opponents(l) + first, count,
               seed, iteration, regrouped != 0, l->collector, l->transitions, *report);
  report->parts.collection +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Epochs of minibatches over the transitions that are there.
EGGROLL_EXPORT void ppo_update(const float_kernels* k, Learner* l, uint64_t seed,
                               uint64_t iteration, float rate, Report* report) {
  const ppo::FlushDenormals flush;
  ppo::update(evaluator(k, *l), *l, seed, iteration, rate, *report);
}

// One minibatch of all transitions, whose advantages and returns are given.
EGGROLL_EXPORT void ppo_train_batch(const float_kernels* k, Learner* l, const float* advantage,
                                    const float* returns, float rate, float* gradient,
                                    Report* report) {
  ppo::Transitions& t = l->transitions;
  for (int i = 0; i < t.count; ++i) {
    l->order[i] = i;
    t.advantage[i] = advantage[i];
    t.returns[i] = returns[i];
  }
  const ppo::FlushDenormals flush;
  ppo::train_batch(evaluator(k, *l), *l, l->order, t.count, rate, *report);
  ppo::dense_gradient(l->activations.active, l->optimiser.gradient, gradient);
}

EGGROLL_EXPORT void ppo_advantages(int32_t count, const float* value, const float* reward,
                                   const int32_t* last, float discount, float decay,
                                   float* advantage, float* returns) {
  ppo::advantages(count, value, reward, last, discount, decay, advantage, returns);
}

// Seconds of one call of a product of single numbers: what a call costs beside its arithmetic.
EGGROLL_EXPORT double ppo_call_seconds(const float_kernels* k, int32_t rounds) {
  float a = 1, b = 1, c = 0;
  const auto began = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < rounds; ++i) k->sgemm_nn(1, 1, 1, &a, 1, &b, 1, &c, 1, 0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / rounds;
}

// Transitions out of and into the learner; masks are of the mover's and the other's stones.
EGGROLL_EXPORT int32_t ppo_get_transitions(const Learner* l, uint16_t* boards, int32_t* move,
                                           int32_t* game, float* log_prob, float* value,
                                           float* reward, int32_t* last) {
  const ppo::Transitions& t = l->transitions;
  for (int i = 0; i < t.count; ++i) {
    boards[2 * i] = t.board[i].mine;
    boards[2 * i + 1] = t.board[i].theirs;
    move[i] = t.move[i];
    game[i] = t.game[i];
    log_prob[i] = t.log_prob[i];
    value[i] = t.value[i];
    reward[i] = t.reward[i];
    last[i] = t.last[i];
  }
  return t.count;
}

EGGROLL_EXPORT void ppo_set_transitions(Learner* l, int32_t count, const uint16_t* boards,
                                        const int32_t* move, const int32_t* game,
                                        const float* log_prob, const float* value,
                                        const float* reward, const int32_t* last) {
  ppo::Transitions& t = l->transitions;
  t.count = count;
  for (int i = 0; i < count; ++i) {
    t.board[i] = {boards[2 * i], boards[2 * i + 1]};
    t.move[i] = move[i];
    t.game[i] = game[i];
    t.log_prob[i] = log_prob[i];
    t.value[i] = value[i];
    t.reward[i] = reward[i];
    t.last[i] = last[i];
  }
}

}  // extern "C"
