"""Semantic gates: two ways to play must give the same games, to the last bit.

Letters: n positions, A actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.selfplay import plain, v0, v1
from experiments.selfplay.evaluators import Chunks, Int8, Native
from experiments.selfplay.games import GAMES, find
from experiments.selfplay.operations import Evaluate
from experiments.selfplay.v1 import Trajectories

TREE = 1000  # a depth without a limit
BATCH = 64
NOISE = 0.25  # of Dirichlet in the priors of roots
HIDDEN = (128, 64)
LEAVES = 4  # at a time, of a tree


class Comparison(NamedTuple):
    """How two ways to play agree. root_mean, root_max: absolute differences of root values."""

    positions: int
    action_match: float
    root_mean: float
    root_max: float
    results_equal: bool
    targets_equal: bool

    @property
    def passed(self) -> bool:
        """Equal in all of it."""
        return (
            self.action_match == 1.0
            and self.root_max == 0.0
            and self.results_equal
            and self.targets_equal
        )

    def row(self) -> dict[str, Any]:
        """For a report."""
        return self._asdict() | {"passed": self.passed}


def compare(a: Trajectories, b: Trajectories) -> Comparison:
    """Compares positions one by one, in the order of games and moves.

    Games that part ways have different positions: what is behind the shorter one counts as
    different.
    """
    n, most = min(len(a.game), len(b.game)), max(len(a.game), len(b.game))
    same = (a.state[:n] == b.state[:n]).all(axis=1) & (a.game[:n] == b.game[:n])
    actions = same & (a.action[:n] == b.action[:n])
    roots = np.abs(a.root[:n].astype(np.float64) - b.root[:n])
    roots = np.where(same, roots, np.inf)
    targets = all(
        np.array_equal(x, y)
        for name, x, y in zip(a._fields, a, b, strict=True)
        if name in ("state", "policy", "value", "soft", "legal", "game")
    )
    known = n == most > 0
    return Comparison(
        most,
        float(actions.sum() / max(most, 1)),
        float(roots.mean()) if known else float("inf"),
        float(roots.max()) if known else float("inf"),
        outcomes(a) == outcomes(b),
        targets,
    )


def outcomes(found: Trajectories) -> dict[int, int]:
    """The result of every game for White, by its number."""
    first = np.unique(found.game, return_index=True)[1]
    return dict(
        zip(found.game[first].tolist(), (found.value * found.mover)[first].tolist(), strict=True)
    )


def parsed(game: str, lines: Iterable[dict[str, Any]]) -> Trajectories:
    """Lines of pipeline v0 as arrays. What v0 does not write, for rewards, is 0."""
    rows, kind = list(lines), find(game)
    n = len(rows)
    legal = np.zeros((n, kind.actions), np.bool_)
    for row, line in zip(legal, rows, strict=True):
        row[[number_of(game, move) for move in line["moves"]]] = True
    return Trajectories(
        state=np.array([line["state"]["planes"] for line in rows], np.int8).reshape(n, -1),
        policy=np.array([line["visits"] for line in rows], np.uint16),
        value=np.array([line["value"] for line in rows], np.int8),
        soft=np.array([line["soft"] for line in rows], np.float32),
        legal=legal,
        game=np.array([line["game"] for line in rows], np.int32),
        action=np.array([line["action"] for line in rows], np.int16),
        root=np.array([line["root"] for line in rows], np.float32),
        mover=np.array([line["state"]["mover"] for line in rows], np.int8),
        material=np.zeros(n, np.float32),
        still=np.zeros(n, np.int16),
    )


def number_of(game: str, move: dict[str, Any]) -> int:
    """The action of a move's parts, see v0.move_of."""
    if game != "liuzhou":
        return int(move["at"])
    if move["kind"] == "removal":
        return 216
    row, column = move["at"]
    cell = 6 * row + column
    if "to" in move:
        step = (move["to"][0] - row, move["to"][1] - column)
        return 36 + 4 * cell + plain.STEPS.index(step)
    return cell if move["kind"] == "place" else 180 + cell


# ---- planted leaks -----------------------------------------------------------------------------


def leaking_rows(evaluate: Evaluate) -> Evaluate:
    """An evaluation with a fault: a row's value has a trace of that of the row before it."""

    def leaky(
        states: NDArray[np.int8], legal: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits, values = evaluate(states, legal)
        return logits, (values + 0.01 * np.roll(values, 1)).astype(np.float32)

    return leaky


def leaking_scale(evaluate: Evaluate) -> Evaluate:
    """An evaluation with a fault: values are scaled by the largest of the batch, as where games
    share the bounds that their values are normalised by."""

    def leaky(
        states: NDArray[np.int8], legal: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits, values = evaluate(states, legal)
        return logits, (values / max(float(np.abs(values).max()), 1e-6)).astype(np.float32)

    return leaky


# ---- the gate ----------------------------------------------------------------------------------


def semantic(
    game: str,
    simulations: int,
    games: int,
    seed: int,
    say: Callable[[str], None],
    hidden: Sequence[int] = HIDDEN,
) -> dict[str, dict[str, Any]]:
    """All comparisons of one game and number of simulations, by name; an int8 network, which the
    library's engine and native code evaluate to the same bits."""
    engine = Int8(GAMES[game], hidden, seed)
    net = Chunks(Native(engine.weights), v0.LEAVES)
    given: dict[str, Any] = {
        "simulations": simulations, "seed": seed, "temperature_plies": 10, "noise": NOISE,
    }  # fmt: skip
    reuse = {"depth": TREE, "reuse": True}
    gumbel = {"depth": TREE, "gumbel": min(16, GAMES[game].actions), "noise": 0.0}

    def arrays(count: int, batch: int, **options: Any) -> Trajectories:
        return v1.play_games(game, net, games=count, batch=batch, **(given | options))

    def objects(count: int, **options: Any) -> Trajectories:
        texts = v0.play_games(game, net, games=count, **(given | options))
        lines = (json.loads(line) for text in texts for line in text.splitlines())
        return parsed(game, lines)

    whole = arrays(games, BATCH)
    rows = {
        "v1 against v0": compare(whole, objects(games)),
        "engine against native code": compare(
            v1.play_games(game, engine, games=games, batch=BATCH, **given), whole
        ),
        "values alone against full": compare(whole, arrays(games, BATCH, full=True)),
        f"batch of {BATCH} against {BATCH} single games": compare(
            arrays(BATCH, BATCH), arrays(BATCH, 1)
        ),
        "tree: v1 against v0": compare(
            arrays(games, BATCH, depth=TREE), objects(games, depth=TREE)
        ),
        f"tree: batch of {games} against single games": compare(
            arrays(games, games, depth=TREE), arrays(games, 1, depth=TREE)
        ),
        f"tree of {LEAVES} leaves: v1 against v0": compare(
            arrays(games, BATCH, depth=TREE, leaves=LEAVES),
            objects(games, depth=TREE, leaves=LEAVES),
        ),
        f"tree with reuse: batch of {games} against single games": compare(
            arrays(games, games, **reuse), arrays(games, 1, **reuse)
        ),
        f"Gumbel root: batch of {games} against single games": compare(
            arrays(games, games, **gumbel), arrays(games, 1, **gumbel)
        ),
    }
    for name, found in rows.items():
        say(
            f"| {game}, {simulations} | {name} | {found.positions} | {found.action_match} | "
            f"{found.root_max} | {'equal' if found.results_equal else 'DIFFERENT'} | "
            f"{'equal' if found.targets_equal else 'DIFFERENT'} |"
        )
    return {name: found.row() for name, found in rows.items()}
