// Root-PUCT over the vectors of an instruction set; puct_<name>.cpp includes it after most_of (the
// largest lane), lanes_equal (a bit for each lane that equals a number) and with_lanes (a vector
// with a number in some lanes).
//
// A simulation visits the action of the largest q + sqrt(1 + simulations so far) * c p / (1 + n),
// the first of equals, and adds its leaf's value to its sum; q = sum / n, 0 before the first visit.
// All of it is float32, in this order, without contraction, so that visits are equal everywhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace selfplay {

constexpr int kMostActions = 256;

// R roots, whose legal actions are row_ptr[r] to row_ptr[r + 1] - 1, at most kMostActions of each:
// priors, leaf values -> visits, sums of values; all float32 [n].
using AllocateRows = void (*)(int32_t R, const int32_t* row_ptr, const float* priors,
                              const float* leaves, int32_t simulations, float c, float* visits,
                              float* sums);

AllocateRows allocate_rows();                // of the widest set that this processor has
AllocateRows allocate_rows_of(int32_t set);  // 0 generic, 1 AVX2, 2 AVX-512; or NULL

#ifdef SELFPLAY_WIDTH

namespace {

constexpr int kWidth = SELFPLAY_WIDTH;
constexpr int kTogether = 4;  // roots in turn, as the simulations of one wait for each other

typedef float Floats __attribute__((vector_size(4 * kWidth)));

constexpr float kNever = -std::numeric_limits<float>::infinity();

// ---- many actions: those with visits compete with the best of the rest ------------------------

// An action without visits scores 0 + scale * weight, so that of those the largest weight is best,
// and only actions with visits are looked at one by one. They stand in the order of their first
// visits, each with its number.
struct Root {
  Floats mean[kMostActions / kWidth], bonus[kMostActions / kWidth];
  Floats rest[kMostActions / kWidth];  // weights; of actions with visits kNever
  float weight[kMostActions];
  int32_t number[kMostActions];
  const float* leaves;
  float *visits, *sums;
  float top;  // of rest
  int32_t visited, blocks;

  void begin(int32_t n, const float* priors, float c) {
    float* all = reinterpret_cast<float*>(rest);
    bool numbers = true;
    for (int32_t i = 0; i < n; ++i) {
      all[i] = weight[i] = c * priors[i];
      numbers &= weight[i] == weight[i];
    }
    std::memset(visits, 0, sizeof(float) * n);
    std::memset(sums, 0, sizeof(float) * n);
    visited = 0, blocks = (n + kWidth - 1) / kWidth;
    for (int32_t i = n; i < blocks * kWidth; ++i) all[i] = kNever;
    if (!numbers)  // then the first action takes all
      for (int32_t i = 0; i < n; ++i) all[i] = i ? kNever : 0, weight[i] = 0;
    find_top();
  }

  void find_top() {
    Floats most = rest[0];
    for (int32_t b = 1; b < blocks; ++b) most = rest[b] > most ? rest[b] : most;
    top = most_of(most);
  }

  void simulate(float scale) {
    Floats score[kMostActions / kWidth], most = Floats{} + kNever;
    const int32_t used = (visited + kWidth - 1) / kWidth;
    for (int32_t b = 0; b < used; ++b) {
      score[b] = mean[b] + scale * bonus[b];
      most = score[b] > most ? score[b] : most;
    }
    const float seen = most_of(most), fresh = scale * top;
    int32_t a = kMostActions, place = 0;
    if (fresh >= seen && top > kNever) {
      for (int32_t b = 0; a == kMostActions; ++b)
        if (const uint32_t lanes = lanes_equal(scale * rest[b], fresh))
          a = b * kWidth + __builtin_ctz(lanes);
      place = visited;
    }
    if (!(fresh > seen))
      for (int32_t b = 0; b < used; ++b)
        for (uint32_t lanes = lanes_equal(score[b], seen); lanes; lanes &= lanes - 1) {
          const int32_t at = b * kWidth + __builtin_ctz(lanes);
          if (number[at] < a) a = number[at], place = at;
        }
    if (a == kMostActions) a = number[0];  // scores are no numbers
    if (place == visited) add(a);
    const float count = visits[a] + 1, sum = sums[a] + leaves[a];
    visits[a] = count, sums[a] = sum;
    reinterpret_cast<float*>(mean)[place] = sum / count;
    reinterpret_cast<float*>(bonus)[place] = weight[a] / (1 + count);
  }

  void add(int32_t a) {
    if (visited % kWidth == 0) {
      mean[visited / kWidth] = Floats{} + kNever;
      bonus[visited / kWidth] = Floats{};
      for (int i = 0; i < kWidth; ++i) number[visited + i] = kMostActions;
    }
    number[visited++] = a;
    reinterpret_cast<float*>(rest)[a] = kNever;
    find_top();
  }
};

// ---- few actions: scores stay in registers ----------------------------------------------------

constexpr int kMostBlocks = 4;
constexpr int kFew = kMostBlocks * kWidth;  // actions, at most 64
constexpr int kFewTogether = 8;

typedef float Four __attribute__((vector_size(16)));

// What a visit changes: of every action its sum, weight, visits and 1 + visits, and what is added
// to them.
struct Few {
  Four now[kFew], visit[kFew];
  int32_t first, count;
  uint64_t all;  // a bit for every action
};

template <int kBlocks>
struct Scores {
  Floats mean[kBlocks], bonus[kBlocks];

  explicit Scores(const Few& root) {
    float first[kBlocks * kWidth], weight[kBlocks * kWidth];
    for (int32_t i = 0; i < kBlocks * kWidth; ++i) {
      first[i] = i < root.count ? 0 : kNever;
      weight[i] = i < root.count ? root.now[i][1] : 0;
    }
    std::memcpy(mean, first, sizeof mean);
    std::memcpy(bonus, weight, sizeof bonus);
  }

  void simulate(Few& root, float scale) {
    Floats score[kBlocks], best;
    for (int b = 0; b < kBlocks; ++b) {
      score[b] = mean[b] + scale * bonus[b];
      best = b ? (score[b] > best ? score[b] : best) : score[b];
    }
    const float top = most_of(best);
    uint64_t equal = 0;
    for (int b = 0; b < kBlocks; ++b) equal |= uint64_t{lanes_equal(score[b], top)} << b * kWidth;
    equal &= root.all;  // no other lane, where scores are no numbers
    const uint64_t one = equal ? equal & -equal : 1;
    const int a = __builtin_ctzll(one);
    const Four now = root.now[a] + root.visit[a];
    root.now[a] = now;
    const Four quotients = now / Four{now[2], now[3], now[2], now[3]};
    for (int b = 0; b < kBlocks; ++b) {
      const uint32_t lanes = static_cast<uint32_t>(one >> b * kWidth) & ((1u << kWidth) - 1);
      mean[b] = with_lanes(mean[b], lanes, quotients[0]);
      bonus[b] = with_lanes(bonus[b], lanes, quotients[1]);
    }
  }
};

template <int kBlocks, size_t... kRoots>
inline void allocate_few(Few* roots, int32_t simulations, std::index_sequence<kRoots...>) {
  Scores<kBlocks> scores[] = {Scores<kBlocks>(roots[kRoots])...};
  for (int32_t t = 0; t < simulations; ++t) {
    const float scale = __builtin_sqrtf(static_cast<float>(1 + t));
    (scores[kRoots].simulate(roots[kRoots], scale), ...);
  }
}

template <int kBlocks>
void allocate_few(Few* roots, int32_t simulations) {
  allocate_few<kBlocks>(roots, simulations, std::make_index_sequence<kFewTogether>());
}

// Apart from what calls it, within which compilers make it slower.
__attribute__((noinline)) void allocate_many(int32_t R, const int32_t* row_ptr, const float* priors,
                                             const float* leaves, int32_t simulations, float c,
                                             float* visits, float* sums) {
  Root roots[kTogether];
  for (int32_t r = 0; r < R;) {
    int count = 0;
    for (; r < R && count < kTogether; ++r) {
      const int32_t first = row_ptr[r], n = row_ptr[r + 1] - first;
      if (n <= kFew) continue;
      Root& root = roots[count++];
      root.leaves = leaves + first, root.visits = visits + first, root.sums = sums + first;
      root.begin(n, priors + first, c);
    }
    for (int32_t t = 0; t < simulations; ++t) {
      const float scale = __builtin_sqrtf(static_cast<float>(1 + t));
      for (int i = 0; i < count; ++i) roots[i].simulate(scale);
    }
  }
}

void allocate(int32_t R, const int32_t* row_ptr, const float* priors, const float* leaves,
              int32_t simulations, float c, float* visits, float* sums) {
  constexpr void (*kCalls[])(Few*, int32_t) = {allocate_few<1>, allocate_few<2>, allocate_few<3>,
                                               allocate_few<4>};
  Few roots[kFewTogether];
  int count = 0;
  auto run = [&](int blocks) {
    for (int i = count; i < kFewTogether; ++i)  // to fill up
      roots[i] = {}, roots[i].count = 1, roots[i].all = 1;
    kCalls[blocks - 1](roots, simulations);
    for (int i = 0; i < count; ++i)
      for (int32_t k = 0; k < roots[i].count; ++k) {
        sums[roots[i].first + k] = roots[i].now[k][0];
        visits[roots[i].first + k] = roots[i].now[k][2];
      }
    count = 0;
  };
  // Roots of as many blocks go together; those that are left join those of one more.
  int last = 1;
  for (int blocks = 1; blocks <= kMostBlocks; ++blocks)
    for (int32_t r = 0; r < R; ++r) {
      const int32_t first = row_ptr[r], n = row_ptr[r + 1] - first;
      if (n <= 0 || (n + kWidth - 1) / kWidth != blocks) continue;
      Few& root = roots[count++];
      last = blocks;
      root.first = first, root.count = n, root.all = ~uint64_t{0} >> (64 - n);
      for (int32_t k = 0; k < n; ++k) {
        root.now[k] = Four{0, c * priors[first + k], 0, 1};
        root.visit[k] = Four{leaves[first + k], 0, 1, 1};
      }
      if (count == kFewTogether) run(blocks);
    }
  if (count) run(last);
  allocate_many(R, row_ptr, priors, leaves, simulations, c, visits, sums);
}

}  // namespace

#endif

}  // namespace selfplay
