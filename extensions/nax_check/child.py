"""The process that multiplies: `python child.py tensor|simdgroup`; stands alone, see product.py.

C = A B with A [M, K] and B [K, N] int8, C [M, N] int32. Written from Apple's description of Metal
4's tensor operations and of simdgroup matrices; not yet run on an Apple GPU by its authors.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Kernel:
    """A Metal kernel and the shapes it is tried with; a tile is a threadgroup's share of C."""

    m: int
    n: int
    k: int
    tile_m: int
    tile_n: int
    threads: int  # of a threadgroup
    header: str
    source: str


# K is read from the tensors, as a fixed K that reads past their end would be undefined. The
# destination is written by its own index of each element, so no layout of lanes is assumed. Its
# operands are named without an address space, which decltype adds from Metal 4.1 on.
TENSOR = """
    using namespace mpp::tensor_ops;
    const int row = int(threadgroup_position_in_grid.y) * TILE_M;
    const int column = int(threadgroup_position_in_grid.x) * TILE_N;
    tensor<device int8_t, dextents<int32_t, 2>, tensor_inline> all_left(
        const_cast<device int8_t*>(left), dextents<int32_t, 2>(SIZE_K, SIZE_M));
    tensor<device int8_t, dextents<int32_t, 2>, tensor_inline> all_right(
        const_cast<device int8_t*>(right), dextents<int32_t, 2>(SIZE_N, SIZE_K));
    auto some_left = all_left.slice(0, row);
    auto some_right = all_right.slice(column, 0);
    constexpr auto shape = matmul2d_descriptor(
        TILE_M, TILE_N, static_cast<int>(dynamic_extent), false, false, false,
        matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<shape, execution_simdgroups<THREADS / 32>> multiply;
    auto sums = multiply.get_destination_cooperative_tensor<
        metal::remove_addrspace_t<decltype(some_left)>,
        metal::remove_addrspace_t<decltype(some_right)>, int32_t>();
    for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
        if (sums.is_valid_element(i)) sums[i] = 0;
    }
    multiply.run(some_left, some_right, sums);
    for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
        if (!sums.is_valid_element(i)) continue;
        auto at = sums.get_multidimensional_index(i);
        product[(row + int(at[1])) * SIZE_N + column + int(at[0])] = sums[i];
    }
"""

# Halves hold int8 exactly and their sums stay below 2^24, so float accumulators lose nothing.
SIMDGROUP = """
    const int row = int(threadgroup_position_in_grid.y) * TILE_M;
    const int column = int(threadgroup_position_in_grid.x) * TILE_N;
    const int lane = int(thread_index_in_simdgroup);
    threadgroup half some_left[64];
    threadgroup half some_right[64];
    threadgroup float sums[64];
    simdgroup_float8x8 total = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int k = 0; k < SIZE_K; k += 8) {
        for (int i = lane; i < 64; i += THREADS) {
            some_left[i] = half(left[(row + i / 8) * SIZE_K + k + i % 8]);
            some_right[i] = half(right[(k + i / 8) * SIZE_N + column + i % 8]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_half8x8 a;
        simdgroup_half8x8 b;
        simdgroup_load(a, some_left, 8);
        simdgroup_load(b, some_right, 8);
        simdgroup_multiply_accumulate(total, a, b, total);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    simdgroup_store(total, sums, 8);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = lane; i < 64; i += THREADS) {
        product[(row + i / 8) * SIZE_N + column + i % 8] = int(sums[i]);
    }
"""

# The tensor's K takes sums past 2^24, where a float accumulator would be found out.
KERNELS = {
    "tensor": Kernel(
        128, 96, 2048, 64, 32, 128,
        "#include <metal_tensor>\n"
        "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n",
        TENSOR,
    ),
    "simdgroup": Kernel(16, 24, 1024, 8, 8, 32, "#include <metal_simdgroup_matrix>\n", SIMDGROUP),
}  # fmt: skip


def operands(kernel: Kernel) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Fixed A and B; the first sum is near the largest possible and odd."""
    words = np.random.Generator(np.random.PCG64(1))
    left = words.integers(-127, 128, (kernel.m, kernel.k)).astype(np.int8)
    right = words.integers(-127, 128, (kernel.k, kernel.n)).astype(np.int8)
    left[0], right[:, 0] = 127, -127
    right[0, 0] = -126
    return left, right


def defines(kernel: Kernel) -> str:
    """The header with the sizes that the source names."""
    sizes = {
        "SIZE_M": kernel.m, "SIZE_N": kernel.n, "SIZE_K": kernel.k,
        "TILE_M": kernel.tile_m, "TILE_N": kernel.tile_n, "THREADS": kernel.threads,
    }  # fmt: skip
    return kernel.header + "".join(f"#define {name} {size}\n" for name, size in sizes.items())


def on_gpu(
    name: str, kernel: Kernel, left: NDArray[np.int8], right: NDArray[np.int8]
) -> NDArray[np.int32]:
    """C by the Metal kernel."""
    import mlx.core as mx

    compiled: Any = mx.fast.metal_kernel(
        name=f"nax_check_{name}",
        input_names=["left", "right"],
        output_names=["product"],
        source=kernel.source,
        header=defines(kernel),
    )
    (product,) = compiled(
        inputs=[mx.array(left), mx.array(right)],
        output_shapes=[(kernel.m, kernel.n)],
        output_dtypes=[mx.int32],
        grid=(kernel.n // kernel.tile_n * kernel.threads, kernel.m // kernel.tile_m, 1),
        threadgroup=(kernel.threads, 1, 1),
        stream=mx.gpu,
    )
    return np.array(product)


def compare(found: NDArray[np.int32], kernel: Kernel) -> dict[str, object]:
    """The answer: whether every number is NumPy's, and how many are not."""
    left, right = operands(kernel)
    wanted = left.astype(np.int32) @ right.astype(np.int32)
    size = f"[{kernel.m}, {kernel.k}] x [{kernel.k}, {kernel.n}]"
    wrong = np.argwhere(found != wanted)
    if not len(wrong):
        return {"exact": True, "text": f"{size}, every number equals NumPy's"}
    i, j = wrong[0]
    text = f"{size}, {len(wrong)} of {wanted.size} numbers differ from NumPy's: "
    text += f"{found[i, j]} at [{i}, {j}] for {wanted[i, j]}"
    return {"exact": False, "text": text}


def main(name: str) -> int:
    """Prints the answer as one JSON object, or on stderr why there is none."""
    try:
        kernel = KERNELS[name]
        print(json.dumps(compare(on_gpu(name, kernel, *operands(kernel)), kernel)))
        return 0
    except Exception as error:  # the parent makes a sentence of it
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = [line for line in lines if "error:" in line] or lines[:1]
        print(telling[0] if telling else type(error).__name__, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
