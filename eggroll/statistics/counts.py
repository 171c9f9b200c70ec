"""Counts of integers: the histograms and shares of statistics.jsonl."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.fixed_point import LIMIT

BINS = 32  # of a histogram over -128 .. 127, each of 8 values
PART = 1 << 16  # values counted at a time, so that what is made of them stays in the cache
DIGITS = 6  # of a share


def parts(values: Any) -> Iterator[NDArray[Any]]:
    """The values of an array, some PART at a time."""
    flat = np.asarray(values).reshape(-1)
    return (flat[first : first + PART] for first in range(0, flat.size, PART))


def by_value(values: Any) -> NDArray[np.int64]:
    """How often an int8 array has -128, -127 .. 127: int64 [256]."""
    total = np.zeros(256, np.int64)
    for part in parts(values):
        total += np.bincount(part.view(np.uint8) ^ 0x80, minlength=256)
    return total


def distribution(values: Any, name: str) -> dict[str, Any]:
    """The share of int8 values at +-127, and under `name` the counts of all, 32 bins."""
    counts = by_value(values)
    beyond = int(counts[128 - LIMIT] + counts[128 + LIMIT])
    return {
        "saturated": share(beyond, int(counts.sum())),
        name: counts.reshape(BINS, -1).sum(axis=1).tolist(),
    }


def share(count: int, of: int) -> float:
    """A share in [0, 1], of nothing 0."""
    return round(count / max(of, 1), DIGITS)


def changed(before: Any, after: Any) -> int:
    """Values that differ between two arrays of one shape."""
    return int(np.count_nonzero(np.asarray(before) != np.asarray(after)))


def total_size(votes: Any) -> int:
    """The sum of |Z| of int32 votes; that of -2^31 wraps to itself, which is 2^31 unsigned."""
    sizes = (np.abs(part).view(np.uint32) for part in parts(votes))
    return sum(int(size.sum(dtype=np.uint64)) for size in sizes)
