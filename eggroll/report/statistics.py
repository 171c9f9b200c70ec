"""What a run recorded of its weights, activations and votes: statistics.jsonl.

A line is a JSON object with `step` and any of the keys that `Statistics` keeps, or a warning. What
is not as it should be counts as not recorded: a report shows what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from eggroll.runlog import STATISTICS, read_lines
from eggroll.statistics.counts import BINS

OF_RUN: Final = ("tied", "threshold", "rate")
VOTES: Final = "vote_over_noise"
OF_LEAF: Final = ("update_rate", VOTES, "saturated")
OF_ACTIVATION: Final = ("saturated", "dead")
MOST_NAMES: Final = 400  # leaves, or activations, of one run
MOST_WARNINGS: Final = 100
LARGEST: Final = 1e300  # of a figure


class Point(NamedTuple):
    """A figure at an update."""

    step: int
    value: float


@dataclass
class Part:
    """A leaf's or an activation's record.

    figures: name -> points; histograms: step -> float64 [BINS], shares of all values.
    """

    figures: dict[str, list[Point]] = field(default_factory=dict)
    histograms: dict[int, NDArray[np.float64]] = field(default_factory=dict)


@dataclass
class Statistics:
    """A run's statistics, by update; empty where nothing was recorded.

    run: name of OF_RUN, or VOTES (the mean over the leaves) -> points; warnings: (update,
    sentence); left_out: names beyond MOST_NAMES and warnings beyond MOST_WARNINGS.
    """

    run: dict[str, list[Point]] = field(default_factory=dict)
    leaves: dict[str, Part] = field(default_factory=dict)
    activations: dict[str, Part] = field(default_factory=dict)
    warnings: list[tuple[int, str]] = field(default_factory=list)
    left_out: int = 0

    @property
    def recorded(self) -> bool:
        """True if there is more than warnings."""
        return bool(self.run or self.leaves or self.activations)


def read_statistics(folder: Path) -> Statistics:
    """The statistics in a run's folder; empty if there is no file.

    Raises:
        InputError: the file is there and cannot be read.
    """
    found, last = Statistics(), 0
    for _, row in read_lines(folder / STATISTICS):
        step = row["step"]
        if not 0 <= step < 1 << 53:
            continue
        if "warning" in row:
            _add_warning(found, step, row["warning"])
        elif step > last:
            last = step
            _add_row(found, step, row)
    return found


def _add_warning(found: Statistics, step: int, sentence: object) -> None:
    if not isinstance(sentence, str):
        return
    if len(found.warnings) < MOST_WARNINGS:
        found.warnings.append((step, sentence))
    else:
        found.left_out += 1


def _add_row(found: Statistics, step: int, row: Mapping[str, Any]) -> None:
    _add_points(found.run, step, row, OF_RUN)
    ratios = []
    for part, facts in _parts(found, found.leaves, row.get("leaves")):
        _add_points(part.figures, step, facts, OF_LEAF)
        _add_histogram(part, step, facts.get("weights"))
        ratios += [p.value for p in part.figures.get(VOTES, [])[-1:] if p.step == step]
    if ratios:
        _add_points(found.run, step, {VOTES: float(np.mean(ratios))}, (VOTES,))
    for part, facts in _parts(found, found.activations, row.get("activations")):
        _add_points(part.figures, step, facts, OF_ACTIVATION)
        _add_histogram(part, step, facts.get("values"))


def _parts(
    found: Statistics, known: dict[str, Part], row: object
) -> Iterator[tuple[Part, Mapping[str, Any]]]:
    if not isinstance(row, dict):
        return
    for name, facts in row.items():
        if not isinstance(facts, dict):
            continue
        if name not in known and len(known) >= MOST_NAMES:
            found.left_out += 1
            continue
        yield known.setdefault(name, Part()), facts


def _add_points(
    known: dict[str, list[Point]], step: int, row: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    for name in names:
        value = row.get(name)
        if is_number(value):  # neither NaN nor infinite
            known.setdefault(name, []).append(Point(step, float(value)))


def _add_histogram(part: Part, step: int, counts: object) -> None:
    if not isinstance(counts, list) or len(counts) != BINS:
        return
    if all(is_number(count) and count >= 0 for count in counts):
        values = np.array(counts, np.float64)
        if total := values.sum():
            part.histograms[step] = values / total


def is_number(value: object) -> TypeGuard[int | float]:
    """True of a number that is finite, and so small that sums of it are."""
    return type(value) in (int, float) and abs(cast(float, value)) <= LARGEST
