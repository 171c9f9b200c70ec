"""Launches of kernels on a GPU, in portions that the GPU of a display lets run to their end."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import mlx.core as mx

from eggroll.engines.gpu.dialect import KernelSource

Shape = tuple[int, ...]
OutputShapes = dict[str, tuple[Shape, mx.Dtype]]  # by name
SMALLEST_INPUT = 8  # smaller inputs become `constant` in MLX's kernels, another type than `device`

FIRST_MACS = 1 << 36  # multiply-adds of a portion before one was timed
MIN_MACS, MAX_MACS = 1 << 30, 1 << 42  # of any portion
SECONDS = 0.25  # that a portion takes at most, about


class Launcher(Protocol):
    """Runs a kernel: inputs by position; grid counts threads. Returns one array per output."""

    def __call__(
        self,
        source: KernelSource,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        grid: Shape,
        threadgroup: Shape,
    ) -> list[mx.array]: ...


def launcher(
    compiled: Callable[[KernelSource, tuple[mx.Dtype, ...]], Any], *, verbose: bool = False
) -> Launcher:
    """Runs kernels on the GPU, as `compiled` makes them by mx.fast for arrays of these types.

    verbose: prints the text that MLX compiles.
    """

    def launch(
        source: KernelSource,
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


def kernel_name(source: KernelSource, *facts: str) -> str:
    """A name with a hash of all that a kernel is made of, as MLX's cache goes by names."""
    text = "\0".join((*facts, *source.inputs, *source.outputs, source.header, source.body))
    return f"{source.name}_{hashlib.sha256(text.encode('ascii')).hexdigest()[:16]}"


def pad_flat(a: mx.array, size: int = SMALLEST_INPUT) -> mx.array:
    """The array, flat, with zeros up to `size` elements."""
    a = a.reshape(-1)
    return a if a.size >= size else mx.concatenate([a, mx.zeros(size - a.size, a.dtype)])


@lru_cache(1024)
def kept_numbers(*values: int) -> mx.array:
    """Numbers for a kernel, int32. Kept, as a GPU's first look at memory of the host takes long."""
    return mx.array(list(values), mx.int32)


class Pace:
    """The size of a portion, which follows the time that portions take.

    macOS ends a command buffer after about 5 s, and earlier one that keeps the display waiting;
    Windows and desktop Linux have such limits, too. So a portion is computed before the next one is
    launched. macs: multiply-adds of a portion, and so of a launch, at most; waits: whether portions
    are waited for, as a GPU needs it.
    """

    def __init__(self, waits: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.macs, self.waits, self._clock = FIRST_MACS, waits, clock
        self._pending, self._start, self._compiles = 0, 0.0, False
        self._compiled: set[object] = set()

    def begin(self, kernel: object) -> None:
        """Tells that a kernel will be launched, the first time with its compilation."""
        if not self.waits:
            return
        if not self._pending:
            self._start = self._clock()
        self._compiles |= kernel not in self._compiled
        self._compiled.add(kernel)

    def launched(self, arrays: Iterable[mx.array], macs: int) -> None:
        """Waits for the arrays if what was launched since the last time is a portion."""
        if not self.waits:
            return
        self._pending += macs
        if 2 * self._pending < self.macs:
            return
        mx.eval(list(arrays))
        seconds = self._clock() - self._start
        if seconds < SECONDS / 2:
            self.macs = min(2 * self.macs, MAX_MACS)
        elif seconds > SECONDS and not self._compiles:
            self.macs = max(self.macs // 2, MIN_MACS)
        self._pending, self._compiles = 0, False


def whole_portions() -> None:
    """Lets MLX put a portion into one command buffer of Metal.

    Else it ends a buffer within a portion whose failure nobody waits for, so that wrong results
    would pass for right ones. MLX reads this when it opens the GPU: for the first array that there
    is, or to tell the GPU's name.
    """
    os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "1000000")
    os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", "1000000")
