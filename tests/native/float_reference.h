// Matrices with guarded gaps, and the float kernels' functions in double precision by plain loops.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "float_kernels.h"

inline int failures = 0, cases = 0;

// Numbers of a fixed sequence, about as large as normal ones.
inline float draw() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (static_cast<float>(state >> 40) / (1 << 23) - 1.0f) * 1.7f;
}

// Rows `ld` apart, behind one float that keeps them off any alignment. What lies between rows is
// NaN, which spoils every sum that reads it, and is checked to be so still.
struct Matrix {
  int rows, columns, ld;
  std::vector<float> all;

  Matrix(int r, int c, int gap = 0, bool filled = true)
      : rows(r),
        columns(c),
        ld(c + gap),
        all(1 + (r > 0 ? static_cast<size_t>(r - 1) * ld + c : 0),
            std::numeric_limits<float>::quiet_NaN()) {
    for (int i = 0; i < rows && filled; ++i)
      for (int j = 0; j < columns; ++j) (*this)(i, j) = draw();
  }
  float* data() { return all.data() + 1; }
  const float* data() const { return all.data() + 1; }
  float& operator()(int i, int j) { return data()[static_cast<size_t>(i) * ld + j]; }
  double operator()(int i, int j) const { return data()[static_cast<size_t>(i) * ld + j]; }
  bool gaps_untouched() const {
    if (!std::isnan(all[0])) return false;
    for (int i = 0; i + 1 < rows; ++i)
      for (int j = columns; j < ld; ++j)
        if (!std::isnan((*this)(i, j))) return false;
    return true;
  }
};

struct Doubles {
  int rows, columns;
  std::vector<double> all;
  Doubles(int r, int c) : rows(r), columns(c), all(static_cast<size_t>(r) * c) {}
  double& operator()(int i, int j) { return all[static_cast<size_t>(i) * columns + j]; }
  double operator()(int i, int j) const { return all[static_cast<size_t>(i) * columns + j]; }
};

template <class A, class B>
Doubles product(const A& a, const B& b, int m, int n, int k, bool turn_a, bool turn_b) {
  Doubles c(m, n);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      for (int d = 0; d < k; ++d)
        c(i, j) += static_cast<double>(turn_a ? a(d, i) : a(i, d)) * (turn_b ? b(j, d) : b(d, j));
  return c;
}

// One more case; `near` is the error that is allowed relative to 1 + |expected|.
inline void compare(const char* isa, const char* what, const Matrix& got, const Doubles& expected,
                    double near) {
  ++cases;
  double worst = 0;
  for (int i = 0; i < got.rows; ++i)
    for (int j = 0; j < got.columns; ++j) {
      double e = expected(i, j), d = std::fabs(got(i, j) - e) / (1 + std::fabs(e));
      if (!(d <= worst)) worst = d;  // NaN too
    }
  if (worst <= near && got.gaps_untouched()) return;
  ++failures;
  std::printf("%s %s [%d, %d] ld %d: error %g, allowed %g%s\n", isa, what, got.rows, got.columns,
              got.ld, worst, near, got.gaps_untouched() ? "" : "; wrote between rows");
}

inline void expect(const char* isa, const char* what, bool held) {
  ++cases;
  if (held) return;
  ++failures;
  std::printf("%s %s: not so\n", isa, what);
}

inline Doubles sums(const Matrix& x) {
  Doubles s(1, x.columns);
  for (int i = 0; i < x.rows; ++i)
    for (int j = 0; j < x.columns; ++j) s(0, j) += x(i, j);
  return s;
}

inline double gelu_value(int kind, double x) {
  if (kind == FLOAT_KERNELS_GELU_ERF) return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

inline double gelu_slope(int kind, double x) {
  if (kind == FLOAT_KERNELS_GELU_ERF)
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
  double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  double inner = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}

inline bool bit(const std::vector<uint32_t>& bits, int n, int i, int j) {
  return bits[static_cast<size_t>(i) * ((n + 31) / 32) + j / 32] >> j % 32 & 1;
}
