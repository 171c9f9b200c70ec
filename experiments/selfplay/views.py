"""Views of a position: turned and mirrored boards that are the same game.

In view i a cell c shows what cell cells[i][c] has, and action a is the game's action
actions[i][a]. View 0 is the board as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.selfplay.games import GAMES


class Views(NamedTuple):
    """cells: int64 [views, cells]; actions: int64 [views, A]."""

    cells: NDArray[np.int64]
    actions: NDArray[np.int64]


@cache
def of(game: str, all_of_them: bool = True) -> Views:
    """The views of a game, or the first alone."""
    facts = GAMES[game]
    if not all_of_them:
        return Views(np.arange(facts.cells)[None], np.arange(facts.actions)[None])
    return MADE[game]()


def squares(side: int) -> NDArray[np.int64]:
    """The eight views of a square of cells, [8, side side]."""
    board = np.arange(side * side).reshape(side, side)
    turned = [np.rot90(b, i) for b in (board, board[:, ::-1]) for i in range(4)]
    return np.stack([b.reshape(-1) for b in turned])


def tictactoe() -> Views:
    cells = squares(3)
    return Views(cells, cells)


def connect4() -> Views:
    """The board and its mirror image; cells are column by column, an action is a column."""
    columns, rows = 7, 6
    board = np.arange(columns * rows).reshape(columns, rows)
    cells = np.stack([board.reshape(-1), board[::-1].reshape(-1)])
    return Views(cells, np.stack([np.arange(columns), np.arange(columns)[::-1]]))


def liuzhou() -> Views:
    """The eight views of its square; stones are placed, moved in four directions, and chosen."""
    side, middle = 6, 14
    steps = [-side, side, -1, 1]  # up, down, left, right
    cells = squares(side)
    actions = np.tile(np.arange(GAMES["liuzhou"].actions), (len(cells), 1))
    for view, turned in enumerate(cells):
        ways = [steps.index(turned[middle + step] - turned[middle]) for step in steps]
        actions[view, :36] = turned
        actions[view, 36:180] = (36 + 4 * turned[:, None] + np.array(ways)).reshape(-1)
        actions[view, 180:216] = 180 + turned
    return Views(cells, actions)


MADE: dict[str, Callable[[], Views]] = {
    "tictactoe": tictactoe, "connect4": connect4, "liuzhou": liuzhou,
}  # fmt: skip
