"""Reports of reward-driven self-play (RWD) on Liuzhou chess, with the source document's fields.

RWD-0 is the baseline, results alone; RWD-1 the document's reward; RWD-2 its gates on the mean of
the rounds; RWD-3 the same fields over the iterations of whole runs. Rewards change what the value
learns, and not how games are played: of the same network RWD-0 to RWD-2 see the same games, and
only training shows what a reward does to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eggroll.errors import InputError
from eggroll.files import make_folder, write_whole
from experiments.selfplay import play, shards
from experiments.selfplay.learners import new
from experiments.selfplay.pipeline import Run
from experiments.selfplay.settings import REWARDS, Settings, read_json

STAGES = {"terminal": "RWD-0", "document": "RWD-1", "mended": "RWD-1, mended"}
GATES = {"decisive_game_ratio": 0.01, "nonzero_ratio": 0.01, "draw_game_ratio": 0.99,
         "positions_per_sec": 0.85}  # fmt: skip
Say = Callable[[str], None]


def rounds(settings: Settings, evaluate: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """A report for each round and reward, interleaved: rewards take turns in coming first, and a
    round before them, of results alone, is not counted."""
    reports = []
    play.chunk(settings, evaluate, settings.games, seed + count)
    for number in range(count):
        turn = number % len(REWARDS)
        for place, reward in enumerate((*REWARDS[turn:], *REWARDS[:turn])):
            asked = Settings(**{**vars(settings), "reward": reward})
            began = time.perf_counter()
            played = play.chunk(asked, evaluate, settings.games, seed + number)
            seconds = time.perf_counter() - began
            figures = shards.summary(played.value, played.target, played.game)
            reports.append(
                {"round": number + 1, "stage": STAGES[reward], "reward": reward, "place": place + 1,
                 "seed": seed + number, **figures,
                 "games_per_sec": figures["games"] / seconds,
                 "positions_per_sec": figures["positions"] / seconds,
                 "paid_for_stalling": stalling(played)}
            )  # fmt: skip
    return reports


def stalling(played: shards.Games) -> dict[str, float]:
    """Mean targets of the two sides in drawn games: what each is paid for a draw."""
    side, drawn = -played.mover, played.value == 0  # Black begins
    return {
        name: round(float(played.target[drawn & (side == sign)].mean(dtype=np.float64)), 6)
        if (drawn & (side == sign)).any() else 0.0
        for name, sign in (("first_player", 1), ("second_player", -1))
    }  # fmt: skip


def aggregate(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the rounds of each reward, and the gates of RWD-2 against RWD-0."""
    fields = ("decisive_game_ratio", "draw_game_ratio", "games_per_sec", "positions_per_sec")
    found: dict[str, Any] = {}
    base = {r["round"]: r["positions_per_sec"] for r in reports if r["reward"] == "terminal"}
    for reward in REWARDS:
        own = [r for r in reports if r["reward"] == reward]
        means = {name: fmean(r[name] for r in own) for name in fields}
        values = [r["value_target_summary"] for r in own]
        means["value_target_summary"] = {k: fmean(v[k] for v in values) for k in values[0]}
        means["paid_for_stalling"] = {
            k: fmean(r["paid_for_stalling"][k] for r in own) for k in own[0]["paid_for_stalling"]
        }
        speeds = [r["positions_per_sec"] / base[r["round"]] for r in own]  # each within its round
        found[reward] = means | {"rounds": len(own), "speeds": speeds}
        found[reward]["gates"] = gates(means, fmean(speeds))
    return found


def gates(means: dict[str, Any], speed: float) -> dict[str, dict[str, Any]]:
    """RWD-2's thresholds: what was found, what is needed, and whether it is."""
    found = {
        "decisive_game_ratio": means["decisive_game_ratio"],
        "nonzero_ratio": means["value_target_summary"]["nonzero_ratio"],
        "draw_game_ratio": means["draw_game_ratio"],
        "positions_per_sec": speed,
    }
    return {
        name: {"found": value, "needed": GATES[name],
               "passed": value <= GATES[name] if name == "draw_game_ratio"
               else value >= GATES[name]}
        for name, value in found.items()
    }  # fmt: skip


def write(
    out: Path, settings: Settings, count: int, run: Path | None, say: Say = print
) -> dict[str, Any]:
    """Plays the rounds and writes a JSON report for each, and one of them all.

    run: whose newest network plays; an untrained one otherwise.

    Raises:
        InputError: the run is of another game, or the folder cannot be written.
    """
    evaluate, k = new(settings).evaluator(), 0
    if run is not None:
        trained = Run(run)
        if trained.settings.game != "liuzhou":
            raise InputError(
                f"--run {str(run)!r} is of {trained.settings.game}: rewards are of liuzhou alone."
            )
        k = trained.trained
        evaluate = trained.learner(k).evaluator()
    make_folder(out)
    reports = rounds(settings, evaluate, count, settings.seed)
    for r in reports:
        path = out / f"round-{r['round']}-{r['reward']}.json"
        write_whole(path, json.dumps(r, indent=1).encode() + b"\n")
    whole = {"network": k, "simulations": settings.simulations, "games": settings.games,
             "rewards": aggregate(reports)}  # fmt: skip
    write_whole(out / "summary.json", json.dumps(whole, indent=1).encode() + b"\n")
    for line in table(whole["rewards"]):
        say(line)
    return whole


def table(rewards: dict[str, Any]) -> list[str]:
    """The summary as lines of a table."""
    lines = [
        "| | decisive | draws | nonzero | targets beyond 1 | mean target of draws, first / second "
        "player | speed (worst) | gates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for reward, found in rewards.items():
        value, paid = found["value_target_summary"], found["paid_for_stalling"]
        failed = [name for name, gate in found["gates"].items() if not gate["passed"]]
        lines.append(
            f"| {STAGES[reward]} | {found['decisive_game_ratio']:.2%} | "
            f"{found['draw_game_ratio']:.2%} | {value['nonzero_ratio']:.2%} | "
            f"{value['outside_count'] / max(value['count'], 1):.2%} | "
            f"{paid['first_player']:+.4f} / {paid['second_player']:+.4f} | "
            f"{fmean(found['speeds']):.2f} ({min(found['speeds']):.2f}) | "
            f"{'fails ' + ', '.join(failed) if failed else 'pass'} |"
        )
    return lines


def scaled(runs: list[Path]) -> list[str]:
    """RWD-3: the fields over the iterations of whole runs.

    The first games are an untrained network's, whatever the reward, so the table says from which
    iteration on RWD-2's thresholds hold in all of them.
    """
    lines = [
        "| reward | iterations | thresholds hold from | decisive, last quarter | nonzero, last "
        "quarter | draws, last quarter |",
        "|---|---|---|---|---|---|",
    ]
    for folder in runs:
        run = Run(folder)
        rows = [read_json(p) for p in sorted((folder / "games").glob("[0-9]*.json"))]
        if not rows:
            raise InputError(f"{str(folder)!r} has no games yet: run 'selfplay' first.")
        end = rows[-max(1, len(rows) // 4) :]
        decisive = fmean(row["decisive_game_ratio"] for row in end)
        nonzero = fmean(row["value_target_summary"]["nonzero_ratio"] for row in end)
        since = holds_from(rows)
        lines.append(
            f"| {run.settings.reward} | {len(rows)} | {'never' if since is None else since} | "
            f"{decisive:.1%} | {nonzero:.1%} | {1 - decisive:.1%} |"
        )
    return lines


def holds_from(rows: list[dict[str, Any]]) -> int | None:
    """The first iteration from which on the thresholds hold in every one; None for never."""
    held = [all(gate["passed"] for gate in gates(row, 1.0).values()) for row in rows]
    failed = [i for i, holds in enumerate(held) if not holds]
    since = failed[-1] + 1 if failed else 0
    return since if since < len(rows) else None
