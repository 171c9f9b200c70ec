"""What a network is worth: exact judges of tic-tac-toe, and matches."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eggroll.spec import rng
from experiments.selfplay import play
from experiments.selfplay.games import Boards
from experiments.selfplay.operations import Evaluate
from experiments.tictactoe import game as exact
from experiments.tictactoe import judges

if TYPE_CHECKING:
    from experiments.selfplay.pipeline import Run

# Random moves before a game of a match, the least and the most.
OPENINGS = {"tictactoe": (1, 3), "connect4": (2, 6), "liuzhou": (4, 8)}
DEPTH = 4  # of the alpha-beta search
MATCHES = 2  # the purpose of chance, after those of pipeline.py


def judge(run: Run, k: int, threads: int = 1) -> dict[str, Any]:
    """The figures of network k, without and with its search."""
    s, now = run.settings, run.learner(k, threads).evaluator()
    search = s.search()
    raw, searching = play.policy_player(now), play.search_player(now, search)
    matches = {"raw_against_random": (raw, play.random_player),
               "search_against_random": (searching, play.random_player)}  # fmt: skip
    before = max(k - s.eval_every, 0)
    if k:
        for name, other in (("previous", before), ("untrained", 0)):
            theirs = run.learner(other, threads).evaluator()
            matches[f"search_against_{name}"] = (
                searching, play.search_player(theirs, search),
            )  # fmt: skip
    if s.game == "connect4":
        theirs = play.alphabeta_player(DEPTH)
        matches["search_against_alphabeta"] = (searching, theirs)
        if s.long_search:
            longer = play.search_player(now, search._replace(simulations=s.long_search))
            matches["long_search_against_alphabeta"] = (longer, theirs)
    figures: dict[str, Any] = {"iteration": k, "previous": before, "step": k * s.updates}
    if s.game == "tictactoe":
        figures |= judges.judge(exact_moves(now)).row()
    for i, (name, (first, second)) in enumerate(matches.items()):
        seed = rng.key(s.seed, rng.CALLER, MATCHES, i)
        figures[name] = play.match(
            s.game, first, second, games=s.eval_games, openings=OPENINGS[s.game], seed=seed
        )
    return figures


@cache
def exact_states() -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Planes int8 [5478, F] and legal actions of all states, in the order of the exact judges."""
    known, after = exact.states(), exact.children()
    paths = {0: ()}
    for at in range(len(after)):
        for cell, child in enumerate(after[at]):
            if child >= 0:
                paths.setdefault(int(child), (*paths[at], cell))
    boards, stones = Boards("tictactoe", len(after)), exact.stones(known.boards)
    planes = boards.observe()
    for ply in range(exact.CELLS):
        reached = stones > ply
        legal = boards.legal().argmax(axis=1)
        step = [paths[at][ply] if reached[at] else legal[at] for at in range(len(after))]
        boards.step(np.array(step, np.int32))
        now = stones == ply + 1
        planes[now] = boards.observe()[now]
    return planes, exact.legal()


def exact_moves(evaluate: Evaluate) -> NDArray[np.int64]:
    """The greedy moves of a network in all states of tic-tac-toe."""
    planes, legal = exact_states()
    logits, _ = evaluate(planes, legal)
    return exact.greedy_moves(logits)


def sentence(figures: dict[str, Any]) -> str:
    """An evaluation in a line."""
    parts = []
    if "optimal_loss" in figures:
        parts.append(
            "raw policy {optimal_loss:.2%} lost to minimax, {random_loss:.2%} to random, "
            "exploitability {exploitability_as_x:.2f} {exploitability_as_o:.2f}, {bad_moves:.0f} "
            "bad moves".format(**figures)
        )
    for name, of in figures.items():
        if isinstance(of, dict):
            text = name.replace("_", " ")
            parts.append(f"{text} {of['wins']} won {of['draws']} drawn {of['losses']} lost")
    return "; ".join(parts)
