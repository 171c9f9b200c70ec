"""Draws a run's curves, or one figure of several runs, with matplotlib.

Letters: P members, S streams, T tokens.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eggroll.cli import command as cli
from eggroll.cli.screen import in_bits
from eggroll.errors import InputError
from eggroll.evolution.estimators import MIN_DIFFERING
from eggroll.files import CURVES, write_whole
from eggroll.training.curves import (
    LanguageCurves,
    Metric,
    RunCurves,
    Series,
    TrainerCurves,
    Values,
    labelled,
    read_run,
    smooth,
    told_apart,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
TRAIN, VALID, RATE, SPEED, REFERENCE = "#4c78a8", "#d1495b", "#6a994e", "#7b6d8d", "#444444"
DIFFER = "#c98a2b"
FORMATS = (".png", ".svg", ".pdf")
TITLES: Final[dict[Metric, str]] = {
    "val_loss": "validation",
    "loss": "training loss",
    "update_rate": "weights that moved",
    "tokens_per_second": "throughput",
    "fitness": "fitness, mean of the members",
    "fitness_best": "fitness of the best member",
    "error": "errors at the outputs",
    "nonzero_ratio": "pairs whose members differ in value",
    "rows_per_second": "throughput",
}
PALETTE = 10  # runs that matplotlib's own colours tell apart; more take theirs from a colour map


def printable(name: str) -> str:
    """A file's name as text that matplotlib takes literally: no formulas, no stray bytes."""
    text = re.sub("[\ud800-\udfff]", "\ufffd", name)[:300]
    return text.replace("$", r"\$")


LONGEST_NAME = 40  # letters in a legend


def legend_name(name: str) -> str:
    """The same for a legend: its middle left out where it is long."""
    half = LONGEST_NAME // 2
    short = name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}\u2026{name[-half:]}"
    return ("\u200b" if short.startswith("_") else "") + printable(short)  # _ would hide it


def curves(folder: Path, out: Path | None = None, *, title: str = "") -> Path:
    """Draws the curves of the run in a folder, into its curves.png or `out`; returns the path.

    Raises:
        InputError: there is nothing to draw, or the picture cannot be written.
    """
    run = read_run(folder)
    heading = printable(title or _title(run))
    with style():
        figure = _trainer(run) if isinstance(run, TrainerCurves) else _language(run)
        set_title(figure, heading)
        return save(figure, out or folder / CURVES)


def _language(run: RunCurves) -> Figure:
    assert isinstance(run, LanguageCurves)
    figure = new_figure(8, 7.5)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 1, 1])
    _loss(top, run)
    _moved(middle, run)
    _speed(bottom, run)
    bottom.set_xlabel("update")
    return figure


def _trainer(run: TrainerCurves) -> Figure:
    evolves, learns = run.has_members, run.has("error")
    tall, low = [_fitness] * evolves + [_learnt] * learns, [_moved, *[_differ] * evolves, _speed]
    heights = [3] * len(tall) + [1] * len(low)
    figure = new_figure(8, 2.5 + sum(heights))
    every = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for draw, axes in zip((*tall, *low), every, strict=True):
        draw(axes, run)
    every[-1].set_xlabel("update")
    return figure


def _fitness(axes: Axes, run: TrainerCurves) -> None:
    _line(axes, run, "fitness_best", VALID, "best member")
    _line(axes, run, "fitness", TRAIN, "mean")
    axes.set(ylabel="value told", title="fitness")
    axes.legend(loc="best")


def _learnt(axes: Axes, run: TrainerCurves) -> None:
    """The loss of the rows, or the size of errors that the caller gave."""
    metric: Metric = "loss" if run.has("loss") else "error"
    _line(axes, run, metric, TRAIN, TITLES[metric])
    axes.set(ylabel=run.unit_of(metric), title=TITLES[metric])
    axes.legend(loc="best")


def _line(axes: Axes, run: TrainerCurves, metric: Metric, colour: str, name: str) -> None:
    steps, values = run.points[metric]
    mean = smooth(values)
    axes.plot(steps, values, color=colour, lw=0.8, alpha=0.3)
    axes.plot(
        steps, mean, color=colour, lw=1.6, marker=_marker(steps), markersize=3,
        label=f"{name}: {_brief(mean[-1])} at the end",
    )  # fmt: skip


def _moved(axes: Axes, run: RunCurves) -> None:
    _panel(axes, run.steps, 100 * run.rate, RATE, "weights that moved", "% per update")


def _differ(axes: Axes, run: TrainerCurves) -> None:
    lively = 100 * MIN_DIFFERING
    heading = f"{TITLES['nonzero_ratio']}: below {lively:g} % hardly anything is learnt"
    steps, ratio = run.points["nonzero_ratio"]
    _panel(axes, steps, 100 * ratio, DIFFER, heading, "% per update")
    axes.set_yscale("symlog", linthresh=lively)  # so that what is below can be told from nothing
    axes.set_ylim(0, 130)
    axes.set_yticks([0, lively, 10, 100], ["0", f"{lively:g}", "10", "100"])
    axes.axhline(lively, color=REFERENCE, lw=0.9, ls="--", alpha=0.7)


def _speed(axes: Axes, run: RunCurves) -> None:
    of_all = " of all members" * run.has_members
    _panel(axes, run.steps, run.speed, SPEED, "throughput" + of_all, f"{run.over} per s")
    axes.yaxis.set_major_formatter(_prefixes())


def compare(
    folders: Sequence[Path],
    out: Path,
    *,
    metric: Metric | None = None,
    title: str = "",
    labels: Sequence[str] = (),
    group_seeds: bool = True,
) -> Path:
    """Draws a figure of several runs over tokens or rows and over seconds; returns the path.

    metric: None is validation, or fitness of runs of eggroll.Trainer; labels: one for each run or
    each line, in the place of the folders' names.

    Raises:
        InputError: a folder holds no run with that figure, or the picture cannot be written.
    """
    runs = told_apart([read_run(folder) for folder in folders], folders)
    metric = metric or runs[0].main
    for folder, run in zip(folders, runs, strict=True):
        if type(run) is not type(runs[0]):
            raise InputError(
                f"{str(folder)!r} is a run {run.of} and {str(folders[0])!r} one {runs[0].of}: plot "
                "them apart, as their figures do not compare."
            )
        if metric not in run.metrics:
            raise InputError(
                f"--metric is {metric}: {str(folder)!r} is a run {run.of}, which has "
                f"{', '.join(run.metrics)}."
            )
        if not len(run.curve(metric)[0]):
            lacks = "has not been validated yet" if metric == "val_loss" else f"has no {metric}"
            raise InputError(f"the run in {str(folder)!r} {lacks}: leave it out.")
    lines = labelled(runs, labels, metric, group_seeds)
    series = [line._replace(label=legend_name(line.label)) for line in lines]
    with style():
        figure = new_figure(11, 5 if len(series) <= PALETTE else 5.5)
        left, right = figure.subplots(1, 2, sharey=True)
        _lines(left, series, metric, runs[0].over, runs[0].counted)
        _lines(right, series, metric, "elapsed", "seconds of updates")
        left.set(ylabel=" / ".join(sorted({run.unit_of(metric) for run in runs})))
        _legend(figure, left, len(series))
        heading = printable(title) if title else TITLES[metric]
        set_title(figure, heading)
        return save(figure, out)


def _lines(axes: Axes, series: Sequence[Series], metric: Metric, over: str, unit: str) -> None:
    ends = []
    for i, one in enumerate(series):
        x, mean, low, high = one.points(metric, over)
        seeds = f", mean of {len(one.runs)} seeds" if len(one.runs) > 1 else ""
        label, colour = f"{one.label}: {_brief(mean[-1])}{seeds}", _colour(i, len(series))
        axes.plot(x, mean, color=colour, lw=1.6, marker=_marker(x), markersize=3, label=label)
        if seeds:
            axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
        ends.append((x[-1], mean[-1]))
    runs = [run for one in series for run in one.runs]
    # Reference lines stand for one corpus: none where the runs differ in it.
    alike = all(run.about.get("baselines") == runs[0].about.get("baselines") for run in runs)
    if alike and "loss" in metric:
        _references(axes, runs[0], max(ends)[1], named=over == "elapsed")  # beside no legend
    if max(ends)[0] > 10 * min(ends)[0]:  # else the shorter run would be a line at the left
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}" if over == "elapsed" else _prefixes())
    if metric.endswith("per_second"):
        axes.yaxis.set_major_formatter(_prefixes())
    axes.set_xlabel(unit)


def _marker(x: Values) -> str:
    """Points where there are few, of which one alone makes no line."""
    return "o" if len(x) <= 80 else ""


def _colour(i: int, count: int) -> Any:
    from matplotlib import colormaps

    return f"C{i}" if count <= PALETTE else colormaps["turbo"](0.05 + 0.9 * i / (count - 1))


def _brief(value: float) -> str:
    """As losses are written; a prefix for large values."""
    if abs(value) >= 1000 or value == 0:
        return str(_prefixes().format_data(value))
    return in_bits(value) if value > 0 else f"-{in_bits(-value)}"


def _legend(figure: Figure, axes: Axes, count: int) -> None:
    """Beside the lines, or below the picture if there are many."""
    if count <= PALETTE:
        axes.legend(title="run: last value")
        return
    columns = 3 if count <= 30 else 4
    figure.legend(
        *axes.get_legend_handles_labels(), title="run: last value", loc="outside lower center",
        ncols=columns, fontsize=7,
    )  # fmt: skip


def style() -> Any:
    """A context with the house's look; nothing global stays changed."""
    with cli.uninterrupted():  # a signal in the midst of its C extensions might end Python
        import matplotlib.backends.backend_agg
        import matplotlib.figure
        import matplotlib.ticker

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def set_title(figure: Figure, words: str, size: float = 11) -> None:
    """Writes a title over a picture, in as many lines as it takes to fit."""
    title = figure.suptitle(words, x=0.01, ha="left", fontsize=size, fontweight="bold")
    room, columns = 0.98 * figure.bbox.width, max(map(len, words.splitlines() or [""]))
    while title.get_window_extent().width > room and columns > 20:
        columns -= 4
        lines = [textwrap.fill(line, columns) for line in words.splitlines()]
        title.set_text("\n".join(lines))


def _loss(axes: Axes, run: LanguageCurves) -> None:
    label = "training" + ": members' integer score" * run.has_members
    axes.plot(run.steps, run.loss, color=TRAIN, lw=0.8, alpha=0.3)
    few = _marker(run.steps)
    axes.plot(
        run.steps, smooth(run.loss), color=TRAIN, lw=1.6, marker=few, markersize=3, label=label
    )
    if len(run.valid):
        axes.plot(
            run.valid_steps, run.valid, color=VALID, marker="o", markersize=3, lw=1.6,
            label=f"validation: {in_bits(run.valid[-1])} at the end",
        )  # fmt: skip
    steps, both = run.with_counts
    if len(both):
        axes.plot(
            steps, both, color=VALID, marker="o", markersize=3, lw=1.2, ls=":",
            label=f"with counts: {in_bits(both[-1])} at the end",
        )  # fmt: skip
    _references(axes, run, run.loss[-1])
    axes.set(ylabel=run.unit, title="loss")
    axes.legend(loc="best")


def _references(axes: Axes, run: RunCurves, end: float, *, named: bool = True) -> None:
    """Dashed lines at the unigram and the bigram model's losses, labelled away from the end."""
    counted = "" if run.config.get("data") == "count" else " model counted on the training split"
    baselines = run.about.get("baselines", {})
    low, high = axes.get_ylim()
    low, high = min([low, *baselines.values()]), max([high, *baselines.values()])
    room = 0.07 * (high - low) * bool(baselines)  # of a label
    axes.set_ylim(low - room, high + room)
    for name, value in baselines.items():
        above = value > end
        axes.axhline(value, color=REFERENCE, lw=0.9, ls="--", alpha=0.7, zorder=1)
        if not named:
            continue
        axes.annotate(
            f"{name}{counted}: {value:.2f}", (1, value), xycoords=("axes fraction", "data"),
            xytext=(-4, 2 if above else -2), textcoords="offset points", zorder=1.5,
            ha="right", va="bottom" if above else "top",
            color=REFERENCE, fontsize=8, bbox={"fc": "white", "alpha": 0.7, "pad": 0.5, "lw": 0},
        )  # fmt: skip


def _panel(axes: Axes, x: Values, y: Values, colour: str, title: str, unit: str) -> None:
    axes.plot(x, y, color=colour, lw=0.8, alpha=0.35)
    axes.plot(x, smooth(y), color=colour, lw=1.4, marker=_marker(x), markersize=3)
    axes.set(title=title, ylabel=unit)
    axes.set_ylim(bottom=0)


def _prefixes() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _title(run: RunCurves) -> str:
    c, name = run.config, run.name
    if isinstance(run, TrainerCurves):
        keys = ("pop", "rule", "sigma_shift", "seed") if run.has_members else ("rule", "seed")
        words = ", ".join(f"{key} {c.get(key)}".replace("pop ", "population ") for key in keys)
        return f"{name}: {c.get('estimator')}, {words}"
    data = Path(str(c.get("data"))).name
    recipe = f"recipe {c['recipe']}, " if c.get("recipe", "paper") != "paper" else ""
    trained = f"{recipe}population {c.get('pop')}, rank {c.get('rank')}"
    if "pop" not in c:
        trained = f"AdamW, streams {c.get('streams')}"
    rest = ", ".join(f"{key} {c.get(key)}" for key in ("layers", "width", "seed"))
    return f"{name}: {data}, {trained}, {rest}"


def save(figure: Figure, path: Path) -> Path:
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:])
    write_whole(path, picture.getvalue())
    return path
