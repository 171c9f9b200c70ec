"""What CUDA is told of a kernel before MLX writes its signature.

MLX has no word for the blocks that a multiprocessor is to hold, on which it depends how many
registers the compiler may give a thread. It writes `__global__ void custom_kernel_NAME(..) {` after
the header, and CUDA takes the bounds from an earlier declaration of the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from eggroll.engines.gpu.source import Source

PREFIX = "custom_kernel_"  # of MLX's kernels


def declaration(source: Source, name: str, dtypes: Sequence[mx.Dtype]) -> str:
    """The kernel's declaration, for MLX's whole name; empty where nothing is to be said.

    dtypes: of its arrays, inputs first.
    """
    if not source.blocks:
        return ""
    count, kinds = len(source.inputs), (str(dtype).rpartition(".")[2] for dtype in dtypes)
    parameters = ", ".join(f"{'const ' * (i < count)}{kind}_t*" for i, kind in enumerate(kinds))
    bounds = f"__launch_bounds__({source.threads}, {source.blocks})"
    return (
        f"namespace mlx::core::cu {{\n__global__ {bounds} void {name}({parameters});\n"
        "}  // namespace mlx::core::cu\n"
    )
