"""A run's figures as the page's script takes them: numbers in JSON, thinned where there are many.

A thinned curve keeps the least and the greatest value of every bucket of updates, so that spikes
stay visible. `detail`, from 0 to 1, scales how much is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.curves import LanguageCurves, RunCurves, TrainerCurves, Values, smooth
from eggroll.report.record import Record
from eggroll.report.statistics import VOTES, Part, Point

POINTS, PART_POINTS, SNAPSHOTS = 1600, 160, 48  # of a curve; of a leaf's; histograms in time
LEAST: Final = 16  # points of any curve
# Surrogates stand for stray bytes; control characters, and those that turn text around, hide it.
UNSEEN: Final = re.compile("[\ud800-\udfff\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NAME: Final = 200  # characters of a name
Json = dict[str, Any]


class Chart(NamedTuple):
    """A figure that is drawn over time.

    share: it is a share of 1, shown in percent; zero: its axis begins at 0; reference: name and
    value of a line; help: a sentence below the title.
    """

    key: str
    title: str
    unit: str = ""
    share: bool = False
    zero: bool = False
    reference: tuple[str, float] | None = None
    help: str = ""


NOISE = ("pure chance", 1.0)
CHARTS: Final = (
    Chart("valid", "Validation", help="Exact cross-entropy of the unperturbed network."),
    Chart("per_token", "Validation per token", "bits per token"),
    Chart("fitness", "Fitness, mean of the members", "value told"),
    Chart("fitness_best", "Fitness of the best member", "value told"),
    Chart("loss", "Training loss", help="Of members: their integer score, which is their fitness."),
    Chart("update_rate", "Weights that moved", "% per update", share=True, zero=True),
    Chart(
        "nonzero_ratio", "Pairs whose members differ in value", "% of pairs", share=True, zero=True,
        help="Below 1 % hardly anything is learnt.",
    ),
    Chart("tied", "Pairs that tie", "% of pairs", share=True, zero=True),
    Chart(
        VOTES, "Votes over their noise", "ratio", reference=NOISE,
        help="Mean |Z| over what chance alone gives, mean of the leaves.",
    ),
    Chart("threshold", "Threshold of the votes", "sum of votes", zero=True),
    Chart(
        "rate", "Alpha or learning rate", "of the rule", zero=True,
        help="Of rule sign, alpha of its z-test; of the others, their learning rate.",
    ),
    Chart("speed", "Throughput", "per s", zero=True),
)  # fmt: skip
PARTS: Final[Mapping[str, Sequence[Chart]]] = {
    "leaves": (
        Chart("update_rate", "Weights that moved", "% per update", share=True, zero=True),
        Chart(VOTES, "Votes over their noise", "ratio", reference=NOISE),
        Chart("saturated", "Weights at ±127", "% of weights", share=True, zero=True),
    ),
    "activations": (
        Chart("saturated", "Values at ±127", "% of values", share=True, zero=True),
        Chart("dead", "Units that never change", "% of units", share=True, zero=True),
    ),
}


def figures_of(record: Record, detail: float) -> Json:
    """All figures of a run.

    time: update -> tokens or rows and seconds, at nodes to interpolate between; curves: key -> x
    and y, and `raw` where y is smoothed; leaves, activations: name -> figures and histograms;
    snapshots: the updates of the histograms.
    """
    curves, statistics = record.curves, record.statistics
    most = max(int(POINTS * detail), LEAST)
    parts = max(int(PART_POINTS * detail), LEAST)
    groups = {"leaves": statistics.leaves, "activations": statistics.activations}
    steps = snapshots((part for g in groups.values() for part in g.values()), detail)
    figures: Json = {
        "name": seen(record.name)[:NAME],
        "made_by": record.made_by,
        "counted": curves.counted,
        "speed_unit": f"{curves.over} per s",
        "unit": curves.unit_of(curves.metrics[0]),
        "time": _time(curves, most),
        "curves": _curves(record, most),
        "snapshots": steps,
    }
    for group, known in groups.items():
        figures[group] = {
            seen(name)[:NAME]: _part(part, steps, parts) for name, part in known.items()
        }
    return figures


def seen(value: object) -> str:
    """Text without what a page cannot show."""
    return UNSEEN.sub("\ufffd", str(value))


def _curves(record: Record, most: int) -> Json:
    run = record.curves
    found: Json = {"update_rate": curve(run.steps, run.rate, most, smoothed=True)}
    found["speed"] = curve(run.steps, run.speed, most, smoothed=True)
    if isinstance(run, LanguageCurves):
        found["loss"] = curve(run.steps, run.loss, most, smoothed=True)
        found["valid"] = curve(run.valid_steps, run.valid, most)
        found["per_token"] = curve(record.per_token[0], record.per_token[1], most)
    if isinstance(run, TrainerCurves):
        found["fitness"] = curve(run.steps, run.fitness, most, smoothed=True)
        found["fitness_best"] = curve(run.steps, run.best, most, smoothed=True)
        found["nonzero_ratio"] = curve(run.steps, run.differing, most, smoothed=True)
    found |= {name: of_points(points, most) for name, points in record.statistics.run.items()}
    return {name: one for name, one in found.items() if one["x"]}


def _part(part: Part, steps: Sequence[int], most: int) -> Json:
    rows = [part.histograms.get(step) for step in steps]
    figures = {name: of_points(points, most) for name, points in part.figures.items()}
    if all(row is None for row in rows):
        return {"figures": figures}
    histograms = [None if row is None else numbers(100 * row, 3) for row in rows]
    return {"figures": figures, "histograms": histograms}


def snapshots(parts: Iterable[Part], detail: float) -> list[int]:
    """The updates whose histograms are shown, evenly chosen, the first and the last included."""
    steps = sorted({step for part in parts for step in part.histograms})
    most = max(int(SNAPSHOTS * detail), 2)
    if len(steps) <= most:
        return steps
    return [steps[round(i)] for i in np.linspace(0, len(steps) - 1, most)]


def _time(run: RunCurves, most: int) -> Json:
    """Nodes of the way from updates to tokens or rows, and to seconds."""
    index = np.unique(np.linspace(0, len(run.steps) - 1, min(most, len(run.steps))).astype(int))
    steps = np.concatenate([[0.0], run.steps[index]])
    counted = getattr(run, run.over)(steps)
    return {
        "step": numbers(steps, 15),
        "counted": numbers(counted, 9),
        "seconds": numbers(run.elapsed(steps), 6),
    }


def of_points(points: Sequence[Point], most: int) -> Json:
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    return curve(x, y, most)


def curve(x: Values, y: Values, most: int, *, smoothed: bool = False) -> Json:
    """A curve in at most so many points; x: [n] updates in order, y: [n]."""
    kept = thinned(y, most)
    found = {"x": numbers(x[kept], 15), "y": numbers((smooth(y) if smoothed else y)[kept])}
    return found | {"raw": numbers(y[kept])} if smoothed else found


def thinned(values: Values, most: int) -> NDArray[np.int64]:
    """Indices in order: those of the least and the greatest value of each bucket, and both ends.

    values: [n]; returns at most `most` indices, all n where they are no more.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max((most - 2) // 2, 1) + 1).astype(int)
    kept = {0, count - 1}
    for low, high in pairwise(edges.tolist()):
        part = values[low:high]
        kept |= {low + int(part.argmin()), low + int(part.argmax())}
    return np.array(sorted(kept))


def numbers(values: Iterable[float], digits: int = 5) -> list[float | int | None]:
    """Numbers of so many digits, short as JSON; None for what is not finite."""
    return [_short(float(value), digits) for value in values]


def _short(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1 << 53 else rounded
