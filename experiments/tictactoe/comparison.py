"""PPO and evolution on one picture, from the metrics files of their runs alone.

    python -m experiments.tictactoe.comparison runs/* --picture comparison.png
    python -m experiments.tictactoe.comparison runs/states-* --rows rows.png

Runs of the same method, network, estimator and rule are seeds of one curve. `--rows` shows bad
moves over network evaluations, and how many times those of the first curve the others need.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.arguments import experiment
from experiments.tictactoe import metrics

# Energy of a multiplication and an addition in a 45 nm process, in pJ: float32 3.7 + 0.9, int8 0.2
# and an addition of 32 bits 0.1 (M. Horowitz, "Computing's energy problem", ISSCC 2014, figure
# 1.1.9). Of the arithmetic alone: memory and control come on top, in both.
PICOJOULES = {"float32": 4.6, "int8": 0.3}
SECONDS = {
    "cpu_seconds": "CPU seconds of training, one thread",
    "seconds": "seconds of training",
}
AXES = {"games": "games played", "multiply_adds": "multiply-adds"}
LEVELS = (1400, 1200, 1000, 900, 800, 700, 600, 500, 300, 200, 100)  # bad moves
LEAST_LOSS = 0.02  # percent, where the axis of losses begins


def name_of(run: metrics.Run) -> str:
    """Runs of one name are seeds of one curve."""
    words = [run.name, run.about["arithmetic"]]
    if estimator := run.about.get("estimator"):
        words.append(estimator)
        if estimator == "eggroll":  # the only one here with two rules
            words.append(f"rule {run.about['rule']}")
    return ", ".join(words)


def seeds(runs: Sequence[metrics.Run]) -> str:
    return f"{len(runs)} seed{'s' * (len(runs) > 1)}"


def groups(folders: Sequence[Path]) -> dict[str, list[metrics.Run]]:
    """Runs by name, in the order given.

    Raises:
        InputError: a folder has no metrics, or no look of the judges.
    """
    found: dict[str, list[metrics.Run]] = {}
    for folder in folders:
        run = metrics.read(folder)
        if not run.looks():
            raise InputError(f"{str(folder)!r} has no look of the judges yet: wait for the run.")
        found.setdefault(name_of(run), []).append(run)
    return found


def exploitability(run: metrics.Run) -> NDArray[np.float64]:
    """The larger chance of losing to a best response, with X or with O, at every look."""
    sides = [run.column(f"exploitability_as_{side}", judged=True) for side in "xo"]
    return np.maximum(*sides)


def settled(run: metrics.Run) -> dict[str, Any] | None:
    """The look from which on the policy is unbeatable at every look; None if it ends beatable."""
    beaten = np.flatnonzero(exploitability(run) > 0)
    first = beaten[-1] + 1 if len(beaten) else 0
    return run.looks()[first] if first < len(run.looks()) else None


def stepped(runs: Sequence[metrics.Run], axis: str, values: Any) -> tuple[NDArray, NDArray]:
    """Every run's values over one axis: the places [n] where any of them changes, and [runs, n]."""
    places = [run.column(axis, judged=True) for run in runs]
    grid = np.unique(np.concatenate(places))
    grid = grid[grid <= max(place[-1] for place in places)]
    rows = [
        values(run)[np.clip(np.searchsorted(place, grid, side="right") - 1, 0, None)]
        for run, place in zip(runs, places, strict=True)
    ]
    return grid, np.stack(rows)


def losses(run: metrics.Run) -> NDArray[np.float64]:
    """Lost games against minimax in percent, none of them at the bottom of the axis."""
    return np.maximum(100 * run.column("optimal_loss", judged=True), LEAST_LOSS)


def picture(path: Path, found: dict[str, list[metrics.Run]]) -> None:
    """Exploitability and losses over seconds, games and multiply-adds.

    Raises:
        InputError: matplotlib is missing.
    """
    every = [run for runs in found.values() for run in runs]
    seconds = next(key for key in SECONDS if all(key in run.looks()[-1] for run in every))
    axes = {seconds: SECONDS[seconds], **AXES}
    panels, figure = _figure(2, len(axes), (15, 8))
    for column, (axis, words) in zip(panels.T, axes.items(), strict=True):
        for i, (name, runs) in enumerate(found.items()):
            _curves(column, runs, axis, f"C{i}", f"{name} ({seeds(runs)})")
        column[1].set(xscale="log", xlabel=words)
    panels[0, 0].set(ylabel="seeds that a best response beats, %", ylim=(-3, 103))
    panels[1, 0].set(
        ylabel="games lost to minimax, %\nmedian and range", yscale="log",
        ylim=(0.9 * LEAST_LOSS, 110),
    )  # fmt: skip
    ticks = [LEAST_LOSS, 0.1, 1, 10, 100]
    panels[1, 0].set_yticks(ticks, ["0", *(f"{tick:g}" for tick in ticks[1:])])
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.suptitle("Tic-tac-toe: PPO and evolution, judged exactly")
    figure.tight_layout(rect=(0, 0.03 + 0.025 * -(-len(labels) // 3), 1, 1))
    figure.savefig(path, dpi=120)


def _curves(panels: Any, runs: Sequence[metrics.Run], axis: str, colour: str, label: str) -> None:
    if not max(run.column(axis, judged=True).max() for run in runs) > 0:
        return  # `states` plays no games
    grid, beaten = stepped(runs, axis, exploitability)
    shown = grid > 0
    panels[0].step(
        grid[shown], 100 * beaten.mean(axis=0)[shown], where="post", color=colour, label=label
    )
    grid, lost = stepped(runs, axis, losses)
    panels[1].step(grid[shown], np.median(lost, axis=0)[shown], where="post", color=colour)
    panels[1].fill_between(
        grid[shown], lost.min(axis=0)[shown], lost.max(axis=0)[shown],
        step="post", color=colour, alpha=0.15, linewidth=0,
    )  # fmt: skip


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Median and range."""
    if not values:
        return "-"
    words = [format(v, form) for v in (statistics.median(values), min(values), max(values))]
    return f"{words[0]} ({words[1]} to {words[2]})" if len({*words}) > 1 else words[0]


def until_table(found: dict[str, list[metrics.Run]]) -> list[list[str]]:
    """What it took until a policy was unbeatable and stayed so, of the seeds that ended so."""
    rows = [["until unbeatable", "seeds", "seconds", "CPU seconds", "million games",
             "million rows", "10^9 multiply-adds", "J of arithmetic"]]  # fmt: skip
    for name, runs in found.items():
        looks = [look for look in map(settled, runs) if look]
        pico = PICOJOULES[runs[0].about["arithmetic"]]
        costs = (
            ("seconds", 1.0), ("cpu_seconds", 1.0), ("games", 1e-6), ("rows", 1e-6),
            ("multiply_adds", 1e-9), ("multiply_adds", pico * 1e-12),
        )  # fmt: skip
        rows.append([name, f"{len(looks)} of {len(runs)}"])
        for key, scale in costs:
            rows[-1].append(spread([look[key] * scale for look in looks if key in look]))
    return rows


def end_table(found: dict[str, list[metrics.Run]]) -> list[list[str]]:
    """What a policy was at the end, and what the whole run took."""
    rows = [["at the end", "million rows", "seconds", "CPU seconds", "lost to minimax, %",
             "random: won, %", "random: lost, %", "bad moves"]]  # fmt: skip
    for name, runs in found.items():
        last = [run.looks()[-1] for run in runs]
        shown = (
            ("rows", 1e-6, ".4g"), ("seconds", 1, ".3g"), ("cpu_seconds", 1, ".3g"),
            ("optimal_loss", 100, ".2f"), ("random_win", 100, ".1f"), ("random_loss", 100, ".2f"),
            ("bad_moves", 1, ".0f"),
        )  # fmt: skip
        rows.append([name])
        for key, scale, form in shown:
            values = [look[key] * scale for look in last if key in look]
            rows[-1].append(spread(values, form))
    return rows


def written(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rows_needed(run: metrics.Run, level: float) -> float:
    """Rows until there are no more bad moves than that, linear between looks; nan if never."""
    rows, bad = run.column("rows", judged=True), run.column("bad_moves", judged=True)
    low = np.minimum.accumulate(bad)
    if low[-1] > level:
        return float("nan")
    i = int((low <= level).argmax())
    if i == 0:
        return float(rows[0])
    share = (bad[i - 1] - level) / (bad[i - 1] - bad[i])
    return float(rows[i - 1] + share * (rows[i] - rows[i - 1]))


def rows_table(found: dict[str, list[metrics.Run]]) -> list[list[str]]:
    """Rows for so many bad moves, medians over seeds, and their ratio to the first curve's."""
    lines = [["bad moves", *found]]
    for level in LEVELS:
        needed = [
            statistics.median(sorted(rows_needed(run, level) for run in runs))
            if all(rows_needed(run, level) > 0 for run in runs)
            else float("nan")
            for runs in found.values()
        ]
        words = [f"{needed[0] / 1e6:.2f} M"]
        for rows in needed[1:]:
            reached = rows == rows
            words.append(f"{rows / 1e6:.1f} M = {rows / needed[0]:.0f} x" if reached else "-")
        lines.append([str(level), *words])
    return lines


def rows_picture(path: Path, found: dict[str, list[metrics.Run]]) -> None:
    """Bad moves over rows, a line for every seed.

    Raises:
        InputError: matplotlib is missing.
    """
    panel, figure = _figure()
    for i, (name, runs) in enumerate(found.items()):
        for j, run in enumerate(runs):
            rows, bad = run.column("rows", judged=True), run.column("bad_moves", judged=True)
            label = f"{name} ({seeds(runs)})" if j == 0 else None
            panel.plot(rows[1:], np.maximum(bad[1:], 1), color=f"C{i}", alpha=0.8, label=label)
    panel.set(
        xscale="log", yscale="log", xlabel="rows: evaluations of the network",
        ylabel="bad moves, of 4,520 states", title="Tic-tac-toe by states: what a bad move costs",
    )  # fmt: skip
    panel.grid(alpha=0.3, which="both")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def _figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (8, 5)) -> tuple[Any, Any]:
    """Panels and their figure.

    Raises:
        InputError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("matplotlib is missing: pip install matplotlib brings it.") from None
    figure = Figure(figsize=size)
    return figure.subplots(rows, columns, sharex="col", sharey="row"), figure


@experiment
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of runs")
    parser.add_argument("--rows", type=Path, help="bad moves over rows")
    parser.add_argument("--picture", type=Path, help="exploitability and losses over costs")
    args = parser.parse_args()
    found = groups(args.folders)
    print(written(until_table(found)) + "\n\n" + written(end_table(found)))
    if args.picture:
        picture(args.picture, found)
    if args.rows:
        print("\n" + written(rows_table(found)))
        rows_picture(args.rows, found)


if __name__ == "__main__":
    sys.exit(main())
