// Integer products on NAX, the matrix units of M5 and later: Metal 4's matmul2d, int8 x int8 to
// int32.
//
// It does not say which lane holds what, so a tile goes through threadgroup memory (lane.spare, one
// for every simdgroup) to the lanes that the epilogue expects.

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_tensor>

namespace egg {

// total[i][j]: outputs 8 (TILES tile + i) + row of W x, members 8 j + column and the next.
//
// W is int8 [outputs][inputs], both padded to 32 with zeros. So a step of 32 inputs reads nothing
// past an end, and what x holds beyond K does not matter.
template <int K, int TILES, typename Register>
EGG_FUNCTION void product(thread int2 (&total)[TILES][M / 8], const device int8_t* W, Register x,
                          uint tile, Lane lane) {
  constexpr int ROWS = 8 * TILES, STEP = 32, INPUTS = (K + 31) / 32 * 32;
  typedef dextents<int32_t, 2> Extents;
  typedef metal::array<int32_t, 2> Strides;
  typedef metal::remove_reference_t<decltype(*x)> Element;
  metal::tensor<device int8_t, Extents, tensor_inline> left(
      (device int8_t*)W + tile * ROWS * INPUTS, Extents(INPUTS, ROWS), Strides{1, INPUTS});
  metal::tensor<Element, Extents, tensor_inline> right(x, Extents(M, INPUTS), Strides{1, LD});
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      ROWS, M, STEP, false, false, false,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> operation;
  auto a = left.template slice<STEP, ROWS>(0, 0);
  auto b = right.template slice<M, STEP>(0, 0);
  // From Metal 4.1 on, a decltype names the address space of its variable, and is no operand.
  auto sums = operation.template get_destination_cooperative_tensor<
      metal::remove_addrspace_t<decltype(a)>, metal::remove_addrspace_t<decltype(b)>, int32_t>();
  EGG_UNROLL
  for (uint16_t i = 0; i < sums.get_capacity(); ++i)
    if (sums.is_valid_element(i)) sums[i] = 0;
  for (int k = 0; k < INPUTS; k += STEP) {
    auto some = left.template slice<STEP, ROWS>(k, 0);
    auto of_x = right.template slice<M, STEP>(0, k);
    operation.run(some, of_x, sums);
  }
  EGG_UNROLL
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    if (!sums.is_valid_element(i)) continue;
    const auto at = sums.get_multidimensional_index(i);
    lane.spare[at[1] * M + at[0]] = sums[i];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  EGG_EACH (i, TILES)
    EGG_EACH (j, M / 8) {
      const uint at = (8 * i + lane.row) * M + 8 * j + lane.column;
      total[i][j].x = lane.spare[at];
      total[i][j].y = lane.spare[at + 1];
    }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

}  // namespace egg
