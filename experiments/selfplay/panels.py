"""Pictures of measurements, from their JSON alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eggroll.errors import InputError


def workload(found: Mapping[str, Any], picture: Path) -> None:
    """Bars of the segments' shares, and games/s over time."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    table = found["segments"]
    left.barh(list(table), [100 * row["share"] for row in table.values()])
    left.set_xlabel("% of a step")
    left.invert_yaxis()
    runs = found["runs"]
    right.plot([run["at"] for run in runs], [run["games_per_s"] for run in runs])
    right.set_xlabel("seconds")
    right.set_ylabel("games/s")
    right.set_ylim(bottom=0)
    figure.savefig(picture, dpi=120)


def speed(folder: Path, picture: Path) -> None:
    """Three panels of games/s: the pipelines by workers, the stages, boards side by side. A bar or
    point is the mean of rounds, its line from the least to the most.

    folder: with validate.json, stages.json and sweep.json.

    Raises:
        InputError: one of them is missing or has nothing to show.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (name, draw) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        path = folder / f"{name}.json"
        try:
            draw(axes, json.loads(path.read_text()))
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"{str(path)!r} cannot be drawn ({type(error).__name__}): 'suite {name} --json' "
                "writes it."
            ) from None
        axes.set_ylabel("games/s")
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(picture, dpi=120)


def pipelines(axes: Axes, found: Mapping[str, Any]) -> None:
    """Sides by workers, on a logarithmic axis."""
    rates = found["rates"]
    sides = [s for s in ("plain", "v0", "v1 whole", "v1") if any(r["side"] == s for r in rates)]
    workers = sorted({r["workers"] for r in rates})
    width = 0.8 / len(sides)
    for i, side in enumerate(sides):
        own = [(w, [r["games"] for r in rates if (r["side"], r["workers"]) == (side, w)])
               for w in workers]  # fmt: skip
        own = [(w, values) for w, values in own if values]
        at = [workers.index(w) + (i - (len(sides) - 1) / 2) * width for w, _ in own]
        bars(axes, at, [values for _, values in own], width=width, label=side)
    axes.set_yscale("log")
    axes.set_ylim(1, 5 * max(r["games"] for r in rates))  # room for the legend
    axes.set_xticks(range(len(workers)), [f"{w}" for w in workers])
    axes.set_xlabel("workers")
    axes.set_title("pipelines")
    axes.legend(fontsize=8, ncols=len(sides), loc="upper left")


def stages(axes: Axes, found: Mapping[str, Any]) -> None:
    """Stage by stage."""
    games, rows = found["setting"]["games"], found["stages"]
    values = [[games / seconds for seconds in row["seconds"]] for row in rows]
    bars(axes, range(len(rows)), values, width=0.7)
    axes.set_xticks(range(len(rows)), [row["stage"] for row in rows])
    axes.set_xlabel("stage")
    axes.set_title("operations, one after another")


def boards(axes: Axes, found: Mapping[str, Any]) -> None:
    """By the number of boards, on a logarithmic axis of its own."""
    counts = [row["boards"] for row in found["rows"]]
    values = [row["games_per_s"] for row in found["rows"]]
    middle, reach = spans(values)
    axes.errorbar(counts, middle, reach, marker="o", capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("boards side by side")
    axes.set_title("one worker of v1")


PANELS = {"validate": pipelines, "stages": stages, "sweep": boards}


def bars(
    axes: Axes, at: Iterable[float], values: list[list[float]], *, width: float, label: str = ""
) -> None:
    """Means as bars, with lines from the least to the most."""
    middle, reach = spans(values)
    axes.bar(list(at), middle, width, yerr=reach, capsize=2, label=label)


def spans(values: list[list[float]]) -> tuple[list[float], list[list[float]]]:
    """Means, and how far the least and the most are from them."""
    middle = [statistics.fmean(v) for v in values]
    below = [m - min(v) for m, v in zip(middle, values, strict=True)]
    above = [max(v) - m for m, v in zip(middle, values, strict=True)]
    return middle, [below, above]
