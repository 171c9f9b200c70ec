// Chance as a pure function of (seed, game, ply, purpose), so that a game's moves depend on no
// other game, and choices among weights. plain.py has the same in Python, bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace selfplay {

enum Purpose : uint64_t { kMove, kNoise, kGumbel };

// splitmix64 (Steele, Lea and Flood, 2014) from a hash of four numbers.
class Chance {
 public:
  Chance(uint64_t seed, uint64_t game, uint64_t ply, Purpose purpose)
      : state_(mixed(mixed(mixed(seed) ^ game) ^ (4 * ply + purpose))) {}

  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // in [0, 1)

  double normal() {  // by Box and Muller; the second of the pair is not kept
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  double gumbel() { return -std::log(-std::log(std::fmax(uniform(), 0x1p-53))); }

 private:
  static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint64_t bits() {
    const uint64_t found = mixed(state_);
    state_ += 0x9e3779b97f4a7c15u;
    return found;
  }

  uint64_t state_;
};

// Draws of a gamma distribution, by Marsaglia and Tsang (2000); a shape below 1 is that of shape +
// 1, scaled.
class Gamma {
 public:
  explicit Gamma(double shape)
      : scale_(shape < 1 ? 1 / shape : 0), d_((shape < 1 ? shape + 1 : shape) - 1.0 / 3) {}

  double draw(Chance& chance) const {
    for (;;) {
      const double x = chance.normal(), v = (1 + c_ * x) * (1 + c_ * x) * (1 + c_ * x);
      if (!(v > 0)) continue;
      const double u = 1 - chance.uniform();
      if (!surely(x, u) && std::log(u) >= 0.5 * x * x + d_ * (1 - v + std::log(v))) continue;
      return scale_ > 0 ? d_ * v * std::pow(1 - chance.uniform(), scale_) : d_ * v;
    }
  }

 private:
  // Whether the comparison of logarithms would pass: their difference is then at least 5e-10, for
  // any shape, where roundings are below 1e-12.
  static bool surely(double x, double u) {
    return std::fabs(x) > 0.05 && u < 1 - 0.0331 * x * x * x * x;
  }

  double scale_, d_, c_ = 1 / std::sqrt(9 * d_);
};

// Chance of roots: the seed, and of each the game's number and its plies, int32 [R].
struct Draws {
  uint64_t seed;
  const int32_t *games, *plies;

  Chance of(int64_t r, Purpose purpose) const {
    return Chance(seed, static_cast<uint64_t>(games[r]), static_cast<uint64_t>(plies[r]), purpose);
  }
};

// The first of the largest.
inline int first_largest(const float* weights, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i)
    if (weights[i] > weights[best]) best = i;
  return best;
}

// The place that u in [0, 1) falls into, odds being weight^(1 / temperature). Powers are taken in
// logarithms, below that of the largest: weight^1000 has no float64, its ratio to the largest has.
// A temperature of 0 gives the first of the largest. Weights are at least 0, one is above.
inline int sampled(const float* weights, int count, double temperature, double u) {
  if (temperature <= 0) return first_largest(weights, count);
  const double top = std::log(weights[first_largest(weights, count)]);
  auto odds = [&](int i) { return std::exp((std::log(weights[i]) - top) / temperature); };
  double total = 0;
  for (int i = 0; i < count; ++i)
    if (weights[i] > 0) total += odds(i);
  double left = u * total;
  int last = 0;
  for (int i = 0; i < count; ++i) {
    if (!(weights[i] > 0)) continue;
    left -= odds(i);
    last = i;
    if (left < 0) break;
  }
  return last;
}

// Softmax in float64, summed from the first to the last, rounded to float32 at the end.
inline void softmax(int count, const float* logits, float* out) {
  const double top = logits[first_largest(logits, count)];
  double odds[256], total = 0;
  for (int i = 0; i < count; ++i) total += odds[i] = std::exp(logits[i] - top);
  for (int i = 0; i < count; ++i) out[i] = static_cast<float>(odds[i] / total);
}

// Priors mixed with Dirichlet noise: (1 - share) p + share d, d of `shape` in every place.
inline void add_noise(int count, float* priors, double share, double shape, Chance chance) {
  if (share <= 0) return;
  double drawn[256], total = 0;
  const Gamma gamma(shape);
  for (int i = 0; i < count; ++i) total += drawn[i] = gamma.draw(chance);
  for (int i = 0; i < count && total > 0; ++i)
    priors[i] = static_cast<float>((1 - share) * priors[i] + share * drawn[i] / total);
}

}  // namespace selfplay
