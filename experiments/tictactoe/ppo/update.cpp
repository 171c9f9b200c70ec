#include "update.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace ppo {

namespace {

constexpr uint64_t kOrder = uint64_t{1} << 32;  // the stream of random orders, past those of games

// Adds the time since it was made, or since the last call, to a part.
class Watch {
 public:
  void add(double& part) {
    const auto now = std::chrono::steady_clock::now();
    part += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }

 private:
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// Gradient of one transition by logits and value, added to its row; `scale` is 1 / batch.
void add_transition(const Settings& s, const Transitions& t, int i, const float* log_probs,
                    const float* heads, uint32_t legal, float scale, float* delta, double* loss) {
  const int move = t.move[i];
  const float ratio = std::exp(log_probs[move] - t.log_prob[i]), gain = t.advantage[i];
  const float clipped = std::clamp(ratio, 1 - s.clip, 1 + s.clip);
  loss[0] -= std::min(ratio * gain, clipped * gain);
  if (ratio * gain <= clipped * gain) {
    const float slope = -scale * gain * ratio;
    for (int j = 0; j < kMoves; ++j)
      if (legal >> j & 1) delta[j] -= slope * std::exp(log_probs[j]);
    delta[move] += slope;
  }
  const float error = heads[kMoves] - t.returns[i];
  loss[1] += error * error;
  delta[kMoves] += 2 * scale * s.value * error;
}

// Gradient of -weight * entropy by a row's logits: weight p (log p + entropy).
void add_entropy(const float* log_probs, uint32_t legal, float entropy, float weight,
                 float* delta) {
  for (int j = 0; j < kMoves; ++j)
    if (legal >> j & 1) delta[j] += weight * std::exp(log_probs[j]) * (log_probs[j] + entropy);
}

void normalise(int count, float* values) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) sum += values[i];
  const double mean = sum / count;
  for (int i = 0; i < count; ++i) squares += (values[i] - mean) * (values[i] - mean);
  const double scale = 1 / (std::sqrt(squares / count) + 1e-8);
  for (int i = 0; i < count; ++i) values[i] = static_cast<float>((values[i] - mean) * scale);
}

}  // namespace

int batch_rows(Learner& l, const int32_t* chosen, int count) {
  int rows = 0;
  l.distinct.clear();
  for (int i = 0; i < count; ++i) {
    const Board b = l.transitions.board[chosen[i]];
    const int before = rows;
    l.row[i] = l.settings.distinct ? l.distinct.of(code_of(b), rows) : rows++;
    if (rows > before) {
      observe(b, l.activations.inputs + before * kInputs);
      l.legal[before] = b.legal();
      l.share[before] = 0;
    }
    ++l.share[l.row[i]];
  }
  return rows;
}

void batch_loss(Learner& l, const int32_t* chosen, int count, int rows, Report& report) {
  const Settings& s = l.settings;
  const float scale = 1.0f / static_cast<float>(count);
  double loss[2] = {}, entropy = 0;
  for (int r = 0; r < rows; ++r) {
    float* delta = l.deltas.heads + r * kHeadsApart;
    std::fill(delta, delta + kHeads, 0.0f);
    const float* heads = l.activations.heads + r * kHeadsApart;
    l.entropy[r] = masked_log_softmax(heads, l.legal[r], l.log_probs[r]);
    const float share = static_cast<float>(l.share[r]);
    add_entropy(l.log_probs[r], l.legal[r], l.entropy[r], s.entropy * scale * share, delta);
    entropy += share * l.entropy[r];
  }
  for (int i = 0; i < count; ++i) {
    const int r = l.row[i];
    add_transition(s, l.transitions, chosen[i], l.log_probs[r],
                   l.activations.heads + r * kHeadsApart, l.legal[r], scale,
                   l.deltas.heads + r * kHeadsApart, loss);
  }
  report.policy += loss[0] * scale;
  report.value += loss[1] * scale;
  report.entropy += entropy * scale;
}

void train_batch(const Evaluator& e, Learner& l, const int32_t* chosen, int count, float rate,
                 Report& report) {
  const Settings& s = l.settings;
  Optimiser& o = l.optimiser;
  Watch watch;
  const int rows = batch_rows(l, chosen, count);
  watch.add(report.parts.other);
  forward(e, o.weights, l.activations, rows);
  watch.add(report.parts.forward);
  batch_loss(l, chosen, count, rows, report);
  watch.add(report.parts.loss);
  const double norm = std::sqrt(backward(e, o.weights, l.activations, l.deltas, o.gradient, rows));
  watch.add(report.parts.backward);
  const float clip = static_cast<float>(std::min(1.0, s.norm / (norm + 1e-6)));
  adam(*e.kernels, s, l.activations.active, o, rate, clip);
  watch.add(report.parts.adam);
  report.trained_rows += rows;
}

void update(const Evaluator& e, Learner& l, uint64_t seed, uint64_t iteration, float rate,
            Report& report) {
  const Settings& s = l.settings;
  Transitions& t = l.transitions;
  Watch watch;
  advantages(t.count, t.value, t.reward, t.last, s.discount, s.decay, t.advantage, t.returns);
  if (s.normalise) normalise(t.count, t.advantage);
  Random random(seed, iteration, kOrder);
  int batches = 0;
  for (int epoch = 0; epoch < s.epochs; ++epoch) {
    for (int i = 0; i < t.count; ++i) l.order[i] = i;
    for (int i = t.count - 1; i > 0; --i) std::swap(l.order[i], l.order[random.below(i + 1)]);
    watch.add(report.parts.other);
    for (int i = 0; i < t.count; i += s.batch, ++batches)
      train_batch(e, l, l.order + i, std::min(s.batch, t.count - i), rate, report);
    watch = Watch();
  }
  report.policy /= batches;
  report.value /= batches;
  report.entropy /= batches;
}

}  // namespace ppo
