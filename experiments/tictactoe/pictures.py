"""Pictures and tables of runs, from their metrics files alone.

The ten pictures are those of the C-backend report, of all runs of PPO that are given; runs that
differ in their seed alone have one colour. PPO beside evolution is comparison.py's.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.tictactoe import comparison, metrics
from experiments.tictactoe.metrics import Run

matplotlib.use("Agg")

WINDOW = 20  # iterations that a smoothed line averages
NAMES = {
    "ppo-sequential": "PyTorch, one game at a time",
    "ppo-lockstep": "PyTorch, lockstep",
    "ppo-native": "native",
}
Groups = dict[str, list[Run]]


def report(
    folders: Sequence[Path], out: Path, table: Path | None = None, compared: Path | None = None
) -> list[str]:
    """Draws pictures in `out`, writes a CSV file of all looks, and answers tables, line by line.

    compared: the folder of comparison.png, if another.

    Raises:
        InputError: a folder has no metrics, or a file cannot be written.
    """
    runs = [metrics.read(folder) for folder in folders]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(out)!r} cannot be made ({error.strerror}).") from None
    ppo: Groups = {}
    for method in NAMES:
        for run in runs:
            if run.about["method"] == method and run.looks():
                ppo.setdefault(name_of(run), []).append(run)
    lines = []
    if ppo:
        for i, (name, draw) in enumerate(PICTURES.items(), 1):
            save(out / f"{i:02}_{name}.png", draw, ppo)
        lines += final_table(ppo)
    if table:
        write_looks(table, runs)
    found = comparison.groups(folders)
    comparison.picture((compared or out) / "comparison.png", found)
    for rows in (comparison.until_table(found), comparison.end_table(found)):
        lines += ["", *comparison.written(rows).splitlines()]
    return lines


def write_looks(path: Path, runs: Sequence[Run]) -> None:
    keys = ("step", "games", "rows", *(key for key, _ in ROWS.values()))
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("method", "net", "settings", "seed", *keys))
            for run in runs:
                about = [run.about.get(k, "") for k in ("method", "net", "settings", "seed")]
                for look in run.looks():
                    writer.writerow([*about, *(f"{look[key]:.7g}" for key in keys)])
    except OSError as error:
        raise InputError(f"--csv {str(path)!r} cannot be written ({error.strerror}).") from None


def name_of(run: Run) -> str:
    settings = run.about["settings"]
    return NAMES[run.about["method"]] + ("" if settings == "strict" else f", {settings}'s settings")


def save(path: Path, draw: Callable[[Any, Groups], None], groups: Groups) -> None:
    figure = plt.figure(figsize=(7, 4))
    draw(figure, groups)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    plt.close(figure)


def colours(groups: Groups) -> dict[str, str]:
    return {name: f"C{i}" for i, name in enumerate(groups)}


def smooth(values: NDArray) -> NDArray:
    """The mean of the last WINDOW values, of fewer at the beginning."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    first = np.maximum(np.arange(len(values)) + 1 - WINDOW, 0)
    return (sums[1:] - sums[first]) / (np.arange(len(values)) + 1 - first)


def training_time(figure: Any, groups: Groups) -> None:
    panel = figure.subplots()
    seconds = {name: middle(runs, "seconds") for name, runs in groups.items()}
    bars = panel.barh(list(seconds), list(seconds.values()), color=list(colours(groups).values()))
    labels = [f"{s:.1f} s" for s in seconds.values()]
    if len(groups) > 1:
        labels = [f"{s}, {r:.1f} x" for s, r in zip(labels, speed_ups(groups), strict=True)]
    panel.bar_label(bars, labels, padding=3)
    panel.margins(x=0.25)
    panel.invert_yaxis()
    panel.set(title="Training time", xlabel="seconds, judging apart")


def lines(
    panel: Any, groups: Groups, key: str, x: str = "step", *, judged: bool = False,
    scale: float = 1.0,
) -> None:  # fmt: skip
    """One line a run; figures of every iteration are smoothed."""
    for name, runs in groups.items():
        for i, run in enumerate(runs):
            y = scale * run.column(key, judged)
            panel.plot(
                run.column(x, judged), y if judged else smooth(y), colours(groups)[name], lw=1,
                alpha=0.8, label=None if i else name,
            )  # fmt: skip


def over_iterations(key: str, title: str, unit: str) -> Callable[[Any, Groups], None]:
    """A picture of one figure: the judges' at every look, others smoothed over iterations."""

    def draw(figure: Any, groups: Groups) -> None:
        panel = figure.subplots()
        judged = key.startswith(("random", "optimal"))
        lines(panel, groups, key, judged=judged, scale=100 if unit == "%" else 1)
        panel.set(title=title, xlabel="iteration", ylabel=unit)
        panel.grid(alpha=0.3)
        panel.legend()

    return draw


def wall_clock(figure: Any, groups: Groups) -> None:
    panels = figure.subplots(1, 2)
    for panel, key, title in zip(
        panels, ("random_win", "optimal_draw"), ("won against random", "drawn against optimal"),
        strict=True,
    ):  # fmt: skip
        lines(panel, groups, key, "seconds", judged=True, scale=100)
        panel.set(xscale="log", title=f"% {title}", xlabel="seconds of training")
        panel.grid(alpha=0.3)
    panels[1].legend(fontsize=8)


def final_breakdown(figure: Any, groups: Groups) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for panel, opponent in zip(panels, ("random", "optimal"), strict=True):
        left = np.zeros(len(groups))
        for end, colour in (("win", "C2"), ("draw", "0.7"), ("loss", "C3")):
            shares = [100 * middle(runs, f"{opponent}_{end}") for runs in groups.values()]
            bars = panel.barh(list(groups), shares, left=left, color=colour, label=end)
            texts = [f"{share:.1f}" if share > 10 else "" for share in shares]
            panel.bar_label(bars, texts, label_type="center", fontsize=8)
            left += shares
        panel.set(title=f"against {opponent}", xlabel="% of games")
    panels[0].invert_yaxis()
    panels[1].legend(fontsize=8, loc="lower right")


PICTURES: dict[str, Callable[[Any, Groups], None]] = {
    "training_time": training_time,
    "random_win": over_iterations("random_win", "Won against a random opponent", "%"),
    "optimal_draw": over_iterations("optimal_draw", "Drawn against minimax", "%"),
    "optimal_loss": over_iterations("optimal_loss", "Lost to minimax", "%"),
    "policy_loss": over_iterations(
        "policy_loss", f"Policy loss, mean of {WINDOW} iterations", "clipped objective, negated"
    ),
    "value_loss": over_iterations(
        "value_loss", f"Value loss, mean of {WINDOW} iterations", "mean squared error"
    ),
    "entropy": over_iterations("entropy", f"Entropy, mean of {WINDOW} iterations", "nats"),
    "self_play": over_iterations(
        "self_play_win", f"Won against the pool, mean of {WINDOW} iterations", "%"
    ),
    "wall_clock": wall_clock,
    "final": final_breakdown,
}

# Row of the final table -> figure, and how it is written.
ROWS = {
    "against random: won": ("random_win", "{:.1%}"),
    "against random: drawn": ("random_draw", "{:.1%}"),
    "against random: lost": ("random_loss", "{:.2%}"),
    "against minimax: won": ("optimal_win", "{:.1%}"),
    "against minimax: drawn": ("optimal_draw", "{:.2%}"),
    "against minimax: lost": ("optimal_loss", "{:.2%}"),
    "exploitability as X": ("exploitability_as_x", "{:.2f}"),
    "exploitability as O": ("exploitability_as_o", "{:.2f}"),
    "bad moves of 4,520": ("bad_moves", "{:.0f}"),
    "training, s": ("seconds", "{:.1f}"),
}


def last(runs: Sequence[Run], key: str) -> list[float]:
    return [run.looks()[-1][key] for run in runs]


def middle(runs: Sequence[Run], key: str) -> float:
    return statistics.median(last(runs, key))


def final_table(groups: Groups) -> list[str]:
    """Medians of seeds at the end, with the range where there are several."""
    found = [
        "| | " + " | ".join(f"{name} ({len(runs)})" for name, runs in groups.items()) + " |",
        "|---|" + "---|" * len(groups),
    ]
    for row, (key, form) in ROWS.items():
        cells = [cell(last(runs, key), form) for runs in groups.values()]
        found.append(f"| {row} | " + " | ".join(cells) + " |")
    each = [cell(milliseconds(runs), "{:.1f}") for runs in groups.values()]
    found.append("| an iteration, ms | " + " | ".join(each) + " |")
    if len(groups) > 1:
        ratios = " | ".join(f"{ratio:.1f}" for ratio in speed_ups(groups))
        found.append(f"| speed-up, of an iteration | {ratios} |")
    return found


def milliseconds(runs: Sequence[Run]) -> list[float]:
    """Of an iteration of each run, in the mean."""
    return [1e3 * run.lines[-1]["seconds"] / run.lines[-1]["step"] for run in runs]


def speed_ups(groups: Groups) -> list[float]:
    """The slowest group's median time of an iteration, over that of each."""
    each = [statistics.median(milliseconds(runs)) for runs in groups.values()]
    return [max(each) / own for own in each]


def cell(values: list[float], form: str) -> str:
    ends = [form.format(end) for end in (min(values), max(values))]
    text = form.format(statistics.median(values))
    return text if ends[0] == ends[1] else f"{text} ({ends[0]} to {ends[1]})"
