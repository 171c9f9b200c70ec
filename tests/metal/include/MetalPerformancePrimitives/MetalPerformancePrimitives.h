// What product_nax.metal uses of Metal 4's tensors and matmul2d, as Apple documents them. Which
// lane holds which element is ours: not that of any GPU, and with elements that are not valid.
#pragma once
#include <metal_stdlib>

namespace metal {

template <typename T>
struct remove_reference {
  typedef T type;
};
template <typename T>
struct remove_reference<T&> {
  typedef T type;
};
template <typename T>
using remove_reference_t = typename remove_reference<T>::type;
template <typename T>
using remove_addrspace_t = T;

template <typename T, int N>
struct array {
  T values[N];
  T operator[](int i) const { return values[i]; }
};

template <typename T, int RANK>
struct dextents {
  T columns, rows;
  dextents(T columns, T rows) : columns(columns), rows(rows) {}
};

struct tensor_inline {};
struct execution_simdgroup {};

// Element (column, row) lies at column + row * stride, as our strides {1, stride} say.
template <typename E, typename EXTENTS, typename KIND>
struct tensor {
  E* data;
  int columns, rows, stride;
  tensor(E* data, EXTENTS extents, array<int32_t, 2> strides)
      : data(data), columns(extents.columns), rows(extents.rows), stride(strides[1]) {
    if (strides[0] != 1) emu::fail("a tensor's first stride is not 1");
  }
  template <int COLUMNS, int ROWS>
  tensor slice(int column, int row) const {
    if (column < 0 || row < 0 || column + COLUMNS > columns || row + ROWS > rows)
      emu::fail("a slice goes beyond its tensor");
    return tensor(data + column + row * stride, EXTENTS(COLUMNS, ROWS), {{1, stride}});
  }
};

}  // namespace metal

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int rows, columns, depth;
  bool left_transposed, right_transposed, relaxed;
  mode what;
  constexpr matmul2d_descriptor(int rows, int columns, int depth, bool left, bool right,
                                bool relaxed, mode what)
      : rows(rows),
        columns(columns),
        depth(depth),
        left_transposed(left),
        right_transposed(right),
        relaxed(relaxed),
        what(what) {}
};

// A tile dealt out to 32 lanes in columns first, and one element more that is not valid.
template <typename T, int ROWS, int COLUMNS>
struct cooperative_tensor {
  static_assert(ROWS % 16 == 0 && COLUMNS % 16 == 0);
  static constexpr int VALID = ROWS * COLUMNS / 32;
  T elements[VALID];
  uint16_t get_capacity() const { return VALID + 1; }
  bool is_valid_element(uint16_t i) const { return i < VALID; }
  T& operator[](uint16_t i) {
    if (i >= VALID) emu::fail("an element that is not valid");
    return elements[i];
  }
  metal::array<int, 2> get_multidimensional_index(uint16_t i) const {
    if (i >= VALID) emu::fail("the place of an element that is not valid");
    const int at = i * 32 + int(emu::lane_index());
    return {{at / ROWS, at % ROWS}};
  }
};

template <matmul2d_descriptor D, typename SCOPE>
struct matmul2d {
  static_assert(!D.left_transposed && !D.right_transposed && !D.relaxed);
  static_assert(D.what == matmul2d_descriptor::mode::multiply_accumulate);

  template <typename A, typename B, typename T>
  cooperative_tensor<T, D.rows, D.columns> get_destination_cooperative_tensor() const {
    return cooperative_tensor<T, D.rows, D.columns>();
  }

  // Inlined and unrolled, so that c can stay in registers as it does on a GPU.
  template <typename A, typename B, typename C>
  __attribute__((always_inline)) void run(A a, B b, C& c) const {
    if (a.rows != D.rows || a.columns != D.depth || b.rows != D.depth || b.columns != D.columns)
      emu::fail("the tensors of a product have other sizes than its descriptor");
#ifndef EMU_COUNT
    for (int row = 0; row < a.rows; ++row)
      emu::read_by_any_lane(a.data + row * a.stride, a.columns);
    for (int row = 0; row < b.rows; ++row)
      emu::read_by_any_lane(b.data + row * b.stride, b.columns);
#endif
    emu::exchange({emu::TOGETHER, 0, 0});
    _Pragma("clang loop unroll(full)") for (uint16_t i = 0; i < C::VALID; ++i) {
      const auto at = c.get_multidimensional_index(i);
      for (int k = 0; k < D.depth; ++k)
        c[i] += int(a.data[at[1] * a.stride + k]) * int(b.data[k * b.stride + at[0]]);
    }
    emu::exchange({emu::TOGETHER, 0, 0});
  }
};

}  // namespace tensor_ops
}  // namespace mpp
