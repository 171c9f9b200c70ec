// Gradient and Adam of an NNUE in float32: rows of a sparse first layer are gathered and their
// gradients scattered here, the dense layers are those of float_kernels.
//
// Parameters are one array: ft [F, M], its bias [M], l1 [N, 2 M], its bias [N], l2 [N], its bias.
// A batch runs in blocks whose activations stay in the second cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "eggroll_world.h"
#include "float_kernels.h"

namespace {

constexpr int kBlock = 128;  // positions
constexpr int kAhead = 6;    // rows asked for before they are needed
constexpr int kPiece = 4096;
constexpr double kEpsilon = 1e-12;

// As wide as the instruction set's registers: compilers take a wider vector through memory.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
using Vec __attribute__((vector_size(4 * kWidth), aligned(4), may_alias)) = float;

// Of the network. Features from `real` on are virtual: they are part of the coalesced table.
struct Shape {
  int32_t features, width, hidden, real;
};

enum LossKind : int32_t { kSquared, kCrossEntropy };

// y is the logit; lambda weighs evaluation against result, in the target or (after) in the loss.
struct Loss {
  int32_t kind, after;
  double scale, lambda, exponent;
};

struct Lists {
  const int32_t *starts, *index;
  const int8_t* count;  // values other than 1, or null
};

struct Batch {
  int32_t size, reduced;  // reduced: the gradient of a feature is as if its value were 1
  const int8_t* stm;
  const int16_t* score;
  const int8_t* result;
  Lists white, black;
};

struct Parameters {
  float *ft, *bias, *w1, *b1, *w2, *b2;

  Parameters(const Shape& s, float* p) {
    const int64_t width = s.width, hidden = s.hidden;
    ft = p;
    bias = ft + s.features * width;
    w1 = bias + width;
    b1 = w1 + 2 * width * hidden;
    w2 = b1 + hidden;
    b2 = w2 + hidden;
  }
};

int64_t count_of(const Shape& s) {
  return (int64_t{s.features} + 1) * s.width + int64_t{2} * s.width * s.hidden + 2 * s.hidden + 1;
}

// Not by memcpy, which GCC does by halves.
Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }

void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

// One position's features seen from one side.
struct Active {
  const int32_t* index;
  const int8_t* count;
  int n;

  // Those below `end`: indices ascend.
  static Active of(const Lists& lists, int row, int32_t end) {
    const int32_t first = lists.starts[row];
    int n = lists.starts[row + 1] - first;
    const int32_t* index = lists.index + first;
    while (n && index[n - 1] >= end) --n;
    return {index, lists.count ? lists.count + first : nullptr, n};
  }

  float value(int i) const { return count ? static_cast<float>(count[i]) : 1.0f; }
};

template <int V>
void gather(const Active& active, const float* table, int64_t width, const float* bias, float* y) {
  Vec sum[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sum[v] = load(bias + kWidth * v);
  for (int i = 0; i < active.n; ++i) {
    if (i + kAhead < active.n)
      for (int v = 0; v < V; ++v)
        __builtin_prefetch(table + active.index[i + kAhead] * width + kWidth * v);
    const float* row = table + active.index[i] * width;
    const float by = active.value(i);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[v] += by * load(row + kWidth * v);
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) store(y + kWidth * v, sum[v]);
}

template <int V>
void scatter(const Active& active, const float* dy, int64_t width, bool reduced, float* table) {
  Vec slope[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) slope[v] = load(dy + kWidth * v);
  for (int i = 0; i < active.n; ++i) {
    if (i + kAhead < active.n)
      for (int v = 0; v < V; ++v)
        __builtin_prefetch(table + active.index[i + kAhead] * width + kWidth * v, 1);
    float* row = table + active.index[i] * width;
    const float by = reduced ? 1.0f : active.value(i);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(row + kWidth * v, load(row + kWidth * v) + by * slope[v]);
  }
}

// Calls f<V>(first column) for pieces of V vectors.
template <class Function>
void columns(int width, const Function& f) {
  int at = 0;
  for (; width - at >= 8 * kWidth; at += 8 * kWidth) f.template operator()<8>(at);
  for (; width - at >= 4 * kWidth; at += 4 * kWidth) f.template operator()<4>(at);
  for (; width - at >= 2 * kWidth; at += 2 * kWidth) f.template operator()<2>(at);
  for (; at < width; at += kWidth) f.template operator()<1>(at);
}

void clamp(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = std::min(std::max(x[i], 0.0f), 1.0f);
}

// dx = 0 where x was held at 0 or 1.
void mask(const float* x, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = x[i] > 0.0f && x[i] < 1.0f ? dx[i] : 0.0f;
}

double sigmoid(double y) { return 1 / (1 + std::exp(-y)); }

double entropy_sum(double t, double p) {
  return t * std::log(p + kEpsilon) + (1 - t) * std::log(1 - p + kEpsilon);
}

struct Lost {
  double loss, slope;  // slope: by the probability p
};

Lost lost(const Loss& of, double p, double t) {
  if (of.kind == kCrossEntropy)
    return {entropy_sum(t, t) - entropy_sum(t, p),
            (1 - t) / (1 - p + kEpsilon) - t / (p + kEpsilon)};
  const double off = std::abs(p - t);
  if (of.exponent == 2) return {off * off, 2 * (p - t)};
  const double power = off > 0 ? std::pow(off, of.exponent - 1) : 0;
  return {power * off, std::copysign(of.exponent * power, p - t)};
}

// The loss of one position, its slope by the logit y.
Lost lost_by_logit(const Loss& of, double y, int score, int result) {
  const double p = sigmoid(y), q = sigmoid(score / of.scale), r = (result + 1) * 0.5;
  Lost found;
  if (of.after) {
    const Lost a = lost(of, p, q), b = lost(of, p, r);
    found = {of.lambda * a.loss + (1 - of.lambda) * b.loss,
             of.lambda * a.slope + (1 - of.lambda) * b.slope};
  } else {
    found = lost(of, p, of.lambda * q + (1 - of.lambda) * r);
  }
  found.slope *= p * (1 - p);
  return found;
}

// A block of positions, forwards and back.
class Block {
 public:
  Block(const float_kernels* k, const Shape& s, const Batch& b, const float* table, float* w)
      : k_(k), shape_(s), batch_(b), table_(table), w_(s, w) {
    const size_t rows = kBlock;
    x_.resize(rows * 2 * s.width);
    dx_.resize(x_.size());
    h_.resize(rows * s.hidden);
    dh_.resize(h_.size());
  }

  void forward(int first, int rows, float* y) {
    first_ = first, rows_ = rows;
    const int width = shape_.width, hidden = shape_.hidden;
    for (int r = 0; r < rows; ++r)
      for (int side = 0; side < 2; ++side) gather_side(first + r, side, half(x_, r, side));
    clamp(x_.data(), int64_t{2} * rows * width);
    k_->linear(rows, hidden, 2 * width, x_.data(), 2 * width, w_.w1, 2 * width, w_.b1, h_.data(),
               hidden, 0, nullptr, 1);
    clamp(h_.data(), int64_t{rows} * hidden);
    for (int r = 0; r < rows; ++r) {
      float sum = *w_.b2;
      for (int n = 0; n < hidden; ++n) sum += h_[at(r, n)] * w_.w2[n];
      y[r] = sum;
    }
  }

  void backward(const float* dy, const Parameters& g) {
    const int width = shape_.width, hidden = shape_.hidden;
    for (int r = 0; r < rows_; ++r) {
      *g.b2 += dy[r];
      for (int n = 0; n < hidden; ++n) {
        g.w2[n] += dy[r] * h_[at(r, n)];
        dh_[at(r, n)] = dy[r] * w_.w2[n];
      }
    }
    mask(h_.data(), dh_.data(), int64_t{rows_} * hidden);
    k_->linear_backward(rows_, hidden, 2 * width, x_.data(), 2 * width, w_.w1, 2 * width,
                        dh_.data(), hidden, nullptr, 0, nullptr, g.w1, 2 * width, g.b1, dx_.data(),
                        2 * width, 1, 1);
    mask(x_.data(), dx_.data(), int64_t{2} * rows_ * width);
    for (int r = 0; r < rows_; ++r)
      for (int side = 0; side < 2; ++side) scatter_side(first_ + r, side, half(dx_, r, side), g);
  }

 private:
  const float_kernels* k_;
  const Shape shape_;
  const Batch batch_;
  const float* table_;
  const Parameters w_;
  int first_ = 0, rows_ = 0;
  std::vector<float> x_, dx_, h_, dh_;

  size_t at(int r, int n) const { return static_cast<size_t>(r) * shape_.hidden + n; }

  // The half of a row that belongs to a side: the mover's is the first. side 0 is white.
  float* half(std::vector<float>& x, int r, int side) const {
    const bool second = (batch_.stm[first_ + r] != 0) == (side != 0);
    return x.data() + (static_cast<size_t>(2) * r + second) * shape_.width;
  }

  Active active(int row, int side) const {
    return Active::of(side ? batch_.black : batch_.white, row, shape_.real);
  }

  void gather_side(int row, int side, float* y) const {
    const Active seen = active(row, side);
    columns(shape_.width,
            [&]<int V>(int c) { gather<V>(seen, table_ + c, shape_.width, w_.bias + c, y + c); });
  }

  void scatter_side(int row, int side, const float* dy, const Parameters& g) const {
    const Active seen = active(row, side);
    columns(shape_.width, [&]<int V>(int c) {
      scatter<V>(seen, dy + c, shape_.width, batch_.reduced, g.ft + c);
    });
    for (int c = 0; c < shape_.width; ++c) g.bias[c] += dy[c];
  }
};

// A list to `active` indices, -1 behind them. Whole vectors are read and written as long as they
// end by `read_end` and `end`; what is written too far is a list that follows.
void pad(const Active& seen, const int32_t* read_end, int active, int32_t* to, const int32_t* end) {
  using Ints __attribute__((vector_size(4 * kWidth), aligned(4))) = int32_t;
  Ints at;
  for (int i = 0; i < kWidth; ++i) at[i] = i;
  for (int i = 0; i < active; i += kWidth, at += kWidth) {
    if (read_end - seen.index < i + kWidth || end - to < i + kWidth) {
      for (int j = i; j < active; ++j) to[j] = j < seen.n ? seen.index[j] : -1;
      return;
    }
    Ints v;
    std::memcpy(&v, seen.index + i, sizeof v);
    v |= at >= seen.n;
    std::memcpy(to + i, &v, sizeof v);
  }
}

void adam_pieces(const float_kernels* k, int64_t n, float* w, float* g, float* m, float* v,
                 double rate, int64_t step) {
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t some = std::min<int64_t>(kPiece, n - at);
    k->adam(some, w + at, g + at, m + at, v + at, rate, 0.9, 0.999, 1e-8, 1, step);
    std::memset(g + at, 0, static_cast<size_t>(some) * sizeof(float));
  }
}

}  // namespace

extern "C" {

// Floats of all parameters.
EGGROLL_EXPORT int64_t nnue_parameters(const Shape* shape) { return count_of(*shape); }

// y [B] = logits, and where g is not null its gradient of the mean loss is added to g. table: ft,
// or its coalesced rows. Returns the mean loss.
EGGROLL_EXPORT double nnue_gradient(const float_kernels* k, const Shape* shape, const Loss* loss,
                                    const Batch* batch, const float* table, float* w, float* g,
                                    float* y) {
  Block block(k, *shape, *batch, table, w);
  float slopes[kBlock];
  double total = 0;
  for (int first = 0; first < batch->size; first += kBlock) {
    const int rows = std::min(kBlock, batch->size - first);
    block.forward(first, rows, y + first);
    for (int r = 0; r < rows; ++r) {
      const int i = first + r;
      const Lost found = lost_by_logit(*loss, y[i], batch->score[i], batch->result[i]);
      total += found.loss;
      slopes[r] = static_cast<float>(found.slope / batch->size);
    }
    if (g) block.backward(slopes, Parameters(*shape, g));
  }
  return total / batch->size;
}

// The loss and its slope by the logit, of n positions: what nnue_gradient uses.
EGGROLL_EXPORT void nnue_losses(const Loss* loss, int64_t n, const double* y, const int16_t* score,
                                const int8_t* result, double* lost_of, double* slope) {
  for (int64_t i = 0; i < n; ++i) {
    const Lost found = lost_by_logit(*loss, y[i], score[i], result[i]);
    lost_of[i] = found.loss, slope[i] = found.slope;
  }
}

// A step of Adam; g becomes 0.
EGGROLL_EXPORT void nnue_adam(const float_kernels* k, const Shape* shape, float* w, float* g,
                              float* m, float* v, double rate, int64_t step) {
  adam_pieces(k, count_of(*shape), w, g, m, v, rate, step);
}

// The gradient of the virtual rows: the sum over the blocks of real rows that each is added to.
EGGROLL_EXPORT void nnue_fold(const Shape* shape, float* g) {
  const int64_t real = int64_t{shape->real} * shape->width;
  const int64_t size = int64_t{shape->features} * shape->width - real;
  float* to = g + real;
  for (int64_t at = 0; at < real; at += size)
    for (int64_t i = 0; i < size; ++i) to[i] += g[at + i];
}

// table [real, M] = each real row and its virtual one.
EGGROLL_EXPORT void nnue_unfold(const Shape* shape, const float* w, float* table) {
  const int64_t real = int64_t{shape->real} * shape->width;
  const int64_t size = int64_t{shape->features} * shape->width - real;
  for (int64_t at = 0; at < real; at += size)
    for (int64_t i = 0; i < size; ++i) table[at + i] = w[at + i] + w[real + i];
}

// Lists of a fixed length, mover's first: int32 [B, 2, active], -1 for none, with indices below
// `end`. A value of n is an index n times. Returns 0, or the row plus 1 that has too many.
EGGROLL_EXPORT int32_t nnue_pad(const Batch* batch, int32_t active, int32_t end, int32_t* to) {
  const int32_t* to_end = to + int64_t{2} * batch->size * active;
  for (int r = 0; r < batch->size; ++r)
    for (int second = 0; second < 2; ++second, to += active) {
      const bool white = (batch->stm[r] != 0) == (second == 0);
      const Active seen = Active::of(white ? batch->white : batch->black, r, end);
      if (!seen.count) {
        if (seen.n > active) return r + 1;
        const Lists& lists = white ? batch->white : batch->black;
        pad(seen, lists.index + lists.starts[batch->size], active, to, to_end);
        continue;
      }
      int n = 0;
      for (int i = 0; i < seen.n; ++i)
        for (int times = seen.count[i]; times > 0; --times) {
          if (n == active) return r + 1;
          to[n++] = seen.index[i];
        }
      std::fill(to + n, to + active, -1);
    }
  return 0;
}

// Where lists begin in the index that both sides share, and their sizes, the mover's first: int32
// [B, 2, 2]. end: of indices; those from it on are left out.
EGGROLL_EXPORT void nnue_spans(const Batch* batch, int32_t end, int32_t* to) {
  const int32_t *white = batch->white.starts, *black = batch->black.starts;
  for (int r = 0; r < batch->size; ++r, to += 4) {
    const int other = batch->stm[r] ? 2 : 0;  // the place of black's
    to[2 - other] = white[r], to[3 - other] = white[r + 1] - white[r];
    to[other] = black[r], to[other + 1] = black[r + 1] - black[r];
  }
  if (end == INT32_MAX) return;
  const int32_t* index = batch->white.index;
  to -= int64_t{4} * batch->size;
  for (int l = 0; l < 2 * batch->size; ++l, to += 2)
    while (to[1] && index[to[0] + to[1] - 1] >= end) --to[1];
}

// Bytes of a table [3, 65536] by result and score, both from their least on. Returns 0, or the row
// plus 1 whose result is none.
EGGROLL_EXPORT int32_t nnue_labels(const Batch* batch, const int8_t* table, int8_t* to) {
  for (int r = 0; r < batch->size; ++r) {
    const int result = batch->result[r] + 1;
    if (result < 0 || result > 2) return r + 1;
    to[r] = table[result * 65536 + batch->score[r] + 32768];
  }
  return 0;
}

// Rows of lists: to_index (and to_count) from `at` on become those of `rows`, to_starts [n + 1]
// their ends.
EGGROLL_EXPORT void nnue_take(const Lists* from, int64_t n, const int64_t* rows, int32_t at,
                              int32_t* to_starts, int32_t* to_index, int8_t* to_count) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t first = from->starts[rows[i]], size = from->starts[rows[i] + 1] - first;
    to_starts[i] = at;
    std::memcpy(to_index + at, from->index + first, static_cast<size_t>(size) * sizeof(int32_t));
    if (to_count) std::memcpy(to_count + at, from->count + first, static_cast<size_t>(size));
    at += size;
  }
  to_starts[n] = at;
}

}  // extern "C"
