// Products split over threads, linear layers, and the two-layer networks in one call each.
#pragma once

#include "elements.h"
#include "gemm.h"

namespace float_kernels_impl {

template <class Isa>
struct Fused {
  using G = Gemm<Isa>;
  using E = Elements<Isa>;

  // --- Products ------------------------------------------------------------------------------
  struct Split {
    Product p;
    bool by_columns;
    int most;  // rows or columns of a part
  };

  static Product part_of(const Split& s, int i) {
    Product p = s.p;
    int first = i * s.most;
    if (s.by_columns) {
      p.n = p.n - first < s.most ? p.n - first : s.most;
      p.b.p += p.b.transposed ? first * p.b.row : first;
      p.c += first;
      if (p.tail.bias) p.tail.bias += first;
      if (p.tail.bits) p.tail.bits += first / 32;
    } else {
      p.m = p.m - first < s.most ? p.m - first : s.most;
      p.a.p += p.a.transposed ? first : first * p.a.row;
      p.c += first * p.ldc;
      if (p.tail.bits) p.tail.bits += static_cast<ptrdiff_t>(first) * p.tail.words;
    }
    return p;
  }
  static void run_part(void* split, int i) { G::multiply(part_of(*static_cast<Split*>(split), i)); }

  static void multiply(const Product& p, int threads) {
    // Below this many multiply-adds waking a thread costs more than it saves.
    const double least = 1 << 18;
    if (threads < 2 || static_cast<double>(p.m) * p.n * p.k < threads * least)
      return G::multiply(p);
    Split s{p, !p.b.packed && p.n > p.m, 0};
    int unit = s.by_columns ? (G::kPanel > 32 ? G::kPanel : 32) : G::kRows;
    int all = s.by_columns ? p.n : p.m;
    s.most = ((all + threads - 1) / threads + unit - 1) / unit * unit;
    in_parallel(threads, (all + s.most - 1) / s.most, run_part, &s);
  }

  static void sgemm(int32_t transposed, int32_t m, int32_t n, int32_t k, const float* a,
                    int32_t lda, const float* b, int32_t ldb, float* c, int32_t ldc,
                    int32_t accumulate, int32_t threads) {
    Left left{a, lda, transposed == FLOAT_KERNELS_TN};
    Right right{b, ldb, transposed == FLOAT_KERNELS_NT, false};
    multiply({m, n, k, left, right, c, ldc, accumulate != 0, {}}, threads);
  }
  template <int transposed>
  static void sgemm_of(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda, const float* b,
                       int32_t ldb, float* c, int32_t ldc, int32_t accumulate) {
    sgemm(transposed, m, n, k, a, lda, b, ldb, c, ldc, accumulate, 1);
  }
  static void pack(int32_t k, int32_t n, const float* b, int32_t ldb, int32_t transposed,
                   float* packed) {
    G::pack(k, n, {b, ldb, transposed != 0, false}, packed);
  }
  static size_t packed_floats(int32_t k, int32_t n) { return G::packed_floats(k, n); }
  static void sgemm_packed(int32_t m, int32_t n, int32_t k, const float* a, int32_t lda,
                           const float* packed, float* c, int32_t ldc, int32_t accumulate,
                           int32_t threads) {
    multiply({m, n, k, {a, lda, false}, {packed, 0, false, true}, c, ldc, accumulate != 0, {}},
             threads);
  }

  // --- One layer -----------------------------------------------------------------------------
  static Tail tail(int n, const float* bias, int32_t relu, uint32_t* bits) {
    return {bias, bits, (n + 31) / 32, relu != 0};
  }
  static void linear(int32_t rows, int32_t n, int32_t k, const float* x, int32_t ldx,
                     const float* w, int32_t ldw, const float* bias, float* y, int32_t ldy,
                     int32_t relu, uint32_t* bits, int32_t threads) {
    multiply({rows,
              n,
              k,
              {x, ldx, false},
              {w, ldw, true, false},
              y,
              ldy,
              false,
              tail(n, bias, relu, bits)},
             threads);
  }
  static void linear_packed(int32_t rows, int32_t n, int32_t k, const float* x, int32_t ldx,
                            const float* packed, const float* bias, float* y, int32_t ldy,
                            int32_t relu, uint32_t* bits, int32_t threads) {
    multiply({rows,
              n,
              k,
              {x, ldx, false},
              {packed, 0, false, true},
              y,
              ldy,
              false,
              tail(n, bias, relu, bits)},
             threads);
  }

  static void linear_backward(int32_t rows, int32_t n, int32_t k, const float* x, int32_t ldx,
                              const float* w, int32_t ldw, float* dy, int32_t lddy, const float* y,
                              int32_t ldy, const uint32_t* bits, float* dw, int32_t lddw, float* db,
                              float* dx, int32_t lddx, int32_t accumulate, int32_t threads) {
    if (db && !accumulate) E::clear(n, db);
    if (y || bits)
      E::mask(rows, n, y, ldy, bits, dy, lddy, dy, lddy, db);
    else if (db)
      E::column_sums(rows, n, dy, lddy, db, 1);
    if (dw) sgemm(FLOAT_KERNELS_TN, n, k, rows, dy, lddy, x, ldx, dw, lddw, accumulate, threads);
    if (dx) sgemm(FLOAT_KERNELS_NN, rows, k, n, dy, lddy, w, ldw, dx, lddx, 0, threads);
  }

  // --- Two layers ----------------------------------------------------------------------------
  // Rows of the workspace are a cache line longer, so that rows of 4,096 bytes do not share a set.
  static int32_t padded(int32_t hidden) { return (hidden + 15) / 16 * 16 + 16; }
  static size_t workspace_floats(int32_t rows, int32_t hidden) {
    return rows > 0 && hidden > 0 ? static_cast<size_t>(rows) * padded(hidden) : 0;
  }

  using Net = float_kernels_two_layers;
  using Gradients = float_kernels_gradients;
  using Profile = float_kernels_profile;

  static void mlp_forward(const Net* t, float* a1, int32_t lda1, uint32_t* bits, float* y,
                          int32_t ldy, int32_t threads) {
    linear(t->rows, t->hidden, t->in, t->x, t->ldx, t->w1, t->ldw1, t->b1, a1, lda1, 1, bits,
           threads);
    linear(t->rows, t->out, t->hidden, a1, lda1, t->w2, t->ldw2, t->b2, y, ldy, 0, nullptr,
           threads);
  }

  static void ffn_forward(int32_t kind, const Net* t, float* pre, float* act, int32_t ldh, float* y,
                          int32_t ldy, int32_t slope, int32_t threads) {
    linear(t->rows, t->hidden, t->in, t->x, t->ldx, t->w1, t->ldw1, t->b1, pre, ldh, 0, nullptr,
           threads);
    for (ptrdiff_t r = 0; r < t->rows; ++r)
      E::gelu_all(kind, t->hidden, pre + r * ldh, act + r * ldh, slope ? pre + r * ldh : nullptr);
    linear(t->rows, t->out, t->hidden, act, ldh, t->w2, t->ldw2, t->b2, y, ldy, 0, nullptr,
           threads);
  }

  // Adds the time since the last call to a part of the profile.
  struct Clock {
    Profile* profile;
    double start, last;
    explicit Clock(Profile* p) : profile(p), start(p ? seconds_now() : 0), last(start) {}
    void lap(double Profile::* part) {
      if (!profile) return;
      double now = seconds_now();
      profile->*part += now - last;
      last = now;
    }
    void end() {
      if (profile) profile->total += last - start;
    }
  };

  // d_a1 = dy w2, then slope(first, rows), which multiplies rows of it: on one thread a tile's rows
  // at a time, while the first cache has them.
  template <class Slope>
  static void hidden_gradient(const Net& t, const float* dy, int32_t lddy, float* d, int32_t ld,
                              int32_t threads, Slope slope) {
    if (threads > 1) {
      sgemm(FLOAT_KERNELS_NN, t.rows, t.hidden, t.out, dy, lddy, t.w2, t.ldw2, d, ld, 0, threads);
      return slope(0, t.rows);
    }
    if (t.rows < 1) return;
    float* packed = scratch(0, packed_floats(t.out, t.hidden));
    G::pack(t.out, t.hidden, {t.w2, t.ldw2, false, false}, packed);
    const typename G::Heights heights(t.rows);
    ptrdiff_t first = 0;
    for (int i = 0; i < heights.count; first += heights.rows(i++)) {
      const Left left{dy + first * lddy, lddy, false};
      G::multiply({heights.rows(i),
                   t.hidden,
                   t.out,
                   left,
                   {packed, 0, false, true},
                   d + first * ld,
                   ld,
                   false,
                   {}});
      slope(first, heights.rows(i));
    }
  }

  // Both backward calls; `slope(d, ld, first, rows)` turns rows of d_a1 into the gradient before
  // the activation and adds them up in db1.
  template <class Slope>
  static void backward(const Net& t, const float* a1, int32_t lda1, const float* dy, int32_t lddy,
                       const Gradients& g, float* d, Profile* profile, int32_t threads,
                       Slope slope) {
    const int32_t ld = padded(t.hidden);
    Clock clock(profile);
    sgemm(FLOAT_KERNELS_TN, t.out, t.hidden, t.rows, dy, lddy, a1, lda1, g.dw2, g.lddw2, 0,
          threads);
    clock.lap(&Profile::dw2);
    E::column_sums(t.rows, t.out, dy, lddy, g.db2, 0);
    clock.lap(&Profile::db2);
    E::clear(t.hidden, g.db1);
    hidden_gradient(t, dy, lddy, d, ld, threads,
                    [&](ptrdiff_t first, int rows) { slope(d + first * ld, ld, first, rows); });
    clock.lap(&Profile::d_a1);
    sgemm(FLOAT_KERNELS_TN, t.hidden, t.in, t.rows, d, ld, t.x, t.ldx, g.dw1, g.lddw1, 0, threads);
    clock.lap(&Profile::dw1);
    if (g.dx)
      sgemm(FLOAT_KERNELS_NN, t.rows, t.in, t.hidden, d, ld, t.w1, t.ldw1, g.dx, g.lddx, 0,
            threads);
    clock.lap(&Profile::dx);
    clock.end();
  }

  static bool too_short(const Net& t, const float* workspace, size_t floats) {
    return !workspace || floats < workspace_floats(t.rows, t.hidden);
  }

  static int32_t mlp_backward(const Net* t, const float* a1, int32_t lda1, const uint32_t* bits,
                              const float* dy, int32_t lddy, const Gradients* out, float* workspace,
                              size_t floats, Profile* profile, int32_t threads) {
    if (too_short(*t, workspace, floats)) return 1;
    const ptrdiff_t words = (t->hidden + 31) / 32;
    backward(*t, a1, lda1, dy, lddy, *out, workspace, profile, threads,
             [=](float* d, int32_t ld, ptrdiff_t first, int rows) {
               E::mask(rows, t->hidden, a1 + first * lda1, lda1,
                       bits ? bits + first * words : nullptr, d, ld, d, ld, out->db1);
             });
    return 0;
  }

  static int32_t ffn_backward(int32_t kind, const Net* t, const float* pre, const float* act,
                              int32_t ldh, const float* dy, int32_t lddy, const Gradients* out,
                              float* workspace, size_t floats, Profile* profile, int32_t threads) {
    if (too_short(*t, workspace, floats)) return 1;
    backward(*t, act, ldh, dy, lddy, *out, workspace, profile, threads,
             [=](float* d, int32_t ld, ptrdiff_t first, int rows) {
               E::slopes(kind, rows, t->hidden, pre + first * ldh, ldh, d, ld, d, ld, out->db1);
             });
    return 0;
  }
};

}  // namespace float_kernels_impl
