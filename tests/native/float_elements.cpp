// Functions of single numbers, rows and optimisers, compared with double precision.
#include <cstring>

#include "float_reference.h"

namespace {

// Error in units of the last place of the expected float.
double ulps(float got, double expected) {
  float near = static_cast<float>(expected);
  float next = std::nextafter(std::fabs(near), std::numeric_limits<float>::infinity());
  return std::fabs(got - expected) / (next - std::fabs(near));
}

template <class Function, class Exact>
void check_function(const float_kernels& t, const char* what, Function f, Exact exact, float low,
                    float high, double allowed) {
  const int n = 20011;
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = low + (high - low) * static_cast<float>(i) / (n - 1);
  f(n, x.data(), y.data());
  double worst = 0;
  for (int i = 0; i < n; ++i) worst = std::fmax(worst, ulps(y[i], exact(x[i])));
  if (worst > allowed) std::printf("%s: %g ulp\n", what, worst);
  expect(t.isa, what, worst <= allowed);
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {inf, -inf, std::nanf(""), 0.0f, -0.0f};
  float got[5];
  f(5, special, got);
  bool right = std::isnan(got[2]);
  for (int i : {0, 1, 3, 4}) right &= got[i] == static_cast<float>(exact(special[i]));
  expect(t.isa, "infinity, NaN and 0", right);
}

void check_gelu(const float_kernels& t, int kind, int n) {
  Matrix x(1, n), dy(1, n), y(1, n, 0, false), slope = y, dx = y, again = y;
  for (int j = 0; j < n; ++j) x(0, j) *= 3;
  t.gelu(kind, n, x.data(), y.data(), slope.data());
  t.gelu_backward(kind, n, x.data(), dy.data(), dx.data());
  t.gelu_backward(FLOAT_KERNELS_SLOPE, n, slope.data(), dy.data(), again.data());
  Doubles value(1, n), derivative(1, n), chain(1, n);
  for (int j = 0; j < n; ++j) {
    value(0, j) = gelu_value(kind, x(0, j)), derivative(0, j) = gelu_slope(kind, x(0, j));
    chain(0, j) = derivative(0, j) * static_cast<double>(dy(0, j));
  }
  compare(t.isa, "gelu", y, value, 1e-6);
  compare(t.isa, "its slope", slope, derivative, 1e-6);
  compare(t.isa, "gelu_backward", dx, chain, 1e-6);
  compare(t.isa, "gelu_backward by slope", again, chain, 1e-6);
}

void check_softmax(const float_kernels& t, int rows, int n, int gap) {
  Matrix x(rows, n, gap), y(rows, n, gap, false), dx(rows, n, gap, false);
  Doubles p(rows, n), gradient(rows, n);
  std::vector<int32_t> labels(rows);
  double loss = 0;
  for (int i = 0; i < rows; ++i) {
    if (n > 2) x(i, 1) = -std::numeric_limits<float>::infinity(), x(i, 2) = 90;
    double top = -1e30, total = 0;
    for (int j = 0; j < n; ++j) top = std::fmax(top, x(i, j));
    for (int j = 0; j < n; ++j) total += p(i, j) = std::exp(x(i, j) - top);
    for (int j = 0; j < n; ++j) p(i, j) /= total;
    labels[i] = n > 2 ? (i % 2 ? 2 : 0) : 0;
    loss -= (x(i, labels[i]) - top - std::log(total)) / rows;
    for (int j = 0; j < n; ++j) gradient(i, j) = (p(i, j) - (j == labels[i])) / rows;
  }
  t.softmax(rows, n, x.data(), x.ld, y.data(), y.ld);
  compare(t.isa, "softmax", y, p, 1e-6);
  double got = t.cross_entropy(rows, n, x.data(), x.ld, labels.data(), dx.data(), dx.ld);
  compare(t.isa, "cross_entropy's gradient", dx, gradient, 1e-6);
  expect(t.isa, "cross_entropy", std::fabs(got - loss) < 1e-6 * (1 + std::fabs(loss)));
}

void check_masks(const float_kernels& t, int rows, int n, int gap) {
  Matrix y(rows, n, gap), dy(rows, n, gap), dx(rows, n, gap, false), again = dx;
  Matrix s(1, n, 0, false), s2 = s, s3 = s;
  Doubles expected(rows, n), total(1, n);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < n; ++j) {
      if ((i + j) % 3 == 0) y(i, j) = 0;
      expected(i, j) = y(i, j) > 0 ? static_cast<double>(dy(i, j)) : 0;
      total(0, j) += expected(i, j);
    }
  std::vector<uint32_t> bits(static_cast<size_t>(rows) * ((n + 31) / 32));
  Matrix relu = y;
  t.bias_relu(rows, n, relu.data(), relu.ld, nullptr, bits.data());
  t.relu_backward(rows, n, y.data(), y.ld, dy.data(), dy.ld, dx.data(), dx.ld, s.data());
  t.relu_backward_bits(rows, n, bits.data(), dy.data(), dy.ld, again.data(), again.ld, s2.data());
  compare(t.isa, "relu_backward", dx, expected, 0);
  compare(t.isa, "relu_backward_bits", again, expected, 0);
  compare(t.isa, "its sums", s, total, 3e-7 * (rows + 4));
  compare(t.isa, "its sums by bits", s2, total, 3e-7 * (rows + 4));
  t.column_sums(rows, n, dx.data(), dx.ld, s3.data(), 0);
  t.column_sums(rows, n, dx.data(), dx.ld, s3.data(), 1);
  for (double& e : total.all) e *= 2;
  compare(t.isa, "column_sums", s3, total, 3e-7 * (rows + 4));
}

void check_adam(const float_kernels& t, int n) {
  Matrix w(1, n), g(1, n), m(1, n), v(1, n);
  Doubles ew(1, n), em(1, n), ev(1, n);
  for (int j = 0; j < n; ++j) {
    v(0, j) = std::fabs(v(0, j));
    ew(0, j) = w(0, j), em(0, j) = m(0, j), ev(0, j) = v(0, j);
  }
  const double lr = 0.01, b1 = 0.9, b2 = 0.999, eps = 1e-2, clip = 0.25;
  for (int step = 3; step < 6; ++step) {
    t.adam(n, w.data(), g.data(), m.data(), v.data(), lr, b1, b2, eps, clip, step);
    for (int j = 0; j < n; ++j) {
      double d = clip * g(0, j);
      em(0, j) = b1 * em(0, j) + (1 - b1) * d, ev(0, j) = b2 * ev(0, j) + (1 - b2) * d * d;
      ew(0, j) -= lr / (1 - std::pow(b1, step)) * em(0, j) /
                  (std::sqrt(ev(0, j) / (1 - std::pow(b2, step))) + eps);
    }
  }
  compare(t.isa, "adam's weights", w, ew, 1e-6);
  compare(t.isa, "adam's means", m, em, 1e-6);
  compare(t.isa, "adam's squares", v, ev, 1e-6);
  double squares = 0;
  for (int j = 0; j < n; ++j) squares += g(0, j) * static_cast<double>(g(0, j));
  expect(t.isa, "sum_squares", std::fabs(t.sum_squares(n, g.data()) - squares) <= 1e-6 * squares);
  Doubles moved(1, n);
  for (int j = 0; j < n; ++j) moved(0, j) = w(0, j) - 0.5 * g(0, j);
  t.axpy(n, -0.5f, g.data(), w.data());
  compare(t.isa, "axpy", w, moved, 1e-7);
}

}  // namespace

void check_elements(const float_kernels& t) {
  auto exp = [](double x) { return std::exp(x); };
  auto tanh = [](double x) { return std::tanh(x); };
  auto erf = [](double x) { return std::erf(x); };
  check_function(t, "exp", t.exp, exp, -86.9f, 88.7f, 1.5);
  check_function(t, "tanh", t.tanh, tanh, -10, 10, 1.5);
  check_function(t, "tanh near 0", t.tanh, tanh, -0.01f, 0.01f, 1.5);
  check_function(t, "erf", t.erf, erf, -5, 5, 1.5);
  check_function(t, "erf near 0", t.erf, erf, -0.01f, 0.01f, 1.5);
  for (int n : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 65, 4001}) {
    check_gelu(t, FLOAT_KERNELS_GELU_ERF, n);
    check_gelu(t, FLOAT_KERNELS_GELU_TANH, n);
    check_adam(t, n);
    for (int gap : {0, 3}) {
      check_softmax(t, n > 99 ? 1 : 5, n, gap);
      check_masks(t, n > 99 ? 2 : 5, n, gap);
    }
  }
  expect(t.isa, "a register loop counts", t.peak(10) == 10 * t.peak(1) && t.peak(1) > 0);
}
