// Adam, the sum of squares and y += alpha x.
#pragma once

#include "elements.h"

namespace float_kernels_impl {

template <class Isa>
struct Optimize : Elements<Isa> {
  using E = Elements<Isa>;
  using V = Vec<Isa>;
  using F = typename V::F;
  static constexpr int N = V::N;

  // 1 - b^step.
  static double one_less_power(double b, int64_t step) { return 1.0 - __builtin_pow(b, step); }

  static void adam(int64_t n, float* w, const float* g, float* m, float* v, double lr, double b1,
                   double b2, double eps, double clip_scale, int64_t step) {
    // Rounded once here: 1 - b2 of a b2 rounded before would be off by 1e-5.
    const float rate = static_cast<float>(lr / one_less_power(b1, step));
    const float root = static_cast<float>(1.0 / __builtin_sqrt(one_less_power(b2, step)));
    const float f1 = static_cast<float>(b1), c1 = static_cast<float>(1.0 - b1);
    const float f2 = static_cast<float>(b2), c2 = static_cast<float>(1.0 - b2);
    const float least = static_cast<float>(eps), clip = static_cast<float>(clip_scale);
    E::pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
      F d = E::get(g + i, lanes) * clip;
      F mean = E::get(m + i, lanes) * f1 + d * c1;
      F square = E::get(v + i, lanes) * f2 + d * d * c2;
      E::put(m + i, mean, lanes);
      E::put(v + i, square, lanes);
      F step_of = mean * rate / (Isa::sqrt(square) * root + least);
      E::put(w + i, E::get(w + i, lanes) - step_of, lanes);
    });
  }

  static double sum_squares(int64_t n, const float* x) {
    const int64_t piece = 64 * 4 * N;  // a lane adds up 64 squares as floats
    double sum = 0;
    for (int64_t i = 0; i < n; i += piece) sum += piece_of(n - i < piece ? n - i : piece, x + i);
    return sum;
  }
  static float piece_of(int64_t n, const float* x) {
    F s[4] = {};
    int64_t i = 0;
    for (; i + 4 * N <= n; i += 4 * N)
      for (int j = 0; j < 4; ++j) {
        F v = V::load(x + i + j * N);
        s[j] += v * v;
      }
    E::pieces(n - i, [&](int64_t j, int lanes) FK_LAMBDA {
      F v = E::get(x + i + j, lanes);
      s[0] += v * v;
    });
    return V::sum((s[0] + s[1]) + (s[2] + s[3]));
  }

  static void axpy(int64_t n, float alpha, const float* x, float* y) {
    E::pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
      E::put(y + i, E::get(y + i, lanes) + E::get(x + i, lanes) * alpha, lanes);
    });
  }

  static int64_t peak(int64_t rounds) {
    constexpr int kSums = Isa::kPeakSums;
    F s[kSums], x = V::all(0.5f), y = V::all(0.25f);
#pragma GCC unroll 32
    for (int j = 0; j < kSums; ++j)
      s[j] = V::all(static_cast<float>(j));  // else one would serve all
    for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 32
      for (int j = 0; j < kSums; ++j) s[j] = s[j] * x + y;
    F total = F{};
    for (int j = 0; j < kSums; ++j) total += s[j];
    return V::sum(total) < 0 ? 0 : rounds * kSums * N;
  }
};

}  // namespace float_kernels_impl
