"""Validations and checkpoints planned by time, and the seconds of a run's parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from eggroll.files import Row

BY_TIME: Final = -1  # of an option `..._every`
# Points of a validation curve for every e-fold of a run's time: sparse at first, even on a
# logarithmic axis, and none that a picture could not tell from the one before.
DENSITY: Final = 40


@dataclass
class Repeated:
    """A task that a run repeats as its time allows.

    share: of the run's seconds, at most; gap: least seconds from one to the next. Room for the last
    one, at the end of the run, is kept free.
    """

    share: float
    gap: float
    seconds: float = field(default=0.0, init=False)  # spent on it
    last: float = field(default=0.0, init=False)  # when it began last, in seconds of the run
    cost: float | None = field(default=None, init=False)  # seconds of the last one

    def fits(self, elapsed: float, guess: float = 0.0) -> bool:
        """True if it may be done after so many seconds; guess: its cost, until it is known."""
        cost = guess if self.cost is None else self.cost
        distance = max(self.gap, elapsed / DENSITY)
        return elapsed >= self.last + distance and (self.seconds + 2 * cost <= self.share * elapsed)


class RunClock:
    """The clock of a run, which plans its validations and checkpoints: 4 % of its time together.

    Nothing that is computed depends on it. before: seconds of the run's earlier parts.
    """

    def __init__(self, before: float = 0.0) -> None:
        self._start, self._before = time.perf_counter(), before
        self.updates = 0.0
        self.validations = Repeated(share=0.03, gap=0.0)
        self.checkpoints = Repeated(share=0.01, gap=5.0)

    @property
    def elapsed(self) -> float:
        """Seconds of this part of the run so far."""
        return max(time.perf_counter() - self._start, 0.0)

    @property
    def total(self) -> float:
        """Seconds of the whole run so far, to be written down."""
        return round(self._before + self.elapsed, 6)

    @contextmanager
    def spent_on(self, task: Repeated) -> Iterator[None]:
        """Counts what is done within as the task's."""
        task.last = self.elapsed
        try:
            yield
        finally:
            task.cost = self.elapsed - task.last
            task.seconds += task.cost

    def validation_fits(self, row: Row, tokens: int) -> bool:
        """True if there is time to validate after an update; tokens: that it would read at most."""
        speed = row.get("tokens_per_second", 0.0)
        return self.validations.fits(self.elapsed, tokens / speed if speed > 0 else 0.0)

    def checkpoint_fits(self) -> bool:
        """True if there is time to save."""
        return self.checkpoints.fits(self.elapsed)

    def words(self, end: float) -> str:
        """The sentence of where the seconds went; end: those of samples and curves."""
        parts = {
            "updates": self.updates,
            "validation": self.validations.seconds,
            "checkpoints": self.checkpoints.seconds,
            "samples and curves": end,
        }
        elapsed = self.elapsed
        parts["logs and screen"] = max(elapsed - sum(parts.values()), 0.0)
        shares = (f"{100 * s / elapsed:.1f} % {name}" for name, s in parts.items() if elapsed > 0)
        return f"time: {elapsed:.1f} s of this command's run: {', '.join(shares)}"
