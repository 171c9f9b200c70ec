"""Exact judges of a tic-tac-toe policy: no game is sampled.

A policy is a table over all S states of game.states(): of moves, int [S], or of their
probabilities, float [S, 9]. What it says where the game is over is not read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError
from experiments.tictactoe import game

X_WINS, DRAW, O_WINS = 0, 1, 2


class Results(NamedTuple):
    """Chances of a policy's results with one side."""

    win: float
    draw: float
    loss: float


class Sides(NamedTuple):
    """Chances of a policy's results, with X and with O."""

    as_x: Results
    as_o: Results

    @property
    def mean(self) -> Results:
        """Half of the games with X, half with O."""
        return Results(*((a + b) / 2 for a, b in zip(self.as_x, self.as_o, strict=True)))


class Exploitability(NamedTuple):
    """The chance of losing to the opponent that knows the policy and plays for its defeat."""

    as_x: float
    as_o: float


class Judged(NamedTuple):
    """Everything the judges say of a policy."""

    optimal: Sides
    random: Sides
    exploitability: Exploitability
    bad_moves: float

    def row(self) -> dict[str, float]:
        """Flat figures for a line of metrics; results are of both sides together."""
        found = {"bad_moves": self.bad_moves}
        found |= {f"exploitability_{k}": v for k, v in self.exploitability._asdict().items()}
        for name, sides in (("optimal", self.optimal), ("random", self.random)):
            found |= {f"{name}_{k}": v for k, v in sides.mean._asdict().items()}
            for side, results in sides._asdict().items():
                found |= {f"{name}_{side}_{k}": v for k, v in results._asdict().items()}
        return found


def probabilities(policy: ArrayLike) -> NDArray[np.float64]:
    """A policy as float64 [S, 9].

    Raises:
        InputError: another shape, a move that is not legal, or rows that do not sum to 1.
    """
    legal, over = game.legal(), game.states().over
    table: NDArray[Any] = np.asarray(policy)
    if table.shape == over.shape:
        moves = np.where(over, 0, table).astype(np.int64)
        if ((moves < 0) | (moves >= game.CELLS)).any():
            raise InputError(
                f"the policy has moves of {moves.min()} to {moves.max()}: cells are 0 to 8."
            )
        table = np.eye(game.CELLS)[moves]
    if table.shape != legal.shape:
        raise InputError(
            f"the policy has the shape {list(table.shape)}: [{len(over)}], moves, or "
            f"{list(legal.shape)}, probabilities, are needed, in the order of game.states()."
        )
    table = np.where(over[:, None], 0, table.astype(np.float64))
    wrong = ~over & ((table * ~legal != 0).any(axis=1) | (table < 0).any(axis=1))
    wrong |= ~over & (abs(table.sum(axis=1) - 1) > 1e-6)
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(
            f"the policy gives state {at} the chances {table[at].tolist()}: they must sum to 1, "
            f"over the free cells {np.flatnonzero(legal[at]).tolist()} alone."
        )
    return table


def uniform(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Equal chances of the moves of a mask [S, 9]."""
    return mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)


def outcomes(x: NDArray[np.float64], o: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chances [S, 3] that X wins, nobody does, O wins, from every state; x, o: chances of moves."""
    known, after = game.states(), game.children()
    found = np.eye(3)[np.array([DRAW, X_WINS, O_WINS])[known.winner]]
    moves = np.where((known.mover == 1)[:, None], x, o)
    for ply in reversed(game.plies()):
        open_ = ~known.over[ply]
        expected = (moves[ply][:, :, None] * found[after[ply]]).sum(axis=1)
        found[ply][open_] = expected[open_]
    return found


def against(policy: ArrayLike, opponent: ArrayLike) -> Sides:
    """Results of a policy against another, exact."""
    mine, theirs = probabilities(policy), probabilities(opponent)
    as_x, as_o = outcomes(mine, theirs)[0], outcomes(theirs, mine)[0]
    return Sides(Results(*map(float, as_x)), Results(*map(float, as_o[::-1])))


def against_optimal(policy: ArrayLike) -> Sides:
    """Results against minimax, which draws lots among its optimal moves."""
    return against(policy, uniform(game.optimal().moves))


def against_random(policy: ArrayLike) -> Sides:
    """Results against an opponent that draws lots among all legal moves."""
    return against(policy, uniform(game.legal()))


def best_response(policy: ArrayLike) -> Exploitability:
    """The chances of losing to the opponent that does best against just this policy."""
    mine = probabilities(policy)
    return Exploitability(*(_worst(mine, side) for side in (1, 2)))


def _worst(mine: NDArray[np.float64], side: int) -> float:
    """The chance that a policy with one side loses where its opponent may do anything."""
    known, after = game.states(), game.children()
    lost = (known.winner == 3 - side).astype(np.float64)
    for ply in reversed(game.plies()):
        open_ = ~known.over[ply]
        found = lost[after[ply]]
        own = (mine[ply] * found).sum(axis=1)
        other = np.where(after[ply] >= 0, found, 0).max(axis=1)
        lost[ply][open_] = np.where(known.mover[ply] == side, own, other)[open_]
    return float(lost[0])


def bad_moves(policy: ArrayLike) -> float:
    """In how many of the 4,520 states the move is not optimal; of chances their sum."""
    return float((probabilities(policy) * ~game.optimal().moves).sum())


def judge(policy: ArrayLike) -> Judged:
    """What all of them say."""
    table = probabilities(policy)
    return Judged(
        against_optimal(table), against_random(table), best_response(table), bad_moves(table)
    )
