"""Pictures and tables of runs, from their files alone; seeds of a learner have one colour."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
from matplotlib import pyplot as plt

from eggroll.errors import InputError
from experiments.selfplay import rwd, settings
from experiments.selfplay.settings import Settings

matplotlib.use("Agg")

NAMES = {"feedback": "errors carried back, int8", "token-credit": "token credit, int8",
         "adam": "Adam, float"}  # fmt: skip
MATCHES = ("raw_against_random", "search_against_random", "search_against_previous",
           "search_against_untrained", "search_against_alphabeta",
           "long_search_against_alphabeta")  # fmt: skip


class RunFiles(NamedTuple):
    """A run's figures: evaluations, and games and networks by iteration."""

    folder: Path
    settings: Settings
    evals: list[dict[str, Any]]
    games: list[dict[str, Any]]
    nets: list[dict[str, Any]]

    @property
    def name(self) -> str:
        reward = "" if self.settings.reward == "terminal" else f", reward {self.settings.reward}"
        return f"{NAMES[self.settings.learner]} {self.settings.hidden.replace(',', '-')}{reward}"

    def played(self, figures: dict[str, Any]) -> int:
        """Games before an evaluation."""
        return int(figures["iteration"]) * self.settings.games


def read(folder: Path) -> RunFiles:
    """The figures of a run.

    Raises:
        InputError: the folder is none of a run, or nothing has been judged there.
    """
    found = RunFiles(
        folder, settings.read(folder), *(rows(folder / part) for part in ("evals", "games", "nets"))
    )
    if not found.evals:
        raise InputError(
            f"{str(folder)!r} has no evaluations yet: 'python -m experiments.selfplay eval' makes "
            "one."
        )
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    return [settings.read_json(path) for path in sorted(folder.glob("[0-9]*.json"))]


def report(folders: Sequence[Path], out: Path, table: Path | None = None) -> list[str]:
    """Draws pictures in `out`, writes a CSV file of all evaluations, and answers tables.

    Raises:
        InputError: a folder is no run's, or a file cannot be written.
    """
    runs = [read(folder) for folder in folders]
    try:
        out.mkdir(parents=True, exist_ok=True)
        if table:
            write_csv(table, runs)
    except OSError as error:
        raise InputError(
            f"{str(error.filename)!r} cannot be written ({error.strerror}): name another place."
        ) from None
    lines = []
    for game in dict.fromkeys(run.settings.game for run in runs):
        own = [run for run in runs if run.settings.game == game]
        draw(out / f"{game}.png", game, own)
        lines += ["", *(exact_table(own) if game == "tictactoe" else match_table(own))]
        if game == "liuzhou":
            lines += ["", *rwd.scaled([run.folder for run in own])]
    return lines[1:]


def draw(path: Path, game: str, runs: list[RunFiles]) -> None:
    """The learning curves of a game."""
    curves = CURVES[game]
    figure, panels = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.4))
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(run.name for run in runs))}
    for panel, (title, curve) in zip(panels, curves.items(), strict=True):
        labelled: set[str] = set()
        for run in runs:
            points = list(curve(run))
            label = None if run.name in labelled else run.name
            labelled.add(run.name)
            panel.plot(*zip(*points, strict=True), color=colours[run.name], label=label, lw=1.2)
        panel.set(title=title, xlabel="games", xlim=(0, None), ylim=(0, None))
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def judged(key: str, scale: float = 100) -> Any:
    """A curve of an exact judge's figure."""
    return lambda run: [(run.played(e), scale * e[key]) for e in run.evals]


def scored(key: str) -> Any:
    """A curve of a match's score, draws being half."""
    return lambda run: [(run.played(e), 100 * e[key]["score"]) for e in run.evals if key in e]


def decisive(run: RunFiles) -> list[tuple[int, float]]:
    return [
        ((i + 1) * run.settings.games, 100 * row["decisive_game_ratio"])
        for i, row in enumerate(run.games)
    ]


def value_loss(run: RunFiles) -> list[tuple[int, float]]:
    return [(i * run.settings.games, row["value"]) for i, row in enumerate(run.nets) if i]


CURVES: dict[str, dict[str, Any]] = {
    "tictactoe": {
        "lost to minimax, %": judged("optimal_loss"),
        "lost to random, %": judged("random_loss"),
        "decisive games of self-play, %": decisive,
    },
    "connect4": {
        "score against the untrained net, %": scored("search_against_untrained"),
        "score against alpha-beta, depth 4, %": scored("search_against_alphabeta"),
        "value, bits": value_loss,
    },
    "liuzhou": {
        "score against random, %": scored("search_against_random"),
        "score against the untrained net, %": scored("search_against_untrained"),
        "decisive games of self-play, %": decisive,
    },
}


def exact_table(runs: list[RunFiles]) -> list[str]:
    """The last evaluation of each run by exact judges, and the means of its last quarter."""
    lines = [
        "| learner | seed | games | lost to minimax | mean of the last quarter | lost to random | "
        "exploitability | bad moves |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        last = run.evals[-1]
        end = run.evals[-max(1, len(run.evals) // 4) :]
        lines.append(
            f"| {run.name} | {run.settings.seed} | {run.played(last):,} | "
            f"{last['optimal_loss']:.2%} | {fmean(e['optimal_loss'] for e in end):.2%} | "
            f"{last['random_loss']:.3%} | {last['exploitability_as_x']:.2f}, "
            f"{last['exploitability_as_o']:.2f} | {last['bad_moves']:.0f} |"
        )
    return lines


def match_table(runs: list[RunFiles]) -> list[str]:
    """The matches of the last evaluation of each run."""
    names = [name for name in MATCHES if any(name in run.evals[-1] for run in runs)]
    lines = [
        "| learner | seed | games | " + " | ".join(n.replace("_", " ") for n in names) + " |",
        "|" + "---|" * (len(names) + 3),
    ]
    for run in runs:
        last = run.evals[-1]
        cells = [result(last[name]) if name in last else "-" for name in names]
        lines.append(
            f"| {run.name} | {run.settings.seed} | {run.played(last):,} | "
            + " | ".join(cells) + " |"
        )  # fmt: skip
    return lines


def result(match: dict[str, Any]) -> str:
    """Wins, draws and losses of a match."""
    return f"{match['wins']} won, {match['draws']} drawn, {match['losses']} lost"


def write_csv(path: Path, runs: list[RunFiles]) -> None:
    """A row for each evaluation; matches as their scores."""
    lines = []
    for run in runs:
        about = {"game": run.settings.game, "learner": run.settings.learner,
                 "reward": run.settings.reward, "seed": run.settings.seed}  # fmt: skip
        for figures in run.evals:
            flat = {k: v["score"] if isinstance(v, dict) else v for k, v in figures.items()}
            lines.append(about | {"games": run.played(figures)} | flat)
    keys = list(dict.fromkeys(key for line in lines for key in line))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(lines)
