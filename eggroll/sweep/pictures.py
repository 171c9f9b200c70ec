"""Pictures of a sweep: its history, which options mattered, and how they go together.

They show complete trials and, faintly, pruned ones at the last validation they reached.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from eggroll import plot
from eggroll.plot import REFERENCE, TRAIN, VALID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABSENT = -0.12  # height in the parallel picture of an option that a trial did not have


class Point(NamedTuple):
    """A trial and its validation in `unit`: the last one if it was pruned."""

    trial: FrozenTrial
    value: float
    complete: bool


class Scale(NamedTuple):
    """Where the values of an option lie: 0 to 1 from `low` to `high`; `marks` name some."""

    name: str
    log: bool
    choices: tuple[Any, ...]
    low: float
    high: float
    whole: bool = False

    def __call__(self, value: Any) -> float:
        x = self.choices.index(value) if self.choices else self._bent(value)
        return (x - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def _bent(self, value: float) -> float:
        return math.log(value) if self.log else float(value)

    def marks(self) -> list[tuple[float, str]]:
        """Heights and words: every choice, or both ends and what lies between."""
        if self.choices:
            return [(self(choice), str(choice)) for choice in self.choices]
        ends = [self.low + (self.high - self.low) * part for part in (0, 0.5, 1)]
        values = [math.exp(end) if self.log else end for end in ends]
        if self.whole:
            return [(self(v), f"{v:,}") for v in sorted({round(v) for v in values})]
        return [(self(v), f"{v:.3g}") for v in values]


def draw(study: optuna.Study, folder: Path, unit: str) -> list[Path]:
    """Draws history, slice, parallel and importance.png; returns what could be drawn.

    Raises:
        InputError: a picture cannot be written.
    """
    points = _points(study)
    scales = _scales(points)
    drawn = []
    with plot.style():
        for name, picture in PICTURES.items():
            figure = picture(study, points, scales, unit)
            if figure is not None:
                drawn.append(plot.save(figure, folder / f"{name}.png"))
    return drawn


def _points(study: optuna.Study) -> list[Point]:
    found = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            found.append(Point(trial, trial.value, True))
        elif trial.state == TrialState.PRUNED and trial.last_step is not None:
            found.append(Point(trial, trial.intermediate_values[trial.last_step], False))
    return found


def _scales(points: Sequence[Point]) -> list[Scale]:
    """One scale for every option that was tried, over the range it was tried in."""
    known = {name: d for point in points for name, d in point.trial.distributions.items()}
    scales = []
    for name, distribution in known.items():
        if isinstance(distribution, CategoricalDistribution):
            choices = tuple(distribution.choices)
            scales.append(Scale(name, False, choices, 0, len(choices) - 1))
        else:
            low, high, log = (getattr(distribution, what) for what in ("low", "high", "log"))
            ends = (math.log(low), math.log(high)) if log else (low, high)
            whole = isinstance(distribution, IntDistribution)
            scales.append(Scale(name, log, (), ends[0], ends[1], whole))
    return scales


def _scatter(axes: Axes, points: Sequence[Point], best: Point, x: Callable[[Point], float]) -> None:
    """Trials as dots, pruned ones as crosses, the best one as a star."""
    done = [p for p in points if p.complete]
    cut = [p for p in points if not p.complete]
    axes.scatter([x(p) for p in cut], [p.value for p in cut], c=REFERENCE, s=18, lw=0.8,
                 alpha=0.5, marker="x", label="pruned, last validation")  # fmt: skip
    axes.scatter([x(p) for p in done], [p.value for p in done], c=TRAIN, s=22, label="complete")
    if best in points:
        axes.scatter([x(best)], [best.value], c=VALID, s=90, marker="*", zorder=3,
                     label=f"best: {best.value:.3f} (trial {best.trial.number})")  # fmt: skip


def _best(points: Sequence[Point]) -> Point:
    return min((p for p in points if p.complete), key=lambda p: (p.value, p.trial.number))


def _bent(points: Sequence[Point]) -> bool:
    """Whether one hopeless trial would flatten all others, so that logarithms show more."""
    values = [p.value for p in points]
    return min(values) > 0 and max(values) > 10 * min(values)


def _bend(axes: Axes, points: Sequence[Point]) -> None:
    if _bent(points):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")


def _history(
    study: optuna.Study, points: Sequence[Point], scales: Sequence[Scale], unit: str
) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = plot.new_figure(8, 4.5)
    axes = figure.subplots()
    _scatter(axes, points, _best(points), lambda p: p.trial.number)
    _bend(axes, points)
    done = [p for p in points if p.complete]
    best = np.minimum.accumulate([p.value for p in done])
    axes.step([p.trial.number for p in done], best, where="post", color=VALID, lw=1.2, zorder=1)
    axes.set(xlabel="trial", ylabel=f"validation, {unit}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finished(figure, axes, study, "history")


def _slice(
    study: optuna.Study, points: Sequence[Point], scales: Sequence[Scale], unit: str
) -> Figure:
    rows = -(-len(scales) // 4)
    columns = -(-len(scales) // rows)
    figure = plot.new_figure(max(2.6 * columns, 5), 3.4 * rows + 0.6)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(scales) :]:
        axes.remove()
    for scale, axes in zip(scales, grid.flat, strict=False):
        here = [p for p in points if scale.name in p.trial.params]
        _scatter(axes, here, _best(points), partial(_place, scale))
        axes.set(xlabel=scale.name, xlim=(-0.08, 1.08))
        places, words = zip(*scale.marks(), strict=True)
        axes.set_xticks(places, words)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"validation, {unit}")
    _bend(grid[0, 0], points)
    return _finished(figure, grid[0, 0], study, "every option by itself", outside=True)


def _place(scale: Scale, point: Point) -> float:
    return scale(point.trial.params[scale.name])


def _parallel(
    study: optuna.Study, points: Sequence[Point], scales: Sequence[Scale], unit: str
) -> Figure:
    from matplotlib import colormaps

    figure = plot.new_figure(max(1.5 * len(scales) + 2, 6), 4.5)
    axes = figure.subplots()
    # The worst is drawn first, so that the best lies on top.
    done = sorted((p for p in points if p.complete), key=lambda p: -p.value)
    low, high = done[-1].value, done[0].value
    bits = Scale(unit, False, (), low, high)
    if _bent(done):
        bits = Scale(unit, True, (), math.log(low), math.log(high))
    for rank, point in enumerate(done, 1):
        share = rank / len(done)
        heights = [bits(point.value)]
        for scale in scales:
            held = point.trial.params.get(scale.name)
            heights.append(ABSENT if held is None else scale(held))
        last = rank == len(done)
        colour = VALID if last else colormaps["Blues"](0.25 + 0.7 * share)
        axes.plot(heights, color=colour, lw=2 if last else 1.1, alpha=0.9)
    for x, scale in enumerate([bits, *scales]):
        axes.axvline(x, color=REFERENCE, lw=0.8, zorder=0)
        for height, word in scale.marks():
            axes.annotate(word, (x, height), xytext=(4, 1), textcoords="offset points", fontsize=8,
                          bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 0.5})  # fmt: skip
    axes.set_xticks(range(len(scales) + 1), [unit, *(scale.name for scale in scales)])
    missing = any(s.name not in p.trial.params for s in scales for p in done)
    axes.set_yticks([ABSENT] if missing else [], ["not used"] if missing else [])
    axes.set_xlim(-0.2, len(scales) + 0.5)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.plot([], [], color=VALID, lw=2, label=f"best: trial {done[-1].trial.number}")
    return _finished(figure, axes, study, "complete trials, darker is better", outside=True)


def _importance(
    study: optuna.Study, points: Sequence[Point], scales: Sequence[Scale], unit: str
) -> Figure | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the evaluator is called experimental
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (RuntimeError, ValueError):  # all values are equal, or none was varied
        return None
    figure = plot.new_figure(6, 0.45 * len(shares) + 1.4)
    axes = figure.subplots()
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=TRAIN, height=0.6)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set(xlim=(0, 1.1 * max(*shares.values(), 0.01)), xlabel="share (PED-ANOVA)")
    axes.grid(visible=False, axis="y")
    return _finished(figure, None, study, "importance among complete trials")


def _finished(
    figure: Figure, axes: Axes | None, study: optuna.Study, what: str, outside: bool = False
) -> Figure:
    name = plot.printable(study.study_name)
    figure.suptitle(f"{name}: {what}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    if axes and outside:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    elif axes:
        axes.legend(loc="best")
    return figure


Picture = Callable[[optuna.Study, Sequence[Point], Sequence[Scale], str], "Figure | None"]
PICTURES: dict[str, Picture] = {
    "history": _history,
    "importance": _importance,
    "parallel": _parallel,
    "slice": _slice,
}
