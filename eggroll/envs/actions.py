"""What an environment is given of a network's outputs: actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError
from eggroll.fixed_point import LIMIT

# Outputs [n, size] -> actions [n] or [n, ..], as the environment takes them.
Decode = Callable[[NDArray[Any]], NDArray[Any]]


def argmax(outputs: NDArray[Any]) -> NDArray[np.int64]:
    """The place of the largest output, the first of equals: int [..] of [.., actions]."""
    best: NDArray[np.int64] = outputs.argmax(axis=-1)
    return best


def box(outputs: NDArray[Any], low: ArrayLike, high: ArrayLike) -> NDArray[np.float32]:
    """Outputs int8 [.., n], -127..127, as float32 from low to high, in a straight line.

    The clip of int8 bounds them, as a tanh would.
    """
    bottom, top = np.asarray(low, np.float32), np.asarray(high, np.float32)
    share = (outputs.astype(np.float32) + LIMIT) / np.float32(2 * LIMIT)
    made: NDArray[np.float32] = bottom + share * (top - bottom)
    return made


def decoding(space: Any) -> tuple[Decode, int]:
    """The function that makes actions of outputs for a Gymnasium space, and the outputs it needs.

    Discrete: `argmax`. Box with bounds: `box`.

    Raises:
        InputError: another space.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        start = int(space.start)
        return lambda outputs: argmax(outputs) + start, int(space.n)
    if kind == "Box" and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        shape = space.shape
        return (
            lambda outputs: box(outputs.reshape(-1, *shape), space.low, space.high).astype(
                space.dtype
            ),
            int(np.prod(shape)),
        )
    raise InputError(
        f"actions are of a {kind} space{' without bounds' * (kind == 'Box')}: pass decode, a "
        "function that makes actions of outputs [n, size]."
    )
