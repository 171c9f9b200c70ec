"""Running normalisation of observations, in integers: the same bits on every machine.

Letters: n observations of k values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.spec.fixed_point import LIMIT

FINE = 16  # fraction bits of a value
BOUND = 1 << 26  # of a value in these units: beyond 1024 it is clipped
HALF = 26  # bits of a square that are summed apart, so that sums stay below 2^63
DEVIATION = 32  # what a value becomes that is one deviation above the mean
LEAST = 1 << 6  # deviation of a value that hardly changes
MOST = 1 << 36  # observations that are counted; later ones change nothing


class Normalisation:
    """Mean and deviation of what has been observed so far; a row is int8, 32 for one deviation.

    They change by `settle` alone, so all members of an update read by the same ones. Before the
    first one the mean is 0 and the deviation 1.0. count: observations so far; mean, deviation:
    int64 [k], 65,536 for 1.0.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._forget()

    def _forget(self) -> None:
        self.count, self._sums, self._squares = 0, [0] * self.size, [0] * self.size
        self.mean = np.zeros(self.size, np.int64)
        self.deviation = np.full(self.size, 1 << FINE, np.int64)

    def rows(self, seen: NDArray[np.float64]) -> NDArray[np.int8]:
        """Observations [n, k] as int8 rows [n, k], rounded, by the mean and deviation so far."""
        apart = _fixed(seen) - self.mean
        rounded = (2 * DEVIATION * apart + self.deviation) // (2 * self.deviation)
        found: NDArray[np.int8] = np.clip(rounded, -LIMIT, LIMIT).astype(np.int8)
        return found

    def add(self, seen: NDArray[np.float64]) -> None:
        """Counts observations [n, k]."""
        if not len(seen) or self.count + len(seen) > MOST:
            return
        values = _fixed(seen)
        squares = values * values
        high = (squares >> HALF).sum(axis=0).tolist()
        low = (squares & ((1 << HALF) - 1)).sum(axis=0).tolist()
        self.count += len(seen)
        for i, added in enumerate(values.sum(axis=0).tolist()):
            self._sums[i] += added
            self._squares[i] += (high[i] << HALF) + low[i]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Settles what a block has counted, or forgets it where the block raises."""
        before = self.arrays()
        try:
            yield
        except BaseException:
            self.restore(before)
            raise
        self.settle()

    def settle(self) -> None:
        """Makes what was counted the mean and the deviation of the rows from now on."""
        n = self.count
        if not n:
            return
        pairs = list(zip(self._sums, self._squares, strict=True))
        self.mean = np.array([(2 * s + n) // (2 * n) for s, _ in pairs], np.int64)
        deviations = [isqrt((n * square - s * s) // (n * n)) for s, square in pairs]
        self.deviation = np.maximum(np.array(deviations, np.int64), LEAST)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """All of it, for a checkpoint."""
        high, low = zip(*(divmod(square, 1 << 32) for square in self._squares), strict=True)
        return {
            "count": np.array([self.count], np.int64),
            "sums": np.array(self._sums, np.int64),
            "squares": np.array([high, low], np.int64),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes what `arrays` gave.

        Raises:
            InputError: they are of other observations, or cannot be.
        """
        shapes = {"count": (1,), "sums": (self.size,), "squares": (2, self.size)}
        for name, shape in shapes.items():
            array = arrays.get(name)
            if array is None or array.shape != shape or array.dtype != np.int64:
                has = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
                raise InputError(
                    f"the normalisation has {has} as {name!r} where int64 {list(shape)} is needed: "
                    "it is of another environment."
                )
        self._forget()
        self.count, self._sums = int(arrays["count"][0]), arrays["sums"].tolist()
        high, low = arrays["squares"].tolist()
        self._squares = [(h << 32) + lo for h, lo in zip(high, low, strict=True)]
        sound = all(
            self.count * square >= s * s and square <= self.count * BOUND * BOUND
            for s, square in zip(self._sums, self._squares, strict=True)
        )
        if not 0 <= self.count <= MOST or not sound:
            self._forget()
            raise InputError("the normalisation has sums that no observations have: begin anew.")
        self.settle()


def _fixed(seen: NDArray[np.float64]) -> NDArray[np.int64]:
    """Real numbers [n, k] in 65,536ths, int64; an InputError for NaN."""
    if np.isnan(seen).any():
        first = np.argwhere(np.isnan(seen))[0].tolist()
        raise InputError(f"an observation is NaN at {first}: every value must be a number.")
    units = np.clip(seen * (1 << FINE), -BOUND, BOUND)
    return np.rint(units).astype(np.int64)
