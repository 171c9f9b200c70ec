"""Launches kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx

from eggroll.engines.gpu.source import Source

Shape = tuple[int, ...]
Outputs = dict[str, tuple[Shape, mx.Dtype]]  # by name
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


def kernel_name(source: Source, *facts: str) -> str:
    """A name that tells all that a kernel is made of, as MLX's cache goes by names."""
    text = "\0".join((*facts, *source.inputs, *source.outputs, source.header, source.body))
    return f"{source.name}_{hashlib.sha256(text.encode('ascii')).hexdigest()[:16]}"


def launcher(
    compiled: Callable[[Source, tuple[mx.Dtype, ...]], Any], *, verbose: bool = False
) -> Launcher:
    """Runs kernels on the GPU, as `compiled` makes them by mx.fast for arrays of these types.

    verbose: prints the text that MLX compiles.
    """

    def launch(
        source: Source,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        grid: Shape,
        threadgroup: Shape,
    ) -> list[mx.array]:
        shapes, dtypes = zip(*outputs, strict=True)
        return compiled(source, (*(a.dtype for a in inputs), *dtypes))(  # type: ignore[no-any-return]
            inputs=list(inputs),
            output_shapes=list(shapes),
            output_dtypes=list(dtypes),
            grid=grid,
            threadgroup=threadgroup,
            verbose=verbose,
        )

    return launch


def pad_flat(a: mx.array, size: int = LEAST) -> mx.array:
    """The array, flat, with zeros up to `size` elements."""
    a = a.reshape(-1)
    return a if a.size >= size else mx.concatenate([a, mx.zeros(size - a.size, a.dtype)])
