"""Arrays as callers give them, and as several calls of one update are put together.

Letters: R readers, T rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError


def array_of(name: str, given: Any) -> NDArray[Any]:
    """What was given as an array, without a copy where it is one.

    Raises:
        InputError: NumPy makes none of it, as of rows of several lengths or of bfloat16.
    """
    try:
        return np.asarray(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        told = str(error).split(". ")[0].rstrip(".")
        raise InputError(
            f"{name} is no array ({told}): give rows of one length, of a type that NumPy has."
        ) from None


def wide(array: NDArray[Any], readers: int) -> NDArray[Any]:
    """Rows [R, ..] as rows of more readers, a multiple of R: neighbours read the same."""
    return array if len(array) == readers else np.repeat(array, readers // len(array), axis=0)


def joined(parts: list[NDArray[Any]]) -> NDArray[Any] | None:
    """Rows [R, T, ..] of several calls, one after another; None where there are none."""
    return np.concatenate(parts, axis=1) if parts else None


class Store:
    """Copies of the rows of an update, in memory that the next update uses again.

    New memory for every call would cost more than the copies: the system hands it out page by page.
    """

    def __init__(self) -> None:
        self._used: list[NDArray[Any]] = []
        self._free: list[NDArray[Any]] = []

    def copy(self, given: NDArray[Any]) -> NDArray[Any]:
        """The array's values, which stay until `clear`."""
        at = len(self._used)
        kept = self._free[at] if at < len(self._free) else None
        if kept is None or kept.shape != given.shape or kept.dtype != given.dtype:
            kept = np.empty(given.shape, given.dtype)
        np.copyto(kept, given)
        self._used.append(kept)
        return kept

    def clear(self) -> None:
        """Gives the copies up; those of the last update alone are used again."""
        self._used, self._free = [], self._used
