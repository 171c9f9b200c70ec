"""Trains int8 networks for tic-tac-toe by evolution, in native worlds.

    python -m experiments.tictactoe.evolution --method vine --net 64 --seeds 0 1 2 --out runs

METHODS are the fitnesses: `states` knows which moves are optimal, the others know results alone.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.cli import command as cli
from eggroll.errors import InputError
from experiments.arguments import positive
from experiments.tictactoe import game, judges, metrics
from experiments.tictactoe.evolution import worlds

NETS = {"64": (64, 64), "256": (256,) * 4}
NAMES = {"64": "64x64", "256": "4x256"}  # in metrics files
MILLION = 10**6


@dataclass(frozen=True)
class Recipe:
    """The settings of a run.

    world: of world.cpp; budget: network evaluations, those of the frozen policies' tables included;
    pop, rows: members, and rows of each in an update; refresh: updates from one table of the frozen
    policy to the next, 0 for none; snapshots: if more than 1, so many frozen policies, evenly
    spread over the run;
    replies, openings: see worlds.tables; group: members that meet the same chance.
    """

    world: str
    budget: int
    pop: int = 64
    rows: int = 512
    estimator: str = "token-credit"
    rule: str = "whitened"
    learning_rate: float = 1.5
    sigma_shift: int = 1
    alpha: float = 4.0
    alpha_decay: int = 1000
    group: int = 2
    refresh: int = 0
    snapshots: int = 1
    replies: float = 0.0
    openings: int = 0

    @property
    def steps(self) -> int:
        """Updates that the budget is enough for."""
        rows = self.pop * self.rows
        if self.snapshots > 1:
            return max(1, (self.budget - self.snapshots * worlds.OPEN) // rows)
        table = worlds.OPEN / self.refresh if self.refresh else 0
        return max(1, int(self.budget / (rows + table)))


METHODS = {
    "states": Recipe("states", 33 * MILLION),
    "vine": Recipe("vine", 98 * MILLION, 128, 256, refresh=1, replies=0.1),
    "games": Recipe("games", 246 * MILLION, 128, 256, refresh=1, replies=0.25, openings=7),
    "pool": Recipe(
        "games", 98 * MILLION, 128, 256, refresh=1, replies=0.1, openings=7, snapshots=20
    ),
}
# Of wider layers the first rate must be smaller, see the docstring of Trainer.
RATES = {"64": 1.0, "256": 1 / 2}
# The library's default estimator, one number for every member.
WEIGHT_NOISE = {"estimator": "eggroll", "rule": "sign", "pop": 4096, "rows": 32, "sigma_shift": 2}
SMOKE = {"budget": 200_000, "pop": 32, "rows": 64}


def recipe(method: str, net: str, estimator: str = "token-credit", **changes: Any) -> Recipe:
    """The settings of a method with a network.

    Raises:
        InputError: the method, the network or a setting is unknown, or of another type.
    """
    for what, given, known in (("method", method, METHODS), ("net", net, NETS)):
        if given not in known:
            raise InputError(f"{what} is {given!r}: {', '.join(known)} are known.")
    found = METHODS[method]
    found = replace(found, learning_rate=found.learning_rate * RATES[net])
    if estimator != found.estimator:
        found = replace(found, **WEIGHT_NOISE | {"estimator": estimator})
    if unknown := changes.keys() - asdict(found).keys():
        raise InputError(
            f"setting {min(unknown)!r} is unknown: the settings are {', '.join(asdict(found))}."
        )
    for name, value in changes.items():
        kind = type(getattr(found, name))
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise InputError(f"{name} is {value!r}: {kind.__name__} is needed.")
    return replace(found, **changes)


def macs(net: str) -> int:
    """Multiply-adds of one evaluation."""
    sizes = [game.INPUTS, *NETS[net], game.CELLS]
    return sum(a * b for a, b in pairwise(sizes))


def macs_of_votes(net: str, settings: Recipe) -> int:
    """Multiply-adds of the votes of one update, beside the evaluations."""
    sizes = [game.INPUTS, *NETS[net], game.CELLS]
    rows = sum(sizes[:-1]) * settings.rows if settings.estimator != "eggroll" else 0
    return settings.pop // 2 * (macs(net) + rows)


def trainer(net: str, settings: Recipe, seed: int, threads: int = 1) -> eg.Trainer:
    """The trainer of a run before its first update."""
    return eg.Trainer(
        eg.networks.mlp(game.INPUTS, NETS[net], game.CELLS), pop=settings.pop, seed=seed,
        estimator=settings.estimator, rule=settings.rule, steps=settings.steps,
        sigma_shift=settings.sigma_shift, alpha=settings.alpha, alpha_decay=settings.alpha_decay,
        learning_rate=settings.learning_rate, threads=threads, engine="cpu",
    )  # fmt: skip


@cache
def _open_inputs() -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """States that are not over, and what the mover sees there."""
    known = game.states()
    at = np.flatnonzero(~known.over)
    return at, game.observations(known.boards[at], worlds.ONE, np.int8)


def greedy(es: eg.Trainer) -> NDArray[np.int64]:
    """The moves [S] of the network without noise."""
    at, inputs = _open_inputs()
    logits = np.zeros((len(game.states().over), game.CELLS), np.int8)
    logits[at] = es.model(inputs)
    return game.greedy_moves(logits)


@cache
def game_rows(openings: int) -> float:
    """Mean rows of a game of world `games`, idle ones included."""
    legal, after, over = game.legal(), game.children(), game.states().over
    rows = (game.CELLS + 1 - game.stones(game.states().boards)) // 2
    mean = rows.astype(float)  # with 0 random moves left
    total = mean[0]
    for _ in range(openings):
        stays = legal & over[after]
        chance = judges.uniform(legal)
        mean = (chance * np.where(stays, rows[:, None], mean[after])).sum(axis=1)
        total += mean[0]
    return total / (openings + 1)


class Opponents:
    """The frozen policies that a world reads: the newest one, or snapshots of the whole run."""

    def __init__(self, settings: Recipe) -> None:
        self.settings, self.taken, self.rows = settings, [], 0
        self.shared = worlds.tables(replies=settings.replies, openings=settings.openings)

    def refresh(self, es: eg.Trainer) -> None:
        """Takes the newest policy in, if it is time."""
        s = self.settings
        if not s.refresh or es.step % s.refresh:
            return
        every = -(-s.steps // s.snapshots)
        if s.snapshots > 1 and es.step % every:
            return
        self.rows += worlds.OPEN
        self.taken = [*self.taken, greedy(es)][-s.snapshots :]
        worlds.set_policies(self.shared, self.taken)


def train(
    method: str,
    net: str,
    seed: int,
    out: str | Path,
    *,
    threads: int = 1,
    looks: int = 50,
    smoke: bool = False,
    show: Callable[[str], None] | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """A run: out gets metrics.jsonl, see metrics.py, and weights.npz; returns the looks.

    net: "64", 27-64-64-9, or "256", 27-4x256-9; changes: of the recipe's settings. Looks take no
    part in `seconds` and `cpu_seconds`, which are those of training.

    Raises:
        InputError: a setting is unknown or out of range, or the folder cannot be written.
    """
    settings = recipe(method, net, **(SMOKE if smoke else {}) | changes)
    if not 1 <= settings.rows <= worlds.ROWS:
        raise InputError(f"rows is {settings.rows}: 1 to {worlds.ROWS} rows fit into an update.")
    about = {"method": method, "net": NAMES[net], "arithmetic": "int8", "seed": seed}
    about |= asdict(settings) | {"steps": settings.steps, "threads": threads}
    rows = []
    with metrics.Writer(Path(out), **about) as writer, warnings.catch_warnings():
        # That few members differ at the end is in the metrics.
        warnings.filterwarnings("ignore", message="update .* fewer than", category=UserWarning)
        es = trainer(net, settings, seed, threads)
        for row in _run(es, settings, net, min(looks, 5) if smoke else looks):
            rows.append(row)
            writer.write(**row)
            if show:
                show(f"{method} {net} seed {seed}: {line(row)}")
    np.savez(Path(out) / "weights.npz", **es.weights)
    return rows


def _run(es: eg.Trainer, settings: Recipe, net: str, looks: int) -> Iterator[dict[str, Any]]:
    """A run's looks, the first before any update."""
    opponents, spent, cpu, steps = Opponents(settings), 0.0, 0.0, settings.steps
    world = getattr(worlds.library(), settings.world)
    at = {round(steps * i / looks) for i in range(looks + 1)}
    update = None
    while True:
        if es.step in at:
            yield _look(es, settings, net, opponents, update) | {
                "seconds": spent, "cpu_seconds": cpu,
            }  # fmt: skip
        if es.step == steps:
            return
        began, cpu_began = time.perf_counter(), time.process_time()
        opponents.refresh(es)
        update = es.play(world, settings.rows, shared=opponents.shared, group=settings.group)
        spent += time.perf_counter() - began
        cpu += time.process_time() - cpu_began


def _look(
    es: eg.Trainer, settings: Recipe, net: str, opponents: Opponents, update: Any
) -> dict[str, Any]:
    members = es.step * settings.pop * settings.rows
    rows = members + opponents.rows
    a_game = {"states": 0, "vine": 1, "games": 1 / game_rows(settings.openings)}[settings.world]
    found = {
        "step": es.step, "rows": rows, "games": round(members * a_game),
        "multiply_adds": rows * macs(net) + es.step * macs_of_votes(net, settings),
        "differing": update.nonzero_ratio if update else 0.0,
        "moved": update.update_rate if update else 0.0,
    }  # fmt: skip
    return found | judges.judge(greedy(es)).row()


def line(row: dict[str, Any]) -> str:
    """A look in a line."""
    percent = {name: 100 * value for name, value in row.items() if isinstance(value, float)}
    return (
        "update {step}, {millions:.1f} M rows, {seconds:.1f} s (CPU {cpu_seconds:.1f}), "
        "{bad_moves:.0f} bad moves, ".format(millions=row["rows"] / MILLION, **row)
        + "loss to optimal {optimal_loss:.2f} %, exploitability {exploitability_as_x:.0f} "
        "{exploitability_as_o:.0f} %, random {random_win:.1f} / {random_loss:.2f} %, differ "
        "{differing:.1f} %".format(**percent)
    )


def policy_of(folder: str | Path) -> NDArray[np.int64]:
    """The moves [S] of a run's network, from its weights.npz, in NumPy.

    Raises:
        InputError: there is none.
    """
    path = Path(folder) / "weights.npz"
    if not path.is_file():
        raise InputError(f"{str(path)!r} is no file: give the folder of a run that has ended.")
    with np.load(path) as saved:
        x = game.observations(game.states().boards, worlds.ONE, np.int8).astype(np.int64)
        layers = len(saved.files) // 2
        for i in range(layers):
            w, b = (saved[f"layer{i}.{part}"].astype(np.int64) for part in ("weights", "bias"))
            x = (x @ w.T) // (16 * int(np.sqrt(w.shape[1])))
            x = np.clip(np.clip(x, -127, 127) + b.reshape(-1), -127, 127)
            x = np.maximum(x, 0) if i < layers - 1 else x
    return game.greedy_moves(x)


def setting(word: str) -> tuple[str, Any]:
    """A word of --set."""
    name, _, value = word.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(
            f"{word!r} is no setting: NAME=VALUE is needed, of JSON, as in pop=64."
        ) from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--net", choices=NETS, default="64")
    parser.add_argument("--estimator", choices=("token-credit", "eggroll"), default="token-credit")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True, help="gets a folder for every seed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--looks", type=positive, default=50)
    parser.add_argument(
        "--set", type=setting, nargs="*", default=[], metavar="NAME=VALUE", help="of the recipe"
    )
    parser.add_argument("--smoke", action="store_true", help="a few updates")
    args = parser.parse_args()
    changes = dict(args.set)
    for seed in args.seeds:
        out = args.out / f"{args.method}-{args.net}-{args.estimator}-{seed}"
        train(
            args.method, args.net, seed, out, threads=args.threads, looks=args.looks,
            smoke=args.smoke, show=lambda text: print(text, flush=True),
            estimator=args.estimator, **changes,
        )  # fmt: skip
    return cli.DONE
