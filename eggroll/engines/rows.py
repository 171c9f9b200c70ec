"""What an engine asks of the arrays that a program's members are shown.

Letters: P members, N pairs, T rows.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.program import Program, Rows

LARGEST_VALUE = 1 << 19  # 15 times its discounted sum, in 1/256 bit, is below 2^31


def on_host(a: mx.array) -> NDArray[Any]:
    """An array's integers as unsigned ones: one below 0 is larger than 2^31.

    Those of 32 bits or more are not copied. What the host has made it can look at without waiting
    for a GPU.
    """
    host = np.asarray(a)
    if host.dtype.kind not in "biu":
        raise ValueError(f"{host.dtype} was given: integers are needed")
    if host.dtype.kind != "i":
        return host
    host = host if host.itemsize >= 4 else host.astype(np.int32)  # else -1 would be 255
    return host.view(f"u{host.itemsize}")


def check_rows(program: Program, rows: Rows, members: int, length: int) -> None:
    """Raises ValueError unless the rows [P, T] are what the program reads."""
    if program.inputs:
        _check("rows.inputs", rows.inputs, mx.int8, (members, length, program.inputs))
    if not program.indices:
        return
    shown = rows.features
    _check("rows.features", shown, mx.int32, (members, length, program.indices))
    assert shown is not None
    for op in (op for stage in program.stages for op in stage.ops if op.kind == "features"):
        lists, active, first, _ = op.numbers
        leaf, mine = program.leaves[op.leaf], np.asarray(shown)[..., first : first + lists * active]
        if mine.size and not -1 <= mine.min() <= mine.max() < leaf.shape[0]:
            raise ValueError(
                f"rows.features of {leaf.name!r} are {mine.min()} to {mine.max()}: "
                f"0 to {leaf.shape[0] - 1} is needed, or -1 for none."
            )


def check_values(program: Program, values: mx.array | None, pairs: int, length: int) -> None:
    """Raises ValueError unless there is a score, or values [N, T] in its place."""
    if values is None and program.scored:
        return
    _check("values", values, mx.int32, (pairs, length))
    assert values is not None
    host = np.asarray(values)
    if host.size and not -LARGEST_VALUE <= host.min() <= host.max() <= LARGEST_VALUE:
        raise ValueError(f"values are beyond {LARGEST_VALUE}: scale them down.")


def check_scored(program: Program) -> None:
    """Raises ValueError for a program without a score."""
    if not program.scored:
        raise ValueError("The program has no score: ask for its outputs.")


def _check(name: str, array: mx.array | None, dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    needed = f"{str(dtype).removeprefix('mlx.core.')} {list(shape)} is needed."
    if array is None:
        raise ValueError(f"{name} is missing: {needed}")
    if array.dtype != dtype or tuple(array.shape) != shape:
        given = f"{str(array.dtype).removeprefix('mlx.core.')} {list(array.shape)}"
        raise ValueError(f"{name} is {given}: {needed}")
