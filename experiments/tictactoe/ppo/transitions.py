"""What a learner met in its games, and generalised advantage estimation (GAE).

Letters: T transitions of the learner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Transitions(NamedTuple):
    """Moves of the learner, those of its opponents left out.

    observations: float32 [T, 27]; legal: bool [T, 9]; moves: int64 [T]; log_probs: float32 [T], of
    the moves when they were drawn; values: float32 [T], as estimated then; rewards: float32 [T], 0
    but for a game's last; last: bool [T], whether the game has no later one; game: int64 [T].
    """

    observations: NDArray[np.float32]
    legal: NDArray[np.bool_]
    moves: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    rewards: NDArray[np.float32]
    last: NDArray[np.bool_]
    game: NDArray[np.int64]


class Collected(NamedTuple):
    """Transitions, and how the learner's games ended: wins, draws, losses.

    rows: boards that networks evaluated, the opponent's included.
    """

    transitions: Transitions
    results: tuple[int, int, int]
    rows: int


class Losses(NamedTuple):
    """Means over an iteration's minibatches."""

    policy: float
    value: float
    entropy: float


class Iteration(NamedTuple):
    """What one iteration of PPO did; parts: seconds by part, where the backend measures them."""

    losses: Losses
    results: tuple[int, int, int]
    transitions: int
    rows: int
    multiply_adds: int
    parts: dict[str, float]


def regroup(found: Transitions) -> Transitions:
    """Transitions game by game, each game's in the order of its moves.

    Lockstep meets them move by move, all games at once. There the next transition belongs to
    another game, and GAE would take its value for that of the learner's next board.
    """
    order = np.argsort(found.game, kind="stable")
    return Transitions(*(part[order] for part in found))


def advantages(
    values: NDArray, rewards: NDArray, last: NDArray[np.bool_], discount: float, decay: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns [T] by GAE, of transitions that lie game by game."""
    found = np.zeros(len(values), np.float32)
    ahead = after = np.float32(0)
    for t in range(len(values) - 1, -1, -1):
        if last[t]:
            ahead = after = np.float32(0)
        delta = rewards[t] + np.float32(discount) * after - values[t]
        ahead = delta + np.float32(discount * decay) * ahead
        found[t], after = ahead, values[t]
    return found, found + values.astype(np.float32)
