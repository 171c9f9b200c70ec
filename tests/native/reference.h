// Every operation of the kernels for one member, in plain C++ and 64 bits, with the wraps of int32
// written out; an independent reading of the same page as tests/oracle.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

using Bytes = std::vector<int8_t>;

namespace reference {

inline int64_t wrap32(int64_t v) { return static_cast<int32_t>(static_cast<uint32_t>(v)); }
inline int8_t clip(int64_t v) { return static_cast<int8_t>(std::clamp<int64_t>(v, -127, 127)); }
inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

inline int isqrt(int n) {
  int r = 0;
  while ((r + 1) * (r + 1) <= n) ++r;
  return r;
}

// One member's noise of one leaf: its slice of the table, null for none, and its sign.
struct Noise {
  const int8_t* slice;
  int rank, shift, sign;
};

// W x + ((x B) A >> shift); W [O, K], slice B [K, r] then A [O, r].
inline std::vector<int64_t> sums(const Bytes& w, int outputs, const Bytes& x, const Noise& noise) {
  int inputs = static_cast<int>(x.size()), r = noise.slice ? noise.rank : 0;
  std::vector<int64_t> xb(static_cast<size_t>(r)), y;
  for (int j = 0; j < r; ++j)
    for (int k = 0; k < inputs; ++k) xb[j] += x[k] * noise.slice[k * r + j];
  for (int o = 0; o < outputs; ++o) {
    int64_t sum = 0, pert = 0;
    for (int k = 0; k < inputs; ++k) sum += w[o * inputs + k] * x[k];
    for (int j = 0; j < r; ++j) pert += noise.sign * noise.slice[(inputs + o) * r + j] * xb[j];
    y.push_back(wrap32(sum + (wrap32(pert) >> noise.shift)));
  }
  return y;
}

// clip(sums // (16 floor(sqrt K))).
inline Bytes linear(const Bytes& w, int outputs, const Bytes& x, const Noise& noise) {
  Bytes y;
  for (int64_t sum : sums(w, outputs, x, noise))
    y.push_back(clip(floor_div(sum, 16 * isqrt(static_cast<int>(x.size())))));
  return y;
}

// clip((sum of the rows of E [count, D] + noise) >> by), of one list of indices.
inline Bytes features(const Bytes& e, int width, const std::vector<int>& list, int by,
                      const Noise& noise) {
  Bytes y;
  for (int k = 0; k < width; ++k) {
    int64_t sum = 0, pert = 0;
    for (int f : list) {
      if (f < 0) continue;
      sum += e[static_cast<size_t>(f) * width + k];
      for (int j = 0; noise.slice && j < noise.rank; ++j)
        pert += noise.sign * noise.slice[(width + f) * noise.rank + j] *
                noise.slice[k * noise.rank + j];
    }
    y.push_back(clip(wrap32(sum + (wrap32(pert) >> noise.shift)) >> by));
  }
  return y;
}

// Row t of E [V, D], perturbed.
inline Bytes embed(const Bytes& e, int width, int t, const Noise& noise) {
  Bytes y;
  for (int k = 0; k < width; ++k) {
    int64_t pert = 0;
    for (int j = 0; noise.slice && j < noise.rank; ++j)
      pert +=
          noise.sign * noise.slice[(width + t) * noise.rank + j] * noise.slice[k * noise.rank + j];
    y.push_back(clip(e[t * width + k] + (wrap32(pert) >> noise.shift)));
  }
  return y;
}

// A vector leaf, perturbed.
inline Bytes vector(const Bytes& w, const Noise& noise) {
  Bytes y = w;
  for (size_t i = 0; noise.slice && i < w.size(); ++i)
    y[i] = clip(w[i] + ((noise.sign * noise.slice[2 * i] * noise.slice[2 * i + 1]) >> noise.shift));
  return y;
}

inline Bytes norm(const Bytes& x, const Bytes& w) {
  int64_t sum = 0;
  for (int8_t v : x) sum += std::abs(v);
  int64_t mean = std::max<int64_t>(1, sum / static_cast<int64_t>(x.size()));
  Bytes y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(clip(floor_div(x[i] * w[i], mean)));
  return y;
}

// Log-likelihood of `target` in 1/16 bit.
inline int score(const Bytes& logits, int target) {
  double total = 0;  // of integers far below 2^53
  for (int8_t v : logits) total += std::floor(16 * std::exp2((v + 128) / 16.0));
  return logits[target] + 128 - static_cast<int>(std::floor(16 * std::log2(total / 16)));
}

// floor(2^(31 + f/16)).
inline uint32_t mantissa(int f) { return static_cast<uint32_t>(std::exp2(31 + f / 16.0)); }

// Sum over the vocabulary of 2^(31 + (logit + 128) / 16).
inline uint64_t total(const Bytes& logits) {
  uint64_t sum = 0;
  for (int8_t v : logits) sum += uint64_t{mantissa((v + 128) % 16)} << (v + 128) / 16;
  return sum;
}

// Z [O, K] over all pairs of a matrix, or [n] of a vector (cols 0), added up in 64 bits.
inline std::vector<int32_t> votes(int rows, int cols, const Bytes& table,
                                  const std::vector<int32_t>& starts, const Bytes& fitness, int r,
                                  bool signs) {
  std::vector<int64_t> z(static_cast<size_t>(rows) * std::max(cols, 1));
  auto value = [&](int v) { return signs ? (v > 0) - (v < 0) : v; };
  for (size_t p = 0; p < fitness.size(); ++p) {
    const int8_t* s = table.data() + starts[p];
    int f = fitness[p];
    for (int o = 0; o < rows; ++o) {
      if (cols == 0) z[o] += f * value(s[2 * o] * s[2 * o + 1]);
      for (int k = 0; k < cols; ++k)
        for (int j = 0; j < r; ++j)
          z[o * cols + k] += f * value(s[(cols + o) * r + j]) * value(s[k * r + j]);
    }
  }
  std::vector<int32_t> out;
  for (int64_t v : z) out.push_back(static_cast<int32_t>(wrap32(v)));
  return out;
}

}  // namespace reference
