"""Pictures of a sweep: its history, which options mattered, and how they go together.

They show complete trials and, faintly, pruned ones at the last validation they reached. Values are
those of the search's seed; the best trial may be another than the lowest once other seeds had their
say, and its label has their mean.
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
from eggroll.sweep.study import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABSENT = -0.12  # height in the parallel picture of an option that a trial did not have


class Point(NamedTuple):
    """A trial and its validation in `unit`: the last one if it was pruned."""

    trial: FrozenTrial
    value: float
    complete: bool


class Drawing(NamedTuple):
    """The data of the pictures."""

    study: optuna.Study
    points: list[Point]
    scales: list[Scale]
    unit: str
    best: Point
    label: str  # of the best one

    @property
    def complete(self) -> list[Point]:
        return [p for p in self.points if p.complete]


class Scale(NamedTuple):
    """An option's values on an axis: 0 to 1 from `low` to `high`; `marks` name some."""

    name: str
    log: bool
    choices: tuple[Any, ...]
    low: float
    high: float
    whole: bool = False

    def __call__(self, value: Any) -> float:
        x = self.choices.index(value) if self.choices else self._mapped(value)
        return (x - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def _mapped(self, value: float) -> float:
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


def draw(results: Results, folder: Path, unit: str) -> list[Path]:
    """Draws history, slice, parallel and importance.png; returns what could be drawn.

    Raises:
        InputError: a picture cannot be written.
    """
    drawing = _drawing(results, unit)
    drawn = []
    with plot.style():
        for name, picture in PICTURES.items():
            figure = picture(drawing)
            if figure is not None:
                drawn.append(plot.save(figure, folder / f"{name}.png"))
    return drawn


def _drawing(results: Results, unit: str) -> Drawing:
    points, best = _points(results.study), results.ranking()[0]
    label = f"best: trial {best.trial.number}, {best.trial.value:.4f}"
    if results.confirmed():
        label += f" ({best.mean:.4f} as the mean over {results.seeds} other seeds)"
    star = next(p for p in points if p.trial.number == best.trial.number)
    return Drawing(results.study, points, _scales(points), unit, star, label)


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


def _scatter(
    axes: Axes, drawing: Drawing, points: Sequence[Point], x: Callable[[Point], float]
) -> None:
    """Trials as dots, pruned ones as crosses, the best one as a star."""
    done = [p for p in points if p.complete]
    cut = [p for p in points if not p.complete]
    axes.scatter([x(p) for p in cut], [p.value for p in cut], c=REFERENCE, s=18, lw=0.8,
                 alpha=0.5, marker="x", label="pruned, last validation")  # fmt: skip
    axes.scatter([x(p) for p in done], [p.value for p in done], c=TRAIN, s=22, label="complete")
    if drawing.best in points:
        axes.scatter([x(drawing.best)], [drawing.best.value], c=VALID, s=90, marker="*", zorder=3,
                     label=drawing.label)  # fmt: skip


def _wide(points: Sequence[Point]) -> bool:
    """True if values span a factor of ten, so that only a logarithmic axis shows them all."""
    values = [p.value for p in points]
    return min(values) > 0 and max(values) > 10 * min(values)


def _scale_axis(axes: Axes, points: Sequence[Point]) -> None:
    if _wide(points):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")


def _history(drawing: Drawing) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = plot.new_figure(8, 4.5)
    axes = figure.subplots()
    done = drawing.complete
    lowest = np.minimum.accumulate([p.value for p in done])
    axes.step([p.trial.number for p in done], lowest, where="post", color=TRAIN, lw=1.0, alpha=0.6,
              zorder=1, label="lowest so far")  # fmt: skip
    _scatter(axes, drawing, drawing.points, lambda p: p.trial.number)
    _scale_axis(axes, drawing.points)
    axes.set(xlabel="trial", ylabel=f"validation, {drawing.unit}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finished(figure, axes, drawing, "validation by trial")


def _slice(drawing: Drawing) -> Figure:
    rows = -(-len(drawing.scales) // 4)
    columns = -(-len(drawing.scales) // rows)
    figure = plot.new_figure(max(2.6 * columns, 5), 3.4 * rows + 0.6)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(drawing.scales) :]:
        axes.remove()
    for scale, axes in zip(drawing.scales, grid.flat, strict=False):
        here = [p for p in drawing.points if scale.name in p.trial.params]
        _scatter(axes, drawing, here, partial(_across, scale))
        axes.set(xlabel=scale.name, xlim=(-0.08, 1.08))
        places, words = zip(*scale.marks(), strict=True)
        axes.set_xticks(places, words)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"validation, {drawing.unit}")
    _scale_axis(grid[0, 0], drawing.points)
    return _finished(figure, grid[0, 0], drawing, "validation by option")


def _across(scale: Scale, point: Point) -> float:
    return scale(point.trial.params[scale.name])


def _parallel(drawing: Drawing) -> Figure:
    from matplotlib import colormaps

    scales, unit = drawing.scales, drawing.unit
    figure = plot.new_figure(max(1.5 * len(scales) + 2, 6), 4.5)
    axes = figure.subplots()
    # The highest is drawn first, and the best one last, on top.
    done = sorted(drawing.complete, key=lambda p: (p == drawing.best, -p.value))
    low, high = min(p.value for p in done), max(p.value for p in done)
    bits = Scale(unit, False, (), low, high)
    if _wide(done):
        bits = Scale(unit, True, (), math.log(low), math.log(high))
    for rank, point in enumerate(done, 1):
        share = rank / len(done)
        heights = [bits(point.value)]
        for scale in scales:
            held = point.trial.params.get(scale.name)
            heights.append(ABSENT if held is None else scale(held))
        best = point == drawing.best
        colour = VALID if best else colormaps["Blues"](0.25 + 0.7 * share)
        axes.plot(heights, color=colour, lw=2 if best else 1.1, alpha=0.9)
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
    axes.plot([], [], color=VALID, lw=2, label=drawing.label)
    return _finished(figure, axes, drawing, "complete trials, darker is lower")


def _importance(drawing: Drawing) -> Figure | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the evaluator is called experimental
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(drawing.study, evaluator=evaluator)
    except (RuntimeError, ValueError):  # all values are equal, or none was varied
        return None
    figure = plot.new_figure(6, 0.45 * len(shares) + 1.4)
    axes = figure.subplots()
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=TRAIN, height=0.6)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set(
        xlim=(0, 1.1 * max(*shares.values(), 0.01)), xlabel="share of the importance (PED-ANOVA)"
    )
    axes.grid(visible=False, axis="y")
    return _finished(
        figure, None, drawing, "options that tell the best complete trials from the others"
    )


def _finished(figure: Figure, axes: Axes | None, drawing: Drawing, what: str) -> Figure:
    """Adds the title and, below the picture, a legend with the labels of `axes`."""
    name = plot.printable(drawing.study.study_name)
    figure.suptitle(f"{name}: {what}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    if axes:
        columns = 2 if figure.get_figwidth() >= 7.5 else 1  # so that the label of the best fits
        drawn = axes.get_legend_handles_labels()
        figure.legend(*drawn, loc="outside lower center", ncols=columns)
    return figure


PICTURES: dict[str, Callable[[Drawing], Figure | None]] = {
    "history": _history,
    "importance": _importance,
    "parallel": _parallel,
    "slice": _slice,
}
