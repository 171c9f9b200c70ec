// Vectors of the compiler's own kind (GCC's and clang's vector extensions), as wide as Isa says.
//
// Isa is a struct of an isa_*.cpp: kWidth, the register tile (kRows x kVectors vectors), kDepth
// (the depth of a panel), and what needs instructions of its own, all of which PortableIsa has for
// any width. Everything else is a member of a template over Isa, so that no two files of different
// flags share a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "float_kernels.h"

#define FK_INLINE inline __attribute__((always_inline))
#define FK_LAMBDA __attribute__((always_inline))

namespace float_kernels_impl {

template <int N>
struct Types {
  typedef float F __attribute__((vector_size(4 * N)));
  typedef int32_t I __attribute__((vector_size(4 * N)));
};

template <class Self, int N>
struct PortableIsa {
  using F = typename Types<N>::F;
  using I = typename Types<N>::I;
  static constexpr int kWidth = N;

  static FK_INLINE F sqrt(F v) {
    for (int i = 0; i < N; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
  }
  // Bit i is 1 where lane i of a comparison's outcome is true.
  static FK_INLINE uint32_t bits(I mask) {
    uint32_t sum = 0;
    for (int i = 0; i < N; ++i) sum |= static_cast<uint32_t>(mask[i] & 1) << i;
    return sum;
  }
  // The first n lanes alone: others are not read and become 0, or are not written.
  static FK_INLINE F load(const float* p, int n) {
    F v = {};
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  static FK_INLINE void store(float* p, F v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }
};

template <class Isa>
struct Vec {
  static constexpr int N = Isa::kWidth;
  using F = typename Isa::F;
  using I = typename Isa::I;

  static FK_INLINE F load(const float* p) {
    F v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static FK_INLINE void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
  static FK_INLINE F load(const float* p, int n) { return Isa::load(p, n); }
  static FK_INLINE void store(float* p, F v, int n) { Isa::store(p, v, n); }

  static FK_INLINE F all(float x) { return x - F{}; }
  static FK_INLINE I all_bits(int32_t x) { return x - I{}; }
  static FK_INLINE I as_int(F v) { return reinterpret_cast<I>(v); }
  static FK_INLINE F as_float(I v) { return reinterpret_cast<F>(v); }
  static FK_INLINE F abs(F v) { return as_float(as_int(v) & 0x7fffffff); }
  static FK_INLINE F with_sign(F v, F of) {
    return as_float(as_int(v) | (as_int(of) & static_cast<int32_t>(0x80000000)));
  }
  // The larger, and NaN where b is NaN.
  static FK_INLINE F max(F a, F b) { return a > b ? a : b; }
  static FK_INLINE F min(F a, F b) { return a < b ? a : b; }
  static FK_INLINE F relu(F v) { return max(F{}, v); }

  static FK_INLINE float sum(F v) {
    float lanes[N];
    store(lanes, v);
    for (int half = N / 2; half; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  }
  static FK_INLINE float largest(F v) {
    float lanes[N], top;
    store(lanes, v);
    top = lanes[0];
    for (int i = 1; i < N; ++i) top = lanes[i] > top ? lanes[i] : top;
    return top;
  }

  static FK_INLINE uint32_t bits(I mask) { return Isa::bits(mask); }
  static FK_INLINE I mask_of(uint32_t bits) {
    return (all_bits(static_cast<int32_t>(bits)) & lane_bits(std::make_index_sequence<N>())) != 0;
  }
  template <size_t... i>
  static FK_INLINE I lane_bits(std::index_sequence<i...>) {
    return I{(int32_t{1} << i)...};
  }

  // Turns N rows of N floats, `from` apart, into columns, `to` apart. Four columns at a time: their
  // fours of every fourth row are loaded into one vector, so nothing moves between its blocks.
  static FK_INLINE void transpose(const float* src, ptrdiff_t from, float* dst, ptrdiff_t to) {
    for (int c = 0; c < N; c += 4, src += 4, dst += 4 * to) {
      F r[4];
      for (int i = 0; i < 4; ++i) r[i] = fours<N / 4>(src + i * from, 4 * from);
      turn_fours(r);
      for (int i = 0; i < 4; ++i) store(dst + i * to, r[i]);
    }
  }

 private:
  // So many fours of floats, `apart` from each other.
  template <int count>
  static FK_INLINE typename Types<4 * count>::F fours(const float* p, ptrdiff_t apart) {
    if constexpr (count == 1) {
      typename Types<4>::F v;
      __builtin_memcpy(&v, p, sizeof v);
      return v;
    } else {
      constexpr int half = count / 2;
      return join(fours<half>(p, apart), fours<half>(p + half * apart, apart),
                  std::make_index_sequence<4 * count>());
    }
  }
  template <class Half, size_t... i>
  static FK_INLINE typename Types<sizeof...(i)>::F join(Half a, Half b, std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, i...);
  }
  // Lanes (a's are 0 .. N - 1, b's N ..) that Pick names, as lanes of a new vector.
  template <class Pick, size_t... i>
  static FK_INLINE F shuffle(F a, F b, std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, Pick::of(i)...);
  }
  template <class Pick>
  static FK_INLINE F shuffle(F a, F b) {
    return shuffle<Pick>(a, b, std::make_index_sequence<N>());
  }
  template <int first>  // a b a b of lanes first, first + 1 of every four
  struct Zip {
    static constexpr int of(int i) { return i / 4 * 4 + first + i % 4 / 2 + (i % 2) * N; }
  };
  template <int first>  // two of a, two of b
  struct Pairs {
    static constexpr int of(int i) { return i / 4 * 4 + first + i % 2 + (i % 4 / 2) * N; }
  };
  static FK_INLINE void turn_fours(F* r) {
    F a = shuffle<Zip<0>>(r[0], r[1]), b = shuffle<Zip<2>>(r[0], r[1]);
    F c = shuffle<Zip<0>>(r[2], r[3]), d = shuffle<Zip<2>>(r[2], r[3]);
    r[0] = shuffle<Pairs<0>>(a, c), r[1] = shuffle<Pairs<2>>(a, c);
    r[2] = shuffle<Pairs<0>>(b, d), r[3] = shuffle<Pairs<2>>(b, d);
  }
};

}  // namespace float_kernels_impl
