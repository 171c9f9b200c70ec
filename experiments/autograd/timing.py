"""Times of several cases, taken in turn in one process: medians, ranges, ratios round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from time import perf_counter, process_time
from typing import NamedTuple

Case = Callable[[], dict[str, float]]  # one step: seconds by part
Clock = Callable[[], float]
Times = dict[str, dict[str, list[float]]]  # case -> part -> a median per round


# cpu leaves out the time that other processes had the core: for one thread on a shared machine.
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}


class Figure(NamedTuple):
    """Median and range over the rounds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Figure:
        found = list(values)
        return Figure(statistics.median(found), min(found), max(found))

    def times(self, factor: float) -> Figure:
        return Figure(*(factor * value for value in self))

    def text(self, digits: int = 3) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def timed(part: str, call: Callable[[], object], clock: Clock) -> Case:
    """A case of one part."""

    def run() -> dict[str, float]:
        began = clock()
        call()
        return {part: clock() - began}

    return run


def interleave(cases: dict[str, Case], rounds: int, steps: int) -> Times:
    """Every round runs each case: a step that warms it up, then some whose median counts."""
    times: Times = {name: {} for name in cases}
    order = list(cases)
    for _ in range(rounds):
        for name in order:
            cases[name]()
            found = [cases[name]() for _ in range(steps)]
            for part in found[0]:
                value = statistics.median(one[part] for one in found)
                times[name].setdefault(part, []).append(value)
        order.append(order.pop(0))  # no case always follows the same one
    return times


def ratio(times: Times, over: str, under: str, part: str, of: str | None = None) -> Figure:
    """Seconds of one case ÷ those of another in the same round; `of`: the other's part."""
    pairs = zip(times[over][part], times[under][of or part], strict=True)
    return Figure.of(a / b for a, b in pairs)
