"""Tic-tac-toe: all reachable states, their moves, and what perfect play makes of them.

A board is 9 cells row by row: 0 empty, 1 X, 2 O; X begins. Letters: S = 5,478 states that can be
reached, ordered by the number of stones, so that state 0 is the empty board; 4,520 are not over.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

CELLS = 9
INPUTS = 3 * CELLS
LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
)
WEIGHTS = 3 ** np.arange(CELLS)  # a board's code is boards @ WEIGHTS


class States(NamedTuple):
    """All reachable states.

    boards: uint8 [S, 9]; mover: uint8 [S], 1 or 2, whose turn it is or would be; over: bool [S];
    winner: uint8 [S], 0 for nobody.
    """

    boards: NDArray[np.uint8]
    mover: NDArray[np.uint8]
    over: NDArray[np.bool_]
    winner: NDArray[np.uint8]


class Optimal(NamedTuple):
    """Perfect play. value: int8 [S], 1, 0 or -1 for the mover; moves: bool [S, 9], those that keep
    it, none where the game is over."""

    value: NDArray[np.int8]
    moves: NDArray[np.bool_]


def stones(boards: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Number of stones on boards [..., 9]."""
    return np.count_nonzero(boards, axis=-1)


def movers(boards: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """1 where X is to move on boards [..., 9], else 2."""
    return (1 + stones(boards) % 2).astype(np.uint8)


def winners(boards: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """1 or 2 where boards [..., 9] have three in a line, else 0."""
    lines = boards[..., LINES]
    first = lines[..., 0]
    complete = (lines == first[..., None]).all(axis=-1) * first
    return complete.max(axis=-1).astype(np.uint8)


@cache
def states() -> States:
    """All S states, found from the empty board, a ply at a time."""
    ply = np.zeros((1, CELLS), np.uint8)
    plies = []
    for player in [*[1, 2] * 5][:CELLS]:
        plies.append(ply)
        open_ = ply[winners(ply) == 0]
        at, cell = np.nonzero(open_ == 0)
        after = open_[at]
        after[np.arange(len(at)), cell] = player
        ply = after[np.unique(after @ WEIGHTS, return_index=True)[1]]
    boards = np.concatenate([*plies, ply])
    winner = winners(boards)
    over = (winner > 0) | (stones(boards) == CELLS)
    return States(boards, movers(boards), over, winner)


@cache
def codes() -> NDArray[np.int32]:
    """The state of a board's code, int32 [3^9]; -1 where it cannot be reached."""
    found = np.full(3**CELLS, -1, np.int32)
    boards = states().boards
    found[boards @ WEIGHTS] = np.arange(len(boards))
    return found


def index(boards: NDArray[np.uint8]) -> NDArray[np.int32]:
    """States of boards [..., 9]; -1 where they cannot be reached."""
    return codes()[boards @ WEIGHTS]


@cache
def legal() -> NDArray[np.bool_]:
    """Cells that may be moved to, bool [S, 9]; none where the game is over."""
    known = states()
    return (known.boards == 0) & ~known.over[:, None]


@cache
def children() -> NDArray[np.int32]:
    """The state after the mover's move, int32 [S, 9]; -1 where it is not legal."""
    known = states()
    found = np.full((len(known.boards), CELLS), -1, np.int32)
    at, cell = np.nonzero(legal())
    after = known.boards[at]
    after[np.arange(len(at)), cell] = known.mover[at]
    found[at, cell] = index(after)
    return found


@cache
def plies() -> list[slice]:
    """States of 0, 1, ... 9 stones."""
    ends = np.searchsorted(stones(states().boards), np.arange(CELLS + 2))
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


@cache
def optimal() -> Optimal:
    """Minimax over all states, from full boards back."""
    known, after = states(), children()
    value = np.where(known.winner == 0, 0, -1).astype(np.int8)  # the loser would be to move
    moves = np.zeros(after.shape, bool)
    for ply in reversed(plies()):
        worth = np.where(after[ply] >= 0, -value[after[ply]], -2)
        best = worth.max(axis=1)
        moves[ply] = (worth == best[:, None]) & (after[ply] >= 0)
        value[ply] = np.where(known.over[ply], value[ply], best)
    return Optimal(value, moves)


def observations(
    boards: NDArray[np.uint8], one: int = 1, dtype: DTypeLike = np.float32
) -> NDArray[np.generic]:
    """What the mover sees, [..., 27]: for each cell mine, theirs and 1, times `one`."""
    mine = movers(boards)[..., None]
    seen = np.stack([boards == mine, (boards > 0) & (boards != mine), boards < 3], axis=-1)
    return (seen.reshape(*boards.shape[:-1], INPUTS) * one).astype(dtype)


def greedy_moves(logits: NDArray[np.generic]) -> NDArray[np.int64]:
    """The legal move of the highest logit, the first of equals, for logits [S, 9] of all states;
    0 where the game is over."""
    lowest = np.iinfo(np.int64).min if logits.dtype.kind == "i" else -np.inf
    wide = logits.astype(np.int64 if logits.dtype.kind == "i" else np.float64)
    return np.where(legal(), wide, lowest).argmax(axis=1)
