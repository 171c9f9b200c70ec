"""The output of a sweep: progress, a table, the best options as JSON, and pictures."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from eggroll.cli.help import invocation
from eggroll.cli.screen import Screen, in_bits
from eggroll.files import write_whole
from eggroll.sweep.plan import MOST_STEPS
from eggroll.sweep.study import (
    BEST,
    FINISHED,
    REFUSED,
    SEED_OFFSET,
    SETTINGS,
    TRIAL,
    Ranked,
    Results,
    by_validation,
)
from eggroll.training import pictures
from eggroll.training.config import from_dict
from eggroll.training.pictures import REFERENCE, TRAIN, VALID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 10
REFRESH_SECONDS = 1.0  # between two readings of the study
IMPORTANCE_TRIALS = 20  # from which on the options' importance is drawn
UNEVEN = 1.1  # longest over shortest trial, from which on they do not count as equally long
NOT_USED_HEIGHT = -0.12  # height in the parallel picture of an option that a trial did not have


def write_results(
    results: Results,
    folder: Path,
    path: str,
    engine_options: Mapping[str, Any],
    *,
    draw_pictures: bool,
) -> None:
    """Writes and prints the results of the finished trials.

    path: of the JSON with all trials, or empty; engine_options: of this machine, for best.json.

    Raises:
        InputError: a file cannot be written.
    """
    ranking, study, folder = results.ranking(), results.study, relative(folder)
    if path:
        write_whole(Path(path), json.dumps(as_json(results), indent=1).encode() + b"\n")
    print_states(results)
    if not ranking:
        print("no trial has finished its budget yet: none is best; give more --trials or --budget.")
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 140).print(table(results, ranking[:ROWS]))
    if warning := uneven_seconds(results):
        print(f"warning: {warning}")
    write_whole(folder / BEST, best_options(results, ranking[0], engine_options))
    print(f"best: trial {ranking[0].trial.number}, {best_words(results)}")
    print_commands(ranking[0].trial, folder / BEST)
    if draw_pictures and len(ranking) > 1:
        print(f"pictures: {', '.join(map(str, draw(results, folder, unit(study))))}")
        if waits := importance_waits(study):
            print(waits)


def print_states(results: Results) -> None:
    """Prints how many trials are complete, pruned, under way or broken off."""
    trials = results.study.get_trials(deepcopy=False)
    counts = {
        name: sum(t.state == state for t in trials)
        for name, state in (
            ("complete", TrialState.COMPLETE),
            ("pruned", TrialState.PRUNED),
            ("under way elsewhere", TrialState.RUNNING),
        )
    }
    counts["broken off"] = sum(t.state == TrialState.FAIL and bool(t.params) for t in trials)
    counts["confirmation runs"] = len(results.confirmations())
    print("trials: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))


def uneven_seconds(results: Results) -> str:
    """A sentence if trials on a budget of seconds used clearly different ones, else empty."""
    budget = str(settings(results.study).get("budget"))
    runs = [*by_validation(results.study), *results.confirmations().values()]
    seconds = [run.user_attrs["seconds"] for run in runs if run.state == TrialState.COMPLETE]
    if "tokens" in budget or max(seconds) <= UNEVEN * min(seconds):
        return ""
    return (
        f"trials took {min(seconds):.1f} to {max(seconds):.1f} s of {budget}, so they are not on "
        "equal terms (a busy machine, or updates that are long beside the budget): repeat the "
        "sweep on an idle machine, or give --budget-tokens."
    )


def table(results: Results, ranking: Sequence[Ranked]) -> Any:
    """Trials for people, in the given order."""
    from rich.table import Table

    unit_words, seeds = unit(results.study), any(row.others for row in ranking)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    names = list(dict.fromkeys(name for row in ranking for name in row.trial.params))
    heads = ["trial", f"validation,\n{unit_words}"]
    if seeds:
        heads += [f"mean over {results.seeds}\nother seeds", "largest -\nsmallest"]
    for name in (*heads, "updates", "seconds", *names):
        grid.add_column(name, justify="right")
    for row in ranking:
        t = row.trial
        cells = [str(t.number), f"{t.value:.4f}"]
        if seeds:
            cells += [f"{row.mean:.4f}", f"{row.spread:.4f}"] if row.others else ["-", "-"]
        cells += [f"{t.user_attrs.get('updates', 0):,}", f"{t.user_attrs.get('seconds', 0):.1f}"]
        params = (short_value(t.params[name]) if name in t.params else "-" for name in names)
        grid.add_row(*cells, *params)
    return grid


def best_options(results: Results, best: Ranked, engine_options: Mapping[str, Any]) -> bytes:
    """The options of a trial as eggroll.train's --config takes them, with facts under `about`."""
    trial = best.trial
    about = {
        "study": results.study.study_name,
        "trial": trial.number,
        "validation": trial.value,
        "other_seeds": list(best.others),
        "unit": unit(results.study),
        "updates": trial.user_attrs.get("updates"),
        "seconds": trial.user_attrs.get("seconds"),
        "searched": trial.params,
    }
    options = trial.user_attrs["config"] | dict(engine_options) | {"about": about}
    return json.dumps(options, indent=1).encode() + b"\n"


def best_words(results: Results) -> str:
    """The best trial's validation, and how sure it is."""
    best, unit_words = results.ranking()[0], unit(results.study)
    if results.confirmed():
        low, high = min(best.others), max(best.others)
        return (
            f"{in_bits(best.mean)} {unit_words} as the mean over {results.seeds} other seeds "
            f"({in_bits(low)} to {in_bits(high)}; {bits(best.trial)} in the search)"
        )
    sentence = f"{bits(best.trial)} {unit_words} with one seed"
    if results.best and len(by_validation(results.study)) > 1:
        return f"{sentence}; other seeds have not confirmed it, the same command goes on"
    return sentence


def print_commands(trial: FrozenTrial, path: Path) -> None:
    """Prints the commands that make sense with the best options."""
    options = from_dict(trial.user_attrs["config"], "the best trial")
    longer = min(10 * options.steps, MOST_STEPS)
    command = f"{invocation('train')} --config {shlex.quote(str(path))}"
    print(f"train it once more:     {command}")
    print(f"ten times the updates:  {command} --steps {longer}")
    made = trial.user_attrs.get("updates", options.steps)
    if made < options.steps:
        print(f"(The trial made {made:,} of {options.steps:,} planned updates before time was up.)")
    if options.rule_class.by_steps:
        print(
            f"(The learning rate of rule {options.rule} falls over --steps: a longer run is not "
            "this one continued, and another rate may be best.)"
        )


def as_json(results: Results) -> dict[str, Any]:
    """Both studies for programs."""
    ranking = results.ranking()
    confirmations = [
        {"trial": number, "seed_offset": offset, **_run(run)}
        for (number, offset), run in sorted(results.confirmations().items())
    ]
    return {
        "study": results.study.study_name,
        "unit": unit(results.study),
        "options": settings(results.study),
        "best": ranking[0].trial.number if ranking else None,
        "confirmed": results.confirmed(),
        "warning": uneven_seconds(results) if ranking else "",
        "trials": [
            {"trial": t.number, "params": t.params, **_run(t)}
            for t in results.study.get_trials(deepcopy=False)
        ],
        "confirmation": confirmations,
    }


def _run(trial: FrozenTrial) -> dict[str, Any]:
    """The result of a trial of either study."""
    return {
        "state": trial.state.name.lower(),
        "validation": trial.value if trial.state == TrialState.COMPLETE else None,
        "slices": [value for _, value in sorted(trial.intermediate_values.items())],
        **{name: trial.user_attrs.get(name) for name in ("updates", "seconds", REFUSED)},
    }


def unit(study: optuna.Study) -> str:
    """The unit of validations."""
    return f"bits per {'token' if settings(study).get('data') == 'count' else 'byte'}"


def settings(study: optuna.Study) -> dict[str, Any]:
    """The options that all trials share."""
    return dict(study.user_attrs.get(SETTINGS, {}))


def describe_params(params: Mapping[str, Any]) -> str:
    """A trial's options in a sentence."""
    return ", ".join(f"{name} {short_value(value)}" for name, value in params.items())


def short_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bits(trial: FrozenTrial) -> str:
    """A complete trial's validation."""
    return in_bits(trial.value or 0)


def relative(folder: Path) -> Path:
    """The folder as seen from the current one, if it is inside: the shorter word to read."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


# Progress.


class Board:
    """Progress of a whole study on stderr: a line per trial, and on a terminal a bar."""

    def __init__(self, study: optuna.Study, total: int, slices: int) -> None:
        self.study, self.total, self.slices = study, total, slices
        self.unit, self._refreshed = unit(study), 0.0
        self._shown = {t.number for t in study.get_trials(deepcopy=False, states=FINISHED)}
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich import progress as rp
            from rich.console import Console

            words = rp.TextColumn("{task.fields[done]} of {task.total} trials")
            remaining = (rp.TextColumn("ETA"), rp.TimeRemainingColumn())
            self._screen = Screen()
            console = Console(file=self._screen.as_file(), force_terminal=True)
            self._bar = rp.Progress(
                words, rp.BarColumn(None), *remaining, console=console, expand=True
            )
            done = len(self._shown)
            self._task = self._bar.add_task("", total=self.total, completed=done, done=done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            with contextlib.suppress(OSError):
                self._bar.stop()
                self._screen.close()

    def update(self, at_once: bool) -> None:
        """Shows what is new; a screen that is gone does not stop the sweep."""
        if not at_once and time.monotonic() - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = time.monotonic()
        trials = self.study.get_trials(deepcopy=False)
        done = [t for t in trials if t.state in FINISHED]
        with contextlib.suppress(OSError):
            for trial in (t for t in done if t.number not in self._shown):
                self._shown.add(trial.number)
                self._print(self._line(trial, len(self._shown)))
            if self._bar:
                begun = [t.last_step or 0 for t in trials if t.state == TrialState.RUNNING]
                completed = len(done) + sum(begun) / self.slices
                self._bar.update(self._task, completed=completed, done=len(done))

    def _line(self, trial: FrozenTrial, count: int) -> str:
        """The result of a trial, and the best of the search so far."""
        attrs, progress = trial.user_attrs, f"{count}/{self.total}"
        result = self._result(trial)
        if TRIAL in attrs:
            return f"{progress} · trial {attrs[TRIAL]} with seed +{attrs[SEED_OFFSET]}: {result}"
        params = f" · {describe_params(trial.params)}" if trial.params else ""
        best = next(iter(by_validation(self.study)), None)
        lowest = f" · lowest {bits(best)} (trial {best.number})" if best else ""
        return f"{progress} · trial {trial.number}: {result}{params}{lowest}"

    def _result(self, trial: FrozenTrial) -> str:
        if refused := trial.user_attrs.get(REFUSED):
            return f"not possible ({refused.rstrip('.')})"
        if trial.state == TrialState.PRUNED:
            last = trial.last_step or 0
            value = trial.intermediate_values.get(last, float("nan"))
            return f"pruned at {in_bits(value)} after {last} of {self.slices} slices"
        updates, seconds = (trial.user_attrs.get(name, 0) for name in ("updates", "seconds"))
        return f"{bits(trial)} {self.unit}, {updates:,} updates in {seconds:.1f} s"

    def _print(self, line: str) -> None:
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


# Pictures.


def draw(results: Results, folder: Path, unit: str) -> list[Path]:
    """Draws history, slice, parallel and, of enough trials, importance.png; returns what was drawn.

    Raises:
        InputError: a picture cannot be written.
    """
    drawing = _drawing(results, unit)
    paths = []
    with pictures.style():
        for name, picture in PICTURES.items():
            figure = picture(drawing)
            if figure is not None:
                paths.append(pictures.save(figure, folder / f"{name}.png"))
    return paths


class Drawing(NamedTuple):
    """The data of the pictures."""

    study: optuna.Study
    points: list[TrialPoint]
    scales: list[Scale]
    unit: str
    best: TrialPoint
    label: str  # of the best one

    @property
    def complete(self) -> list[TrialPoint]:
        """The points of trials that were not pruned."""
        return [p for p in self.points if p.complete]


class TrialPoint(NamedTuple):
    """A trial and its validation."""

    trial: FrozenTrial
    value: float  # in the unit of the study; the last one if it was pruned
    complete: bool


class Scale(NamedTuple):
    """The map from an option's values to 0..1 of an axis, and the values that are named there."""

    name: str
    log: bool
    choices: tuple[Any, ...]  # empty for numbers
    low: float  # in the axis's units: of an index, a number or its logarithm
    high: float
    whole: bool = False  # numbers are integers

    def __call__(self, value: Any) -> float:
        x = self.choices.index(value) if self.choices else self._mapped(value)
        return (x - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def _mapped(self, value: float) -> float:
        return math.log(value) if self.log else float(value)

    def marks(self) -> list[tuple[float, str]]:
        """Heights and words: every choice, or both ends and what lies between."""
        if self.choices:
            return [(self(choice), str(choice)) for choice in self.choices]
        ends = [self.low + (self.high - self.low) * share for share in (0, 0.5, 1)]
        values = [math.exp(end) if self.log else end for end in ends]
        if self.whole:
            return [(self(v), f"{v:,}") for v in sorted({round(v) for v in values})]
        return [(self(v), f"{v:.3g}") for v in values]


def _drawing(results: Results, unit: str) -> Drawing:
    points, best = _points(results.study), results.ranking()[0]
    label = f"best: trial {best.trial.number}, {best.trial.value:.4f}"
    if results.confirmed():
        label += f" ({best.mean:.4f} as the mean over {results.seeds} other seeds)"
    star = next(p for p in points if p.trial.number == best.trial.number)
    return Drawing(results.study, points, _scales(points), unit, star, label)


def _points(study: optuna.Study) -> list[TrialPoint]:
    points = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            points.append(TrialPoint(trial, trial.value, True))
        elif trial.state == TrialState.PRUNED and trial.last_step is not None:
            points.append(TrialPoint(trial, trial.intermediate_values[trial.last_step], False))
    return points


def _scales(points: Sequence[TrialPoint]) -> list[Scale]:
    """One scale for every option that was tried, over the range it was tried in."""
    distributions = {name: d for point in points for name, d in point.trial.distributions.items()}
    scales = []
    for name, distribution in distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            choices = tuple(distribution.choices)
            scales.append(Scale(name, False, choices, 0, len(choices) - 1))
        else:
            low, high, log = (getattr(distribution, bound) for bound in ("low", "high", "log"))
            ends = (math.log(low), math.log(high)) if log else (low, high)
            whole = isinstance(distribution, IntDistribution)
            scales.append(Scale(name, log, (), ends[0], ends[1], whole))
    return scales


def _history(drawing: Drawing) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = pictures.new_figure(8, 4.5)
    axes = figure.subplots()
    complete = drawing.complete
    lowest = np.minimum.accumulate([p.value for p in complete])
    numbers = [p.trial.number for p in complete]
    axes.step(numbers, lowest, where="post", color=TRAIN, lw=1.0, alpha=0.6, zorder=1,
              label="lowest so far")  # fmt: skip
    _scatter(axes, drawing, drawing.points, lambda p: p.trial.number)
    _scale_axis(axes, drawing.points)
    axes.set(xlabel="trial", ylabel=f"validation, {drawing.unit}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_title(figure, axes, drawing, "validation by trial")


def _slice(drawing: Drawing) -> Figure:
    rows = -(-len(drawing.scales) // 4)
    columns = -(-len(drawing.scales) // rows)
    figure = pictures.new_figure(max(2.6 * columns, 5), 3.4 * rows + 0.6)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(drawing.scales) :]:
        axes.remove()
    for scale, axes in zip(drawing.scales, grid.flat, strict=False):
        points = [p for p in drawing.points if scale.name in p.trial.params]
        _scatter(axes, drawing, points, partial(_position, scale))
        axes.set(xlabel=scale.name, xlim=(-0.08, 1.08))
        places, words = zip(*scale.marks(), strict=True)
        axes.set_xticks(places, words)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"validation, {drawing.unit}")
    _scale_axis(grid[0, 0], drawing.points)
    return _with_title(figure, grid[0, 0], drawing, "validation by option")


def _parallel(drawing: Drawing) -> Figure:
    from matplotlib import colormaps

    scales, unit = drawing.scales, drawing.unit
    figure = pictures.new_figure(max(1.5 * len(scales) + 2, 6), 4.5)
    axes = figure.subplots()
    # The highest is drawn first, and the best one last, on top.
    complete = sorted(drawing.complete, key=lambda p: (p == drawing.best, -p.value))
    low, high = min(p.value for p in complete), max(p.value for p in complete)
    bits = Scale(unit, False, (), low, high)
    if _spans_decades(complete):
        bits = Scale(unit, True, (), math.log(low), math.log(high))
    for rank, point in enumerate(complete, 1):
        share = rank / len(complete)
        heights = [bits(point.value)]
        for scale in scales:
            value = point.trial.params.get(scale.name)
            heights.append(NOT_USED_HEIGHT if value is None else scale(value))
        best = point == drawing.best
        colour = VALID if best else colormaps["Blues"](0.25 + 0.7 * share)
        axes.plot(heights, color=colour, lw=2 if best else 1.1, alpha=0.9)
    for x, scale in enumerate([bits, *scales]):
        axes.axvline(x, color=REFERENCE, lw=0.8, zorder=0)
        for height, word in scale.marks():
            axes.annotate(word, (x, height), xytext=(4, 1), textcoords="offset points", fontsize=8,
                          bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 0.5})  # fmt: skip
    axes.set_xticks(range(len(scales) + 1), [unit, *(scale.name for scale in scales)])
    missing = any(s.name not in p.trial.params for s in scales for p in complete)
    axes.set_yticks([NOT_USED_HEIGHT] if missing else [], ["not used"] if missing else [])
    axes.set_xlim(-0.2, len(scales) + 0.5)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.plot([], [], color=VALID, lw=2, label=drawing.label)
    return _with_title(figure, axes, drawing, "complete trials, darker is lower")


def importance_waits(study: optuna.Study) -> str:
    """A sentence as long as there are too few trials to tell what is important, else empty."""
    count = len(_points(study))
    if count >= IMPORTANCE_TRIALS:
        return ""
    return f"importance.png waits for {IMPORTANCE_TRIALS} trials with a validation: {count} so far."


def _importance(drawing: Drawing) -> Figure | None:
    if importance_waits(drawing.study):
        return None
    # Optuna looks at complete trials only: a pruned one counts with its last validation.
    study = optuna.create_study()
    for point in drawing.points:
        trial = point.trial
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.params, distributions=trial.distributions, value=point.value
            )
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the evaluator is called experimental
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (RuntimeError, ValueError):  # all values are equal, or none was varied
        return None
    figure = pictures.new_figure(6, 0.45 * len(shares) + 1.4)
    axes = figure.subplots()
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=TRAIN, height=0.6)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set(
        xlim=(0, 1.1 * max(*shares.values(), 0.01)), xlabel="share of the importance (PED-ANOVA)"
    )
    axes.grid(visible=False, axis="y")
    of = f"{len(drawing.points)} trials"
    if pruned := len(drawing.points) - len(drawing.complete):
        of += f", {pruned} of them pruned"
    return _with_title(figure, None, drawing, f"options that tell the best of {of}")


def _scatter(
    axes: Axes, drawing: Drawing, points: Sequence[TrialPoint], x: Callable[[TrialPoint], float]
) -> None:
    """Trials as dots, pruned ones as crosses, the best one as a star."""
    complete = [p for p in points if p.complete]
    pruned = [p for p in points if not p.complete]
    if pruned:
        axes.scatter([x(p) for p in pruned], [p.value for p in pruned], c=REFERENCE, s=18, lw=0.8,
                     alpha=0.5, marker="x", label="pruned, last validation")  # fmt: skip
    axes.scatter(
        [x(p) for p in complete], [p.value for p in complete], c=TRAIN, s=22, label="complete"
    )
    if drawing.best in points:
        axes.scatter([x(drawing.best)], [drawing.best.value], c=VALID, s=90, marker="*", zorder=3,
                     label=drawing.label)  # fmt: skip


def _position(scale: Scale, point: TrialPoint) -> float:
    return scale(point.trial.params[scale.name])


def _spans_decades(points: Sequence[TrialPoint]) -> bool:
    """True if values span a factor of ten, so that only a logarithmic axis shows them all."""
    values = [p.value for p in points]
    return min(values) > 0 and max(values) > 10 * min(values)


def _scale_axis(axes: Axes, points: Sequence[TrialPoint]) -> None:
    if _spans_decades(points):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")


def _with_title(figure: Figure, axes: Axes | None, drawing: Drawing, title: str) -> Figure:
    """Adds the title and, below the picture, a legend with the labels of `axes`."""
    name = pictures.printable(drawing.study.study_name)
    pictures.set_title(figure, f"{name}: {title}")
    if axes:
        columns = 2 if figure.get_figwidth() >= 7.5 else 1  # so that the label of the best fits
        entries = axes.get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=columns)
    return figure


PICTURES: dict[str, Callable[[Drawing], Figure | None]] = {
    "history": _history,
    "importance": _importance,
    "parallel": _parallel,
    "slice": _slice,
}
