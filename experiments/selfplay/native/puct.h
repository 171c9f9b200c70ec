// Root-PUCT of one row over the vectors of an instruction set; puct_<name>.cpp includes it.
//
// A simulation visits the action of the largest q + sqrt(1 + simulations so far) * c p / (1 + n),
// the first of equals, and adds its leaf's value to its sum; q = sum / n, 0 before the first visit.
// All of it is float32, in this order, without contraction, so that visits are equal everywhere.
#pragma once

#include <cstdint>
#include <limits>

namespace selfplay {

constexpr int kMostActions = 256, kWidest = 16;

// n legal actions: priors, leaf values -> visits, sums of values; all float32 [n].
using AllocateRow = void (*)(int32_t n, const float* priors, const float* leaves,
                             int32_t simulations, float c, float* visits, float* sums);

AllocateRow allocate_row();                // of the widest set that this processor has
AllocateRow allocate_row_of(int32_t set);  // 0 generic, 1 AVX2, 2 AVX-512; or NULL

#ifdef SELFPLAY_WIDTH

namespace {

constexpr int kWidth = SELFPLAY_WIDTH;
typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));

// Two chains of comparisons, as one would wait for itself.
void allocate(int32_t n, const float* priors, const float* leaves, int32_t simulations, float c,
              float* visits, float* sums) {
  const int32_t blocks = (n + 2 * kWidth - 1) / (2 * kWidth) * 2;
  Floats q[kMostActions / kWidth + 2], u[kMostActions / kWidth + 2];
  float *mean = reinterpret_cast<float*>(q), *bonus = reinterpret_cast<float*>(u);
  float weight[kMostActions];
  for (int32_t i = 0; i < n; ++i) {
    bonus[i] = weight[i] = c * priors[i];
    mean[i] = visits[i] = sums[i] = 0;
  }
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int32_t i = n; i < blocks * kWidth; ++i) mean[i] = kNever, bonus[i] = 0;
  Ints first;
  for (int i = 0; i < kWidth; ++i) first[i] = i;
  for (int32_t t = 0; t < simulations; ++t) {
    const float root = __builtin_sqrtf(static_cast<float>(1 + t));
    Floats best[2] = {q[0] + root * u[0], q[1] + root * u[1]};
    Ints at[2] = {first, first + kWidth}, place[2] = {at[0], at[1]};
    for (int32_t b = 2; b < blocks; b += 2)
      for (int k = 0; k < 2; ++k) {
        const Floats score = q[b + k] + root * u[b + k];
        const Ints better = score > best[k];
        place[k] += 2 * kWidth;
        best[k] = better ? score : best[k];
        at[k] = better ? place[k] : at[k];
      }
    const Ints second = (best[1] > best[0]) | ((best[1] == best[0]) & (at[1] < at[0]));
    const Floats top = second ? best[1] : best[0];
    const Ints where = second ? at[1] : at[0];
    float most = top[0];
    int32_t a = where[0];
    for (int i = 1; i < kWidth; ++i) {
      const bool take = top[i] > most || (top[i] == most && where[i] < a);
      most = take ? top[i] : most;
      a = take ? where[i] : a;
    }
    visits[a] += 1;
    sums[a] += leaves[a];
    mean[a] = sums[a] / visits[a];
    bonus[a] = weight[a] / (1 + visits[a]);
  }
}

}  // namespace

#endif

}  // namespace selfplay
