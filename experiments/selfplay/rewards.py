"""What the value learns: results alone, or with rewards on the way (RWD) in Liuzhou chess.

`soft` of a position is what its stones are worth: tan(2 d / 18) within [-1, 1], d being one side's
stones less the other's, 0 in games where nothing is taken. From the first player's side (Black in
Liuzhou chess), step t of a game of T steps earns

    r_t = clip(0.20 (soft after - soft before) - 0.002 [24 plies or more without a capture], +-0.2)

`document`: the target is the result + r_t + ... + r_(T-1) for the first player, and its negative
for the second. That is an error of the source document, twice: what the first player pays for
stalling is paid out to the second, so the second does well to stall; and sums leave [-1, 1].
`mended`: only the change of soft is handed over from one side to the other; both pay for stalling;
the sum is held within [-1, 1].

Letters: n positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DENSE, ANTI_DRAW, PATIENCE, BOUND = 0.20, -0.002, 24, 0.2
LIUZHOU = "liuzhou"

Floats = NDArray[np.float64]


class Course(NamedTuple):
    """The courses of games, a row for each step, game by game.

    game: int [n]; side: int8 [n], 1 where the first player moves, else -1; result: int8 [n], of the
    first player; change: float64 [n], of soft over the step, for the first player; still: int [n],
    plies without a capture after the step.
    """

    game: NDArray[Any]
    side: NDArray[np.int8]
    result: NDArray[np.int8]
    change: Floats
    still: NDArray[np.int64]


def targets(game: str, reward: str, found: Any) -> NDArray[np.float32]:
    """The value's targets for the mover, float32 [n], of Trajectories in the order of their games.

    The document's may leave [-1, 1].
    """
    if reward == "terminal" or game != LIUZHOU:
        return found.value.astype(np.float32)
    course = follow(found)
    made = {"document": document, "mended": mended}[reward](course)
    return made.astype(np.float32)


def document(course: Course) -> Floats:
    """The source document's targets."""
    step = course.change * DENSE + ANTI_DRAW * (course.still >= PATIENCE)
    to_come = remaining(np.clip(step, -BOUND, BOUND), course.game)
    return course.side * (course.result + to_come)


def mended(course: Course) -> Floats:
    """Targets that pay nobody for stalling and stay within [-1, 1]."""
    dense = remaining(np.clip(course.change * DENSE, -BOUND, BOUND), course.game)
    stalled = remaining(ANTI_DRAW * (course.still >= PATIENCE), course.game)
    return np.clip(course.side * (course.result + dense) + stalled, -1, 1)


def remaining(steps: Floats, game: NDArray[Any]) -> Floats:
    """The sum of each step and those after it in the same game."""
    sums = np.cumsum(steps[::-1])[::-1]
    last = np.append(game[1:] != game[:-1], True)
    beyond = np.append(sums[1:], 0.0)[last]  # of all games after each
    return sums - np.repeat(beyond, lengths(game))


def lengths(game: NDArray[Any]) -> NDArray[np.int64]:
    """Steps of each game."""
    first = np.flatnonzero(np.append(True, game[1:] != game[:-1]))
    return np.diff(np.append(first, len(game)))


def follow(found: Any) -> Course:
    """The courses of games of Liuzhou chess, of Trajectories; Black begins."""
    game, first = found.game, np.append(True, found.game[1:] != found.game[:-1])
    after = -found.material.astype(np.float64)  # of White, so of Black
    before = np.where(first, 0, np.append(0, after[:-1]))
    side = -found.mover
    return Course(game, side, found.value * side, after - before, found.still.astype(np.int64))
