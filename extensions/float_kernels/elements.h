// Functions of single numbers on vectors, and rows of them: exp, tanh, erf, GELU, softmax, ReLU.
#pragma once

#include "polynomials.h"
#include "vec.h"

namespace float_kernels_impl {

template <class Isa>
struct Elements : Vec<Isa> {
  using V = Vec<Isa>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int N = V::N;

  template <int n>
  static FK_INLINE F horner(F x, const float (&c)[n]) {
    F sum = V::all(c[0]);
#pragma GCC unroll 16
    for (int i = 1; i < n; ++i) sum = sum * x + c[i];
    return sum;
  }

  // 0 below -87, where the result would have fewer bits; infinity above 88.72.
  static FK_INLINE F exp(F x) {
    const float magic = 12582912.0f;  // 1.5 2^23: adding it rounds to an integer
    F within = V::max(V::all(-87.0f), V::min(V::all(88.7228f), x));
    F shifted = within * 1.44269504f + magic;
    F n = shifted - magic;
    F r = (within - n * 0.693359375f) + n * 2.12194440e-4f;
    F result = (horner(r, kExp) * r) * r + r + 1.0f;
    // 2^n in two steps, as 2^128 is infinite.
    I power = V::as_int(shifted) - 0x4b400000;
    result = result * 2.0f * V::as_float((power + 126) << 23);
    result = x < -87.0f ? F{} : result;
    return x > 88.7228f ? V::all(__builtin_inff()) : result;
  }

  static FK_INLINE F tanh(F x) {
    F t = V::abs(x), z = x * x;
    F small = horner(z, kTanh) * z * x + x;
    F large = V::with_sign(1.0f - 2.0f / (exp(V::min(V::all(20.0f), t) * 2.0f) + 1.0f), x);
    return t < 0.625f ? small : large;
  }

  static FK_INLINE F erf(F x) {
    F t = V::min(V::all(kErfEnd), V::abs(x)), z = x * x;
    F small = horner(z, kErf) * x + x;
    F large = V::with_sign(1.0f - exp(-horner(t, kErfTail)), x);
    return V::abs(x) < kErfSplit ? small : large;
  }

  struct Gelu {
    F y, slope;
  };
  static FK_INLINE Gelu gelu_erf(F x) {
    // One exp gives both the density and the tail.
    F e = exp(x * x * -0.5f);
    F tail = horner(V::min(V::all(kNormalEnd), V::abs(x)), kNormalTail) * e;
    F below = x > F{} ? 1.0f - tail : tail;  // Phi
    return {x * below, below + x * e * 0.398942280f};
  }
  static FK_INLINE Gelu gelu_tanh(F x) {
    // (1 + tanh u) / 2 is 1 / (1 + e) with e = exp(-2 u): one exp and no polynomial of tanh. What
    // is missing to 1 is e / (1 + e), which has all its bits where e is small.
    F z = x * x;
    F e = exp(x * (z * -0.0713548163f - 1.59576912f));
    F half = 1.0f / (e + 1.0f), rest = e > 1.0f ? 1.0f - half : e * half;
    F inner = z * 0.214064448f + 1.59576912f;
    return {x * half, half + x * inner * (half * rest)};
  }
  static FK_INLINE Gelu gelu(bool by_tanh, F x) { return by_tanh ? gelu_tanh(x) : gelu_erf(x); }

  // Calls f(i, lanes) for pieces of 0 .. n - 1; the last may have fewer than N lanes.
  template <class Function>
  static FK_INLINE void pieces(int64_t n, Function f) {
    int64_t i = 0;
    for (; i + N <= n; i += N) f(i, N);
    if (i < n) f(i, static_cast<int>(n - i));
  }
  static FK_INLINE F get(const float* p, int lanes) {
    return lanes == N ? V::load(p) : V::load(p, lanes);
  }
  static FK_INLINE void put(float* p, F v, int lanes) {
    lanes == N ? V::store(p, v) : V::store(p, v, lanes);
  }

  template <class Function>
  static FK_INLINE void map(int64_t n, const float* x, float* y, Function f) {
    pieces(n, [=](int64_t i, int lanes) FK_LAMBDA { put(y + i, f(get(x + i, lanes)), lanes); });
  }
  static void exp_all(int64_t n, const float* x, float* y) {
    map(n, x, y, [](F v) FK_LAMBDA { return exp(v); });
  }
  static void tanh_all(int64_t n, const float* x, float* y) {
    map(n, x, y, [](F v) FK_LAMBDA { return tanh(v); });
  }
  static void erf_all(int64_t n, const float* x, float* y) {
    map(n, x, y, [](F v) FK_LAMBDA { return erf(v); });
  }

  template <bool by_tanh, bool with_slope>
  static void gelu_of(int64_t n, const float* x, float* y, float* slope) {
    pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
      Gelu g = gelu(by_tanh, get(x + i, lanes));
      put(y + i, g.y, lanes);
      if (with_slope) put(slope + i, g.slope, lanes);
    });
  }
  static void gelu_all(int32_t kind, int64_t n, const float* x, float* y, float* slope) {
    bool by_tanh = kind == FLOAT_KERNELS_GELU_TANH;
    auto f = slope ? (by_tanh ? gelu_of<true, true> : gelu_of<false, true>)
                   : (by_tanh ? gelu_of<true, false> : gelu_of<false, false>);
    f(n, x, y, slope);
  }

  // dx = dy f'(x), and the column's sums so far where asked for: one row.
  template <int kind>
  static FK_INLINE void slope_row(int64_t n, const float* x, const float* dy, float* dx,
                                  float* sums) {
    pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
      F v = get(x + i, lanes), d = get(dy + i, lanes);
      d *= kind == FLOAT_KERNELS_SLOPE ? v : gelu(kind == FLOAT_KERNELS_GELU_TANH, v).slope;
      put(dx + i, d, lanes);
      if (sums) put(sums + i, get(sums + i, lanes) + d, lanes);
    });
  }
  template <int kind>
  static void slope_of(int32_t rows, int64_t n, const float* x, ptrdiff_t ldx, const float* dy,
                       ptrdiff_t lddy, float* dx, ptrdiff_t lddx, float* sums) {
    for (int r = 0; r < rows; ++r)
      slope_row<kind>(n, x + r * ldx, dy + r * lddy, dx + r * lddx, sums);
  }
  // Rows of dx = dy f'(x); the column sums are added to `sums`.
  static void slopes(int32_t kind, int32_t rows, int64_t n, const float* x, ptrdiff_t ldx,
                     const float* dy, ptrdiff_t lddy, float* dx, ptrdiff_t lddx, float* sums) {
    auto f = kind == FLOAT_KERNELS_SLOPE       ? slope_of<FLOAT_KERNELS_SLOPE>
             : kind == FLOAT_KERNELS_GELU_TANH ? slope_of<FLOAT_KERNELS_GELU_TANH>
                                               : slope_of<FLOAT_KERNELS_GELU_ERF>;
    f(rows, n, x, ldx, dy, lddy, dx, lddx, sums);
  }
  static void gelu_backward(int32_t kind, int64_t n, const float* x, const float* dy, float* dx) {
    slopes(kind, 1, n, x, 0, dy, 0, dx, 0, nullptr);
  }

  static float largest_of(int n, const float* x) {
    F top = V::all(-__builtin_inff());
    int i = 0;
    for (; i + N <= n; i += N) top = V::max(top, V::load(x + i));
    float most = V::largest(top);
    for (; i < n; ++i) most = x[i] > most ? x[i] : most;
    return most;
  }
  // y = exp(x - most); returns their sum.
  static float exp_row(int n, const float* x, float most, float* y) {
    F total = F{};
    float rest = 0;
    int i = 0;
    for (; i + N <= n; i += N) {
      F e = exp(V::load(x + i) - most);
      V::store(y + i, e);
      total += e;
    }
    if (i < n) {
      float lanes[N];
      V::store(lanes, exp(V::load(x + i, n - i) - most));
      for (int j = 0; j < n - i; ++j) rest += y[i + j] = lanes[j];
    }
    return V::sum(total) + rest;
  }
  static FK_INLINE void scale(int n, float by, float* y) {
    pieces(n, [=](int64_t i, int lanes) FK_LAMBDA { put(y + i, get(y + i, lanes) * by, lanes); });
  }

  static void softmax(int32_t rows, int32_t n, const float* x, int32_t ldx, float* y, int32_t ldy) {
    for (ptrdiff_t r = 0; r < rows && n > 0; ++r) {
      float total = exp_row(n, x + r * ldx, largest_of(n, x + r * ldx), y + r * ldy);
      scale(n, 1.0f / total, y + r * ldy);
    }
  }

  static double cross_entropy(int32_t rows, int32_t n, const float* x, int32_t ldx,
                              const int32_t* labels, float* dx, int32_t lddx) {
    double loss = 0;
    for (ptrdiff_t r = 0; r < rows && n > 0; ++r) {
      const float* from = x + r * ldx;
      float most = largest_of(n, from), at = from[labels[r]], *to = dx + r * lddx;
      float total = exp_row(n, from, most, to);
      loss += __builtin_log(total) - (static_cast<double>(at) - most);
      scale(n, 1.0f / (total * rows), to);
      to[labels[r]] -= 1.0f / rows;
    }
    return rows > 0 ? loss / rows : 0;
  }

  static void bias_relu(int32_t rows, int32_t n, float* y, int32_t ldy, const float* bias,
                        uint32_t* bits) {
    ptrdiff_t words = (n + 31) / 32;
    for (ptrdiff_t r = 0; r < rows; ++r) {
      float* to = y + r * ldy;
      pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
        F v = get(to + i, lanes);
        if (bias) v += get(bias + i, lanes);
        v = V::relu(v);
        put(to + i, v, lanes);
        if (!bits) return;
        uint32_t& word = bits[r * words + i / 32];
        word = (i % 32 ? word : 0) | V::bits(v > F{}) << i % 32;
      });
    }
  }

  // Rows of dx = dy where the mask is set; the column sums are added to `sums`.
  template <bool by_bits>
  static FK_INLINE void mask_rows(int32_t rows, int32_t n, const float* y, ptrdiff_t ldy,
                                  const uint32_t* bits, const float* dy, ptrdiff_t lddy, float* dx,
                                  ptrdiff_t lddx, float* sums) {
    ptrdiff_t words = (n + 31) / 32;
    for (ptrdiff_t r = 0; r < rows; ++r)
      pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
        F d = get(dy + r * lddy + i, lanes);
        I mask = by_bits ? V::mask_of(bits[r * words + i / 32] >> i % 32)
                         : get(y + r * ldy + i, lanes) > F{};
        d = V::as_float(V::as_int(d) & mask);
        put(dx + r * lddx + i, d, lanes);
        if (sums) put(sums + i, get(sums + i, lanes) + d, lanes);
      });
  }
  static void mask(int32_t rows, int32_t n, const float* y, ptrdiff_t ldy, const uint32_t* bits,
                   const float* dy, ptrdiff_t lddy, float* dx, ptrdiff_t lddx, float* sums) {
    bits ? mask_rows<true>(rows, n, y, ldy, bits, dy, lddy, dx, lddx, sums)
         : mask_rows<false>(rows, n, y, ldy, bits, dy, lddy, dx, lddx, sums);
  }

  static void clear(int64_t n, float* x) {
    for (int64_t i = 0; i < n; ++i) x[i] = 0;
  }
  static void relu_backward(int32_t rows, int32_t n, const float* y, int32_t ldy, const float* dy,
                            int32_t lddy, float* dx, int32_t lddx, float* sums) {
    if (sums) clear(n, sums);
    mask(rows, n, y, ldy, nullptr, dy, lddy, dx, lddx, sums);
  }
  static void relu_backward_bits(int32_t rows, int32_t n, const uint32_t* bits, const float* dy,
                                 int32_t lddy, float* dx, int32_t lddx, float* sums) {
    if (sums) clear(n, sums);
    mask(rows, n, nullptr, 0, bits, dy, lddy, dx, lddx, sums);
  }

  static void column_sums(int32_t rows, int32_t n, const float* x, int32_t ldx, float* sums,
                          int32_t accumulate) {
    if (!accumulate) clear(n, sums);
    for (ptrdiff_t r = 0; r < rows; ++r)
      pieces(n, [=](int64_t i, int lanes) FK_LAMBDA {
        put(sums + i, get(sums + i, lanes) + get(x + r * ldx + i, lanes), lanes);
      });
  }
};

}  // namespace float_kernels_impl
