// The table of an instruction set.
#pragma once

#include "fused.h"
#include "optimize.h"

namespace float_kernels_impl {

template <class Isa>
constexpr float_kernels table_of() {
  using E = Elements<Isa>;
  using O = Optimize<Isa>;
  using P = Fused<Isa>;
  float_kernels t{};
  t.abi = FLOAT_KERNELS_ABI, t.width = Isa::kWidth, t.isa = Isa::kName;
  t.sgemm_nn = P::template sgemm_of<FLOAT_KERNELS_NN>;
  t.sgemm_nt = P::template sgemm_of<FLOAT_KERNELS_NT>;
  t.sgemm_tn = P::template sgemm_of<FLOAT_KERNELS_TN>;
  t.sgemm = P::sgemm, t.packed_floats = P::packed_floats, t.pack = P::pack;
  t.sgemm_packed = P::sgemm_packed, t.linear = P::linear, t.linear_packed = P::linear_packed;
  t.linear_backward = P::linear_backward, t.bias_relu = E::bias_relu;
  t.relu_backward = E::relu_backward, t.relu_backward_bits = E::relu_backward_bits;
  t.column_sums = E::column_sums, t.gelu = E::gelu_all, t.gelu_backward = E::gelu_backward;
  t.exp = E::exp_all, t.tanh = E::tanh_all, t.erf = E::erf_all, t.softmax = E::softmax;
  t.cross_entropy = E::cross_entropy, t.adam = O::adam, t.sum_squares = O::sum_squares;
  t.axpy = O::axpy, t.mlp_forward = P::mlp_forward, t.mlp_backward = P::mlp_backward;
  t.ffn_forward = P::ffn_forward, t.ffn_backward = P::ffn_backward;
  t.workspace_floats = P::workspace_floats, t.peak = O::peak;
  return t;
}

}  // namespace float_kernels_impl
