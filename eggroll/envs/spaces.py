"""Gymnasium's spaces: observations become int8 rows, outputs become actions.

Letters: n environments of one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import tanh
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError
from eggroll.spec.fixed_point import LIMIT, quantise

# Outputs [n, size] -> actions [n] or [n, ..], as the environment takes them.
Decode = Callable[[NDArray[Any]], NDArray[Any]]
# Observations of many environments, [n, ..] or a dict or tuple of such -> int8 [n, inputs].
Observe = Callable[[Any], NDArray[np.int8]]
# The same -> real numbers [n, inputs].
Flatten = Callable[[Any], NDArray[np.float64]]
Squash = Literal["clip", "tanh"]

ONE = 64  # of a one-hot, and of a bit that is set
UNBOUNDED_FROM = 1e6  # bounds from here on count as none
UNBOUNDED_SCALE = (
    32.0  # scale of a value without bounds: 1.0 is 32, and values beyond 4 are clipped
)
KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def kind_of(space: Any) -> str:
    """The kind of a Gymnasium space, also of a subclass; its own name if it is none of KINDS."""
    names = [kind.__name__ for kind in type(space).__mro__]
    return next((name for name in names if name in KINDS), names[0])


# Observations.


def observe_for(space: Any, span: int = LIMIT) -> Observe:
    """The function that makes int8 of observations of a Gymnasium space.

    Box: `quantise` with `scales` of its bounds, flat. Discrete and each part of MultiDiscrete: 64
    at the place of the number, 0 elsewhere. MultiBinary: 64 for a bit that is set. Dict and Tuple:
    all parts side by side. span: what the wider bound of a Box becomes, 127 or less.

    Raises:
        InputError: another space.
    """
    kind = kind_of(space)
    if kind == "Box":
        factors = scales(space.low, space.high) * np.float32(span / LIMIT)
        return lambda seen: quantise(seen.reshape(len(seen), -1), factors)
    if kind == "Discrete":
        one_hot = np.diag(np.full(int(space.n), ONE, np.int8))
        return lambda seen: one_hot[_within(seen - int(space.start), space.n, seen, space)]
    if kind == "MultiDiscrete":
        sizes, start = space.nvec.reshape(-1).astype(np.int64), space.start.reshape(-1)
        places = sizes.cumsum() - sizes - start

        def one_hots(seen: NDArray[Any]) -> NDArray[np.int8]:
            rows = np.zeros((len(seen), int(sizes.sum())), np.int8)
            flat = seen.reshape(len(seen), -1)
            _within(flat - start, sizes, flat, space)
            np.put_along_axis(rows, flat + places, np.int8(ONE), axis=1)
            return rows

        return one_hots
    if kind == "MultiBinary":
        return lambda seen: seen.reshape(len(seen), -1).astype(np.int8) * np.int8(ONE)
    if kind in ("Dict", "Tuple"):
        return _side_by_side(space, partial(observe_for, span=span))
    raise InputError(
        f"observations are of a {kind} space: pass observe, a function that makes int8 [n, inputs] "
        "of them."
    )


def _within(places: NDArray[Any], sizes: Any, seen: NDArray[Any], space: Any) -> NDArray[np.int64]:
    """Places that are 0 or more and below sizes; an InputError for others."""
    if (wrong := (places < 0) | (places >= sizes)).any():
        raise InputError(f"an observation has {seen[wrong][0]}, which is not in its space {space}.")
    return places


def numbers_for(space: Any) -> Flatten:
    """The function that lays observations of a Box, or of a Dict or Tuple of such, side by side.

    Raises:
        InputError: another space.
    """
    kind = kind_of(space)
    if kind == "Box":
        return lambda seen: np.asarray(seen, np.float64).reshape(len(seen), -1)
    if kind in ("Dict", "Tuple"):
        return _side_by_side(space, numbers_for)
    raise InputError(
        f"normalise is for numbers and observations have a {kind} space: leave normalise out."
    )


def _side_by_side(space: Any, part: Callable[[Any], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """The function of a Dict or Tuple whose parts have functions."""
    spaces = space.spaces
    names = list(spaces) if kind_of(space) == "Dict" else range(len(spaces))
    parts = [(name, part(spaces[name])) for name in names]
    return lambda seen: np.concatenate([of(seen[name]) for name, of in parts], axis=-1)


def scales(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float32]:
    """Scales for `quantise` of values within low..high [..]: the wider bound becomes 127.

    A value without bounds has the scale 32. float32 [n], of the values side by side.
    """
    bound = np.maximum(abs(low.astype(np.float64)), abs(high.astype(np.float64))).reshape(-1)
    bounded = (bound > 0) & (bound < UNBOUNDED_FROM)
    return np.where(bounded, LIMIT / np.where(bounded, bound, 1), UNBOUNDED_SCALE).astype(
        np.float32
    )


# Actions.


def decode_for(space: Any, squash: Squash = "clip") -> tuple[Decode, int]:
    """The function that makes actions of outputs for a Gymnasium space, and the outputs it needs.

    Discrete: `argmax`. MultiDiscrete: of each part. MultiBinary: 1 for an output above 0. Box with
    bounds: `box`, after `soft` with squash "tanh".

    Raises:
        InputError: another space.
    """
    kind = kind_of(space)
    if squash not in ("clip", "tanh"):
        raise InputError(f'squash is {squash!r}: "clip" or "tanh" is needed.')
    if kind == "Discrete":
        start = int(space.start)
        return lambda outputs: argmax(outputs) + start, int(space.n)
    if kind == "MultiDiscrete":
        ends, starts, shape = space.nvec.reshape(-1).cumsum(), space.start, space.shape

        def each(outputs: NDArray[Any]) -> NDArray[Any]:
            parts = np.split(outputs, ends[:-1], axis=-1)
            chosen: NDArray[Any] = np.stack([argmax(part) for part in parts], axis=-1)
            chosen = chosen.reshape(-1, *shape) + starts
            return chosen.astype(space.dtype)

        return each, int(ends[-1])
    if kind == "MultiBinary":

        def bits(outputs: NDArray[Any]) -> NDArray[Any]:
            above: NDArray[Any] = (outputs > 0).reshape(-1, *space.shape)
            return above.astype(space.dtype)

        return bits, int(np.prod(space.shape))
    if kind == "Box" and np.isfinite(_width(space.low, space.high)).all():

        def bounded(outputs: NDArray[Any]) -> NDArray[Any]:
            if outputs.dtype != np.int8:
                raise InputError(
                    f"outputs are {outputs.dtype}, and actions of a Box are made of int8: end the "
                    "network with `output` in place of `sums`, or pass decode."
                )
            shares = soft(outputs) if squash == "tanh" else outputs
            return _actions(shares.reshape(-1, *space.shape), space)

        return bounded, int(np.prod(space.shape))
    raise InputError(
        f"actions are of a {kind} space{' without bounds' * (kind == 'Box')}: pass decode, a "
        "function that makes actions of outputs [n, size]."
    )


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
    actions: NDArray[np.float32] = bottom + share * (top - bottom)
    return actions


def _actions(outputs: NDArray[Any], space: Any) -> NDArray[Any]:
    """`box` in the numbers of a Box, the nearest of whole ones, and never beyond its bounds."""
    if space.dtype == np.float32:
        return np.clip(box(outputs, space.low, space.high), space.low, space.high)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    share = (outputs + float(LIMIT)) / (2 * LIMIT)
    found = (1 - share) * low + share * high  # at the ends exactly these
    whole = np.issubdtype(space.dtype, np.integer)
    actions: NDArray[Any] = np.clip(np.rint(found) if whole else found, low, high)
    return actions.astype(space.dtype)


def _width(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float32]:
    """From low to high as `box` has it; infinite or NaN without bounds."""
    with np.errstate(over="ignore", invalid="ignore"):
        width: NDArray[np.float32] = high.astype(np.float32) - low.astype(np.float32)
    return width


@cache
def soft_table() -> NDArray[np.int8]:
    """round(127 tanh(v / 8)) for v = -127..127, int8 [255]: -127 to 127."""
    table = np.array([round(LIMIT * tanh(i / 8)) for i in range(-LIMIT, LIMIT + 1)], np.int8)
    table.setflags(write=False)  # as it is made once
    return table


def soft(outputs: NDArray[Any]) -> NDArray[np.int8]:
    """Outputs int8 [..] through an integer table of tanh: 8, half of 1.0, becomes 97 of 127."""
    found: NDArray[np.int8] = soft_table()[outputs.astype(np.int64) + LIMIT]
    return found
