// Compares every table of float kernels with plain loops in double precision.
#include "float_kernels.h"

#include <cstring>

#include "float_reference.h"

#ifdef FK_WIDE
namespace float_kernels_impl::wide {
extern const float_kernels table;
}
#endif

namespace {

struct Shape {
  int m, n, k;
};
// Around the tiles (6 x 8, 6 x 16, 14 x 32), the depth of a panel, the width of a block and its
// rows.
const Shape kShapes[] = {{1, 1, 1},    {1, 17, 3},    {2, 1, 9},      {5, 15, 16},  {6, 16, 8},
                         {7, 33, 31},  {13, 10, 64},  {14, 32, 257},  {15, 27, 40}, {29, 65, 5},
                         {64, 48, 27}, {3, 1031, 11}, {151, 40, 130}, {12, 8, 801}, {5, 3, 0}};

void check_products(const float_kernels& t, const Shape& s, int gap, int threads) {
  for (int kind = 0; kind < 3; ++kind) {
    bool tn = kind == FLOAT_KERNELS_TN, nt = kind == FLOAT_KERNELS_NT;
    Matrix a(tn ? s.k : s.m, tn ? s.m : s.k, gap), b(nt ? s.n : s.k, nt ? s.k : s.n, 2 * gap);
    Doubles expected = product(a, b, s.m, s.n, s.k, tn, nt);
    double near = 3e-7 * (s.k + 4);
    Matrix c(s.m, s.n, gap, false);
    t.sgemm(kind, s.m, s.n, s.k, a.data(), a.ld, b.data(), b.ld, c.data(), c.ld, 0, threads);
    compare(t.isa, "sgemm", c, expected, near);
    auto direct = tn ? t.sgemm_tn : nt ? t.sgemm_nt : t.sgemm_nn;
    Matrix again(s.m, s.n, gap, false);
    direct(s.m, s.n, s.k, a.data(), a.ld, b.data(), b.ld, again.data(), again.ld, 0);
    bool same = true;
    for (int i = 0; i < s.m; ++i) same &= !std::memcmp(&c(i, 0), &again(i, 0), 4u * s.n);
    expect(t.isa, "the same for any number of threads", same);
    direct(s.m, s.n, s.k, a.data(), a.ld, b.data(), b.ld, c.data(), c.ld, 1);
    for (double& e : expected.all) e *= 2;
    compare(t.isa, "sgemm accumulates", c, expected, near);
    if (tn) continue;
    std::vector<float> packed(t.packed_floats(s.k, s.n));
    t.pack(s.k, s.n, b.data(), b.ld, nt, packed.data());
    for (double& e : expected.all) e /= 2;
    Matrix d(s.m, s.n, gap, false);
    t.sgemm_packed(s.m, s.n, s.k, a.data(), a.ld, packed.data(), d.data(), d.ld, 0, threads);
    compare(t.isa, "sgemm_packed", d, expected, near);
  }
}

void check_linear(const float_kernels& t, const Shape& s, int gap) {
  Matrix x(s.m, s.k, gap), w(s.n, s.k, gap), bias(1, s.n), y(s.m, s.n, gap, false);
  Doubles expected = product(x, w, s.m, s.n, s.k, false, true);
  for (int i = 0; i < s.m; ++i)
    for (int j = 0; j < s.n; ++j)
      expected(i, j) = std::fmax(0, expected(i, j) + static_cast<double>(bias(0, j)));
  std::vector<uint32_t> bits(static_cast<size_t>(s.m) * ((s.n + 31) / 32), 0xDEADBEEF), ones = bits;
  t.linear(s.m, s.n, s.k, x.data(), x.ld, w.data(), w.ld, bias.data(), y.data(), y.ld, 1,
           bits.data(), 3);
  compare(t.isa, "linear", y, expected, 3e-7 * (s.k + 4));
  std::vector<float> packed(t.packed_floats(s.k, s.n));
  t.pack(s.k, s.n, w.data(), w.ld, 1, packed.data());
  Matrix z(s.m, s.n, gap, false);
  t.linear_packed(s.m, s.n, s.k, x.data(), x.ld, packed.data(), nullptr, z.data(), z.ld, 0, nullptr,
                  1);
  t.bias_relu(s.m, s.n, z.data(), z.ld, bias.data(), ones.data());
  compare(t.isa, "linear_packed, bias_relu", z, expected, 3e-7 * (s.k + 4));
  bool equal = true, clear = true;
  for (int i = 0; i < s.m; ++i)
    for (int j = 0; j < (s.n + 31) / 32 * 32; ++j) {
      if (j >= s.n) {
        clear &= !bit(bits, s.n, i, j) && !bit(ones, s.n, i, j);
        continue;
      }
      equal &= bit(bits, s.n, i, j) == (y(i, j) > 0) && bit(ones, s.n, i, j) == (z(i, j) > 0);
    }
  expect(t.isa, "bits are where the output is above 0", equal);
  expect(t.isa, "bits past the last column are 0", clear);
}

void check_linear_backward(const float_kernels& t, const Shape& s, int gap) {
  Matrix x(s.m, s.k, gap), w(s.n, s.k, gap), y(s.m, s.n, gap), dy(s.m, s.n, gap), by_bits = dy;
  std::vector<uint32_t> bits(static_cast<size_t>(s.m) * ((s.n + 31) / 32));
  Matrix relu = y;
  t.bias_relu(s.m, s.n, relu.data(), relu.ld, nullptr, bits.data());
  Matrix masked = dy;
  for (int i = 0; i < s.m; ++i)
    for (int j = 0; j < s.n; ++j)
      if (!(y(i, j) > 0)) masked(i, j) = 0;
  for (int way = 0; way < 2; ++way) {
    Matrix& d = way ? by_bits : dy;
    Matrix dw(s.n, s.k, gap, false), db(1, s.n, 0, false), dx(s.m, s.k, gap, false);
    t.linear_backward(s.m, s.n, s.k, x.data(), x.ld, w.data(), w.ld, d.data(), d.ld,
                      way ? nullptr : relu.data(), relu.ld, way ? bits.data() : nullptr, dw.data(),
                      dw.ld, db.data(), dx.data(), dx.ld, 0, 2);
    compare(t.isa, "dw", dw, product(masked, x, s.n, s.k, s.m, true, false), 3e-7 * (s.m + 4));
    compare(t.isa, "db", db, sums(masked), 3e-7 * (s.m + 4));
    compare(t.isa, "dx", dx, product(masked, w, s.m, s.k, s.n, false, false), 3e-7 * (s.n + 4));
  }
}

struct Network {  // two layers with everything their backward needs
  Matrix x, w1, b1, w2, b2, dy;
  Doubles pre;
  Network(int rows, int in, int hidden, int out, int gap)
      : x(rows, in, gap),
        w1(hidden, in, gap),
        b1(1, hidden),
        w2(out, hidden, gap),
        b2(1, out),
        dy(rows, out, gap),
        pre(product(x, w1, rows, hidden, in, false, true)) {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < hidden; ++j) pre(i, j) += static_cast<double>(b1(0, j));
  }
  float_kernels_two_layers struct_of() {
    return {x.rows,    x.columns, w1.rows,   w2.rows, x.data(), w1.data(),
            b1.data(), w2.data(), b2.data(), x.ld,    w1.ld,    w2.ld};
  }
};

// `value` and `slope` are the activation and its derivative; `call` runs the backward under test.
template <class Value, class Slope, class Call>
void check_backward(const float_kernels& t, const char* what, Network& net, Matrix& y, Value value,
                    Slope slope, Call call) {
  int rows = net.x.rows, in = net.x.columns, hidden = net.w1.rows, out = net.w2.rows;
  Doubles act(rows, hidden);
  for (size_t i = 0; i < act.all.size(); ++i) act.all[i] = value(net.pre.all[i]);
  Doubles d = product(net.dy, net.w2, rows, hidden, out, false, false);
  for (size_t i = 0; i < d.all.size(); ++i) d.all[i] *= slope(net.pre.all[i]);
  double near = 1e-6 * (rows + in + hidden + out);
  Doubles forward = product(act, net.w2, rows, out, hidden, false, true);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < out; ++j) forward(i, j) += static_cast<double>(net.b2(0, j));
  compare(t.isa, what, y, forward, near);

  Matrix dw1(hidden, in, 3, false), db1(1, hidden, 0, false), dw2(out, hidden, 1, false);
  Matrix db2(1, out, 0, false), dx(rows, in, 2, false);
  float_kernels_gradients g{dw1.data(), db1.data(), dw2.data(), db2.data(),
                            dx.data(),  dw1.ld,     dw2.ld,     dx.ld};
  std::vector<float> space(t.workspace_floats(rows, hidden));
  float_kernels_profile p{};
  expect(t.isa, "a short workspace is refused", call(g, space.data(), space.size() - 1, &p) == 1);
  expect(t.isa, "backward", call(g, space.data(), space.size(), &p) == 0);
  double parts = p.dw2 + p.db2 + p.d_a1 + p.dw1 + p.dx;
  expect(t.isa, "the profile sums to the total",
         p.total > 0 && std::fabs(parts - p.total) < 1e-6 + 1e-3 * p.total);
  Doubles sum(1, hidden);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < hidden; ++j) sum(0, j) += d(i, j);
  compare(t.isa, "dw2", dw2, product(net.dy, act, out, hidden, rows, true, false), near);
  compare(t.isa, "db2", db2, sums(net.dy), near);
  compare(t.isa, "dw1", dw1, product(d, net.x, hidden, in, rows, true, false), near);
  compare(t.isa, "db1", db1, sum, near);
  compare(t.isa, "dx", dx, product(d, net.w1, rows, in, hidden, false, false), near);
}

void check_mlp(const float_kernels& t, Network& net, int gap) {
  int rows = net.x.rows, hidden = net.w1.rows, out = net.w2.rows;
  Matrix a1(rows, hidden, gap, false), y(rows, out, gap, false);
  std::vector<uint32_t> bits(static_cast<size_t>(rows) * ((hidden + 31) / 32));
  float_kernels_two_layers n = net.struct_of();
  t.mlp_forward(&n, a1.data(), a1.ld, bits.data(), y.data(), y.ld, 1);
  auto value = [](double x) { return x > 0 ? x : 0; };
  auto slope = [](double x) { return x > 0 ? 1.0 : 0.0; };
  for (const uint32_t* mask :
       {static_cast<const uint32_t*>(nullptr), const_cast<const uint32_t*>(bits.data())})
    check_backward(t, "mlp_forward", net, y, value, slope,
                   [&](const float_kernels_gradients& g, float* space, size_t floats,
                       float_kernels_profile* p) {
                     return t.mlp_backward(&n, a1.data(), a1.ld, mask, net.dy.data(), net.dy.ld, &g,
                                           space, floats, p, 2);
                   });
}

void check_ffn(const float_kernels& t, Network& net, int gap) {
  int rows = net.x.rows, hidden = net.w1.rows, out = net.w2.rows;
  for (int kind : {FLOAT_KERNELS_GELU_ERF, FLOAT_KERNELS_GELU_TANH})
    for (int stored = 0; stored < 2; ++stored) {
      Matrix pre(rows, hidden, gap, false), act(rows, hidden, gap, false), y(rows, out, gap, false);
      float_kernels_two_layers n = net.struct_of();
      t.ffn_forward(kind, &n, pre.data(), act.data(), pre.ld, y.data(), y.ld, stored, 1);
      check_backward(
          t, "ffn_forward", net, y, [=](double x) { return gelu_value(kind, x); },
          [=](double x) { return gelu_slope(kind, x); },
          [&](const float_kernels_gradients& g, float* space, size_t floats,
              float_kernels_profile* p) {
            return t.ffn_backward(stored ? FLOAT_KERNELS_SLOPE : kind, &n, pre.data(), act.data(),
                                  pre.ld, net.dy.data(), net.dy.ld, &g, space, floats, p, 2);
          });
    }
}

}  // namespace

void check_elements(const float_kernels& t);  // float_elements.cpp

static void check(const float_kernels& t) {
  int before = cases;
  for (int i = 0; const Shape& s : kShapes) {
    int gap = i++ % 2 ? 5 : 0;
    check_products(t, s, gap, 3);
    if (s.k > 0) check_linear(t, s, gap), check_linear_backward(t, s, gap);
  }
  // Large enough to be split over threads, the second by columns, several to a word of bits.
  check_products(t, {97, 81, 110}, 1, 2);
  check_linear(t, {40, 345, 64}, 2);
  for (int gap : {0, 3})
    for (const Shape& s : {Shape{1, 1, 1}, Shape{33, 19, 45}, Shape{70, 100, 7}}) {
      Network net(s.m, s.n, s.k, s.n / 2 + 1, gap);
      check_mlp(t, net, gap);
      check_ffn(t, net, gap);
    }
  check_elements(t);
  std::printf("%s: %d cases\n", t.isa, cases - before);
}

// Checks the tables that are named, which must be there.
int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    const float_kernels* found = nullptr;
    for (int j = 0; const float_kernels* t = float_kernels_usable(j); ++j)
      if (!std::strcmp(t->isa, names[i])) found = t;
#ifdef FK_WIDE
    if (!std::strcmp(names[i], "wide")) found = &float_kernels_impl::wide::table;
#endif
    if (!found) return std::printf("%s: does not run here\n", names[i]), 2;
    check(*found);
  }
  return failures ? 1 : 0;
}
