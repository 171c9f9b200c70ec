"""PPO and evolution on one picture, from the metrics files of their runs alone.

    python -m experiments.tictactoe.comparison runs/* --picture comparison.png

Runs of the same method, network and estimator are seeds of one curve.
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
from experiments.tictactoe import metrics

# Energy of a multiplication and an addition in a 45 nm process, in pJ: float32 3.7 + 0.9, int8 0.2
# and an addition of 32 bits 0.1 (M. Horowitz, "Computing's energy problem", ISSCC 2014, figure
# 1.1.9). Of the arithmetic alone: memory and control come on top, in both.
PICOJOULES = {"float32": 4.6, "int8": 0.3}
AXES = {
    "seconds": "seconds of training",
    "games": "games played",
    "multiply_adds": "multiply-adds",
}
LEAST_LOSS = 0.02  # percent, where the axis of losses begins


def name_of(run: metrics.Run) -> str:
    """Runs of one name are seeds of one curve."""
    estimator = run.about.get("estimator", "token-credit")
    plain = "" if estimator == "token-credit" else f", {estimator}"
    return f"{run.name}, {run.about['arithmetic']}{plain}"


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
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("matplotlib is missing: pip install matplotlib brings it.") from None
    figure = Figure(figsize=(15, 8))
    panels = figure.subplots(2, len(AXES), sharex="col", sharey="row")
    for column, (axis, words) in zip(panels.T, AXES.items(), strict=True):
        for i, (name, runs) in enumerate(found.items()):
            _curves(column, runs, axis, f"C{i}", f"{name} ({len(runs)} seeds)")
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
    words = [format(v, form) for v in (statistics.median(values), min(values), max(values))]
    return f"{words[0]} ({words[1]} to {words[2]})" if len(values) > 1 else words[0]


def table(found: dict[str, list[metrics.Run]]) -> str:
    """What it took until a policy was unbeatable and stayed so, and what it was at the end."""
    head = (
        "run", "seeds, unbeatable at the end", "seconds", "million games", "million rows",
        "10^9 multiply-adds", "J of arithmetic", "lost to minimax at the end, %",
        "lost to random, %", "bad moves",
    )  # fmt: skip
    rows = [head, ("---",) * len(head)]
    for name, runs in found.items():
        looks = [look for look in map(settled, runs) if look]
        pico = PICOJOULES[runs[0].about["arithmetic"]]
        last = [run.looks()[-1] for run in runs]

        def until(key: str, scale: float, looks: list[dict[str, Any]] = looks) -> str:
            return spread([look[key] * scale for look in looks]) if looks else "-"

        rows.append((
            name, f"{sum(map(bool, map(settled, runs)))} of {len(runs)}", until("seconds", 1),
            until("games", 1e-6), until("rows", 1e-6), until("multiply_adds", 1e-9),
            until("multiply_adds", pico * 1e-12),
            spread([100 * look["optimal_loss"] for look in last], ".2f"),
            spread([100 * look["random_loss"] for look in last], ".2f"),
            spread([look["bad_moves"] for look in last], ".0f"),
        ))  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of runs")
    parser.add_argument("--picture", type=Path, help="exploitability and losses over costs")
    args = parser.parse_args()
    try:
        found = groups(args.folders)
        print(table(found))
        if args.picture:
            picture(args.picture, found)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
