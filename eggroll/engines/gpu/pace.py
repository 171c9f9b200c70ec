"""Work in portions that the GPU of a display lets run to their end.

macOS ends a command buffer after about 5 s, and earlier one that keeps the display waiting; Windows
and desktop Linux have such limits, too. So a portion is computed before the next one is launched,
and its size follows the time that portions take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

import mlx.core as mx

FIRST = 1 << 36  # multiply-adds of a portion before one was timed
LEAST, MOST = 1 << 30, 1 << 42  # of any portion
SECONDS = 0.25  # that a portion takes at most, about


class Pace:
    """macs: multiply-adds of a portion, and so of a launch, at most; waits: whether for portions,
    as a GPU needs it.
    """

    def __init__(self, waits: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.macs, self.waits, self._clock = FIRST, waits, clock
        self._pending, self._began, self._fresh = 0, 0.0, False
        self._known: set[object] = set()

    def begin(self, kernel: object) -> None:
        """Tells that a kernel will be launched, the first time with its compilation."""
        if not self.waits:
            return
        if not self._pending:
            self._began = self._clock()
        self._fresh |= kernel not in self._known
        self._known.add(kernel)

    def launched(self, arrays: Iterable[mx.array], macs: int) -> None:
        """Waits for the arrays if what was launched since the last time is a portion."""
        if not self.waits:
            return
        self._pending += macs
        if 2 * self._pending < self.macs:
            return
        mx.eval(list(arrays))
        seconds = self._clock() - self._began
        if seconds < SECONDS / 2:
            self.macs = min(2 * self.macs, MOST)
        elif seconds > SECONDS and not self._fresh:
            self.macs = max(self.macs // 2, LEAST)
        self._pending, self._fresh = 0, False


def whole_portions() -> None:
    """Lets MLX put a portion into one command buffer of Metal.

    Else it ends a buffer within a portion whose failure nobody waits for, so that wrong results
    would pass for right ones. MLX reads this when it opens the GPU: for
    the first array that there is, or to tell the GPU's name.
    """
    os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "1000000")
    os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", "1000000")
