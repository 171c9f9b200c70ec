// matmul2d as Metal 4.1 has it: operand types are asked for without an address space, so that the
// decltype of a local tensor, which is in the thread address space, names none of its candidates.
#pragma once
#include <metal_tensor>

namespace mpp {
namespace tensor_ops {

using namespace metal;

template <typename T>
struct is_operand {
  static constexpr constant bool value = false;
};
template <typename E, typename EXTENTS, typename KIND>
struct is_operand<tensor<E, EXTENTS, KIND>> {
  static constexpr constant bool value = true;
};

// A descriptor is packed into a number, as C++17 takes no struct as a template argument; a function
// may have the name of a struct, which is found before ::.
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
};
constexpr ulong matmul2d_descriptor(int rows, int columns, int depth, bool left_transposed,
                                    bool right_transposed, bool relaxed,
                                    enum matmul2d_descriptor::mode) {
  return (ulong(rows) << 32) | ulong(columns);  // all that its types depend on
}

template <ulong DESCRIPTOR, typename SCOPE>
struct matmul2d {
  template <
      typename LEFT, typename RIGHT, typename T,
      typename = typename enable_if<is_operand<LEFT>::value && is_operand<RIGHT>::value>::type>
  cooperative_tensor<T, int(DESCRIPTOR >> 32), int(DESCRIPTOR & 0xffffffff)>
  get_destination_cooperative_tensor() const;

  template <typename LEFT, typename RIGHT, typename C>
  void run(thread LEFT& left, thread RIGHT& right, thread C& sums) const;
};

}  // namespace tensor_ops
}  // namespace mpp
