"""How a kernel is compiled and launched, and what is looked at before it reads an array."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from eggroll.engines.gpu.text import Source
from eggroll.noise import Slices, slice_length
from eggroll.program import Program

Shape = tuple[int, ...]
Made = dict[str, tuple[Shape, mx.Dtype]]  # outputs by name
LEAST = 8  # smaller inputs become `constant` in MLX's kernels, another type than `device`


class Launcher(Protocol):
    """Runs a kernel: inputs by position; grid counts threads. Returns one array per output."""

    def __call__(
        self,
        source: Source,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        grid: Shape,
        threadgroup: Shape,
    ) -> list[mx.array]: ...


@cache
def compiled(source: Source) -> Any:
    """The kernel as MLX compiles it; its name tells its text, as MLX's cache goes by names."""
    text = "\0".join((*source.inputs, *source.outputs, source.header, source.body))
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()[:16]
    return mx.fast.metal_kernel(
        name=f"{source.name}_{digest}",
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
    )


def launch(
    source: Source,
    inputs: Sequence[mx.array],
    outputs: Sequence[tuple[Shape, mx.Dtype]],
    grid: Shape,
    threadgroup: Shape,
) -> list[mx.array]:
    """Runs a kernel on the GPU through mx.fast.metal_kernel."""
    shapes, dtypes = zip(*outputs, strict=True)
    return compiled(source)(  # type: ignore[no-any-return]
        inputs=list(inputs),
        output_shapes=list(shapes),
        output_dtypes=list(dtypes),
        grid=grid,
        threadgroup=threadgroup,
    )


def at_least(a: mx.array, size: int = LEAST) -> mx.array:
    """The array, flat, with zeros up to `size` elements."""
    a = a.reshape(-1)
    return a if a.size >= size else mx.concatenate([a, mx.zeros(size - a.size, a.dtype)])


def extreme(of: Callable[..., mx.array], a: mx.array) -> int:
    """The least or the largest element, found on the CPU so as not to wait for the GPU."""
    return int(np.array(of(a, stream=mx.cpu)))


def check_noise(program: Program, noise: Slices, members: int) -> None:
    """Raises ValueError unless every slice of members / 2 pairs lies in the table."""
    if members % 2 or noise.starts.shape != (len(program.leaves), members // 2):
        raise ValueError(f"starts are {noise.starts.shape} for {members} members")
    longest = np.array([slice_length(leaf.shape, noise.rank) for leaf in program.leaves], np.int32)
    ends = mx.add(noise.starts, mx.array(longest)[:, None], stream=mx.cpu)
    if extreme(mx.min, noise.starts) < 0 or extreme(mx.max, ends) > noise.table.size:
        raise ValueError("a slice of the noise lies beyond the table")
