"""Fitness: what members scored or earned -> one number per pair.

Letters: P members, N = P/2 pairs, T tokens or rows. FITNESS has the ways by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.arrays import array_of
from eggroll.draws import native_module
from eggroll.rule import arrays

FitnessName = Literal["sign", "ranks", "centred"]
Values = NDArray[np.float64]

LEVELS = 7  # of a pair's fitness on either side of zero, three bits
CREDIT = 32  # mean size of the values that token credit is given: wide, and rarely clipped to int8
MOST, LEAST = 1e290, 1e-290  # of values, and of differences that count by their size
LIVELY = 0.01  # share of differing pairs below which hardly anything is learnt
FINE = 1 << 24  # steps of the largest difference, where means are taken


def pair_fitness(scores: mx.array) -> mx.array:
    """Token scores [P, T] -> int8 [N]: sign of member 2i's total minus member 2i+1's."""
    xp, view = arrays()
    native = native_module()
    if xp is np and native is not None and scores.dtype == mx.int16:
        found: mx.array = native.pair_signs(scores)
        return found
    total = view(scores).astype(xp.int32).sum(axis=1)
    return mx.array(xp.sign(total[0::2] - total[1::2]).astype(xp.int8))


def decided(fitness: mx.array) -> int:
    """Pairs that did not tie, of fitness int8 [N]."""
    return int(np.count_nonzero(np.asarray(fitness)))


def power(fitness: NDArray[np.int8]) -> int:
    """The sum of the squares of a fitness: the variance of its votes, in pairs of fitness 1."""
    return int((fitness.astype(np.int64) ** 2).sum())


def signs(values: Values) -> NDArray[np.int8]:
    """Values [P] -> the sign of each pair's difference, int8 [N]."""
    return np.sign(values[0::2] - values[1::2]).astype(np.int8)


def ranks(values: Values) -> NDArray[np.int8]:
    """Values [P] -> the difference of each pair's ranks among all members, in -7..7, int8 [N].

    Equal values share the mean of their ranks.
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    twice = 2 * np.cumsum(count) - count - 1  # 2 x mean rank of every value, from 0
    difference = twice[place[0::2]] - twice[place[1::2]]  # at most 2 (P - 1)
    most = 2 * (len(values) - 1)
    return _rounded(LEVELS * difference, most).astype(np.int8)


def centred(values: Values) -> NDArray[np.int8]:
    """Values [P] -> each pair's difference, of mean size 3, in -7..7, int8 [N]."""
    d = values[0::2] - values[1::2]
    return np.clip(scaled(d, 3, mean_size(d)), -LEVELS, LEVELS).astype(np.int8)


def mean_size(difference: Values, count: int = 0) -> float:
    """Mean of the sizes, to 2^-24 of the largest; no order of additions changes a bit of it.

    count: the differences that the mean is of, if the others are zero because nothing was at stake.
    """
    most = float(abs(difference).max(initial=0.0))
    if most < LEAST:
        return 0.0
    fine = np.rint(abs(difference) / most * FINE).astype(np.int64)
    return int(fine.sum()) / FINE * most / (count or fine.size)


def scaled(difference: Values, mean: int, unit: float) -> NDArray[np.int64]:
    """Differences in whole numbers, such that `unit` becomes `mean`; the largest are clipped."""
    if unit == 0:
        return np.zeros(difference.shape, np.int64)
    limit = 1 << 19  # of a value that engines take
    out: NDArray[np.int64] = np.clip(np.rint(difference * (mean / unit)), -limit, limit).astype(
        np.int64
    )
    return out


def _rounded(n: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """n / by to the nearest whole number, halves away from zero."""
    out: NDArray[np.int64] = np.sign(n) * ((2 * abs(n) + by) // (2 * by))
    return out


class Fitness(NamedTuple):
    """A way from values to the fitness of pairs: what it is, and its function."""

    summary: str
    of: Callable[[Values], NDArray[np.int8]]


FITNESS: dict[str, Fitness] = {
    "sign": Fitness("one vote per pair, for the member of the larger value", signs),
    "ranks": Fitness("votes grow with the difference of the ranks", ranks),
    "centred": Fitness("votes grow with the difference of the values", centred),
}


def as_values(values: Any) -> Values:
    """Any array of numbers as float64; a ValueError for what is none, or is not finite."""
    array = array_of("fitness", values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"fitness is {array.dtype}: real numbers are needed")
    real = array.astype(np.float64)
    if not np.isfinite(real).all():
        first = np.argwhere(~np.isfinite(real))[0].tolist()
        raise ValueError(
            f"fitness is {real[tuple(first)]} at {first}: every value must be a finite number"
        )
    if abs(real).max(initial=0) > MOST:
        raise ValueError(f"fitness reaches {abs(real).max()}: {MOST} is the most, divide it")
    return real
