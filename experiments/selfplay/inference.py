"""What a run's network says of a position that moves lead to."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eggroll.errors import InputError, shown
from experiments.selfplay import play
from experiments.selfplay.games import Boards
from experiments.selfplay.pipeline import Run


def position(game: str, moves: list[int]) -> Boards:
    """One board after moves.

    Raises:
        InputError: a move that is not legal, or the game is over.
    """
    boards = Boards(game, 1)
    for i, move in enumerate(moves):
        legal = np.flatnonzero(boards.legal()[0])
        if move not in legal:
            raise InputError(
                f"--moves has {move} in place {i + 1}: "
                + (f"{', '.join(map(str, legal))} are legal there." if len(legal) else
                   "the game is over there, leave it out.")
            )  # fmt: skip
        boards.step(np.array([move], np.int32))
    if boards.over[0]:
        raise InputError(f"--moves {','.join(map(str, moves))} ends the game: give fewer.")
    return boards


def answer(folder: Path, moves: list[int], iteration: int = -1, simulations: int = -1) -> str:
    """A table of the legal actions: the policy's share, and the search's visits.

    iteration: of the network, -1 for the newest; simulations: 0 for no search, -1 for the run's.

    Raises:
        InputError: no such network or position.
    """
    for name, given in (("iteration", iteration), ("simulations", simulations)):
        if given < -1:
            raise InputError(f"--{name} is {given}: 0 or more is needed.")
    run = Run(folder)
    k = run.trained if iteration < 0 else iteration
    if k > run.trained:
        raise InputError(f"--iteration is {shown(k)}: the run has networks 0 to {run.trained}.")
    evaluate, boards = run.learner(k).evaluator(), position(run.settings.game, moves)
    legal = boards.legal()
    logits, value = evaluate(boards.observe(), legal)
    actions = np.flatnonzero(legal[0])
    odds = np.exp(logits[0, actions] - logits[0, actions].max())
    odds /= odds.sum()
    count = run.settings.simulations if simulations < 0 else simulations
    lines = [f"network {k} of {folder}: value {value[0]:+.3f} for the mover"]
    if not count:
        rows = [f"  action {a}: policy {p:.1%}" for a, p in zip(actions, odds, strict=True)]
        return "\n".join([*lines, *rows])
    search = run.settings.search()._replace(simulations=count)
    visits, _, root = play.Searcher(evaluate, search)(boards)
    lines[0] += f", {root[0]:+.3f} after {count} simulations"
    rows = [
        f"  action {a}: policy {p:.1%}, visits {int(visits[0, a])}"
        for a, p in zip(actions, odds, strict=True)
    ]
    return "\n".join([*lines, *rows])
