"""Self-play of a chunk, and matches between players: everything that asks the games and the search.

Letters: B games side by side, n positions, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.selfplay import alphabeta, rewards, v1
from experiments.selfplay.games import Boards
from experiments.selfplay.operations import Draws, Evaluate, RootStep
from experiments.selfplay.record import Buffer
from experiments.selfplay.search import Search, Trees
from experiments.selfplay.settings import Settings
from experiments.selfplay.shards import Games

# boards, chance -> actions int32 [B]; what it says of games that are over is not read
Player = Callable[[Boards, np.random.Generator], NDArray[np.int32]]
MISSES = 200  # openings in a row that have been there before: then no others are looked for


def chunk(settings: Settings, evaluate: Evaluate, games: int, seed: int) -> Games:
    """Complete games of a network against itself."""
    s = settings
    options = s.search(s.noise)._asdict()
    del options["simulations"], options["depth"]
    found = v1.play_games(
        s.game, evaluate, games=games, simulations=s.simulations, batch=games, seed=seed,
        temperature_plies=s.temperature_plies, depth=s.depth, **options,
    )  # fmt: skip
    target = rewards.targets(s.game, s.reward, found)
    target += np.float32(s.bootstrap) * (found.root - target)
    return Games(
        state=found.state,
        visits=found.policy,
        value=found.value,
        target=target,
        soft=found.soft,
        mover=found.mover,
        legal=np.packbits(found.legal, axis=1),
        game=found.game,
    )


def random_player(boards: Boards, chance: np.random.Generator) -> NDArray[np.int32]:
    """Draws lots among the legal actions."""
    legal = boards.legal()
    return np.where(legal, chance.random(legal.shape), -1).argmax(axis=1).astype(np.int32)


def alphabeta_player(depth: int) -> Player:
    """Alpha-beta search of connect four, so many moves ahead."""

    def move(boards: Boards, chance: np.random.Generator) -> NDArray[np.int32]:
        planes = boards.observe()[:, : 2 * alphabeta.CELLS]
        keys = chance.integers(0, 1 << 63, len(planes), np.uint64)
        return alphabeta.best(planes, depth, keys)[0]

    return move


def policy_player(evaluate: Evaluate) -> Player:
    """The legal action of the largest logit, without search."""

    def move(boards: Boards, chance: np.random.Generator) -> NDArray[np.int32]:
        legal = boards.legal()
        logits, _ = evaluate(boards.observe(), legal)
        return np.where(legal, logits, -np.inf).argmax(axis=1).astype(np.int32)

    return move


class Searcher:
    """Searches anew from boards as they stand, without noise and without what earlier searches have
    found; the most visited action is its move."""

    def __init__(self, evaluate: Evaluate, search: Search) -> None:
        self._asked, self.evaluate = evaluate, v1.Evaluation(evaluate)
        self.search = search._replace(noise=0.0, reuse=False)

    def __call__(
        self, boards: Boards
    ) -> tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.float32]]:
        """Visits [B, A], actions [B] and values [B] for the mover; 0 where the game is over."""
        slots = np.flatnonzero(boards.over == 0).astype(np.int32)
        visits = np.zeros((boards.count, boards.game.actions), np.uint16)
        actions, values = np.zeros(boards.count, np.int32), np.zeros(boards.count, np.float32)
        if len(slots):
            policy = np.zeros((len(slots), boards.game.actions), np.uint16)
            seek = self.deep if self.search.depth > 1 else self.shallow
            actions[slots], values[slots] = seek(boards, slots, policy)
            visits[slots] = policy
        return visits, actions, values

    def deep(
        self, boards: Boards, slots: NDArray[np.int32], policy: NDArray[np.uint16]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """By trees."""
        plies = boards.facts["plies"][slots].astype(np.int32)
        trees, draws = Trees(boards, self.search), Draws(0, slots, plies)
        trees.run(slots, draws, self.evaluate)
        return trees.finish(slots, draws, np.zeros(len(slots), np.float32), policy)

    def shallow(
        self, boards: Boards, slots: NDArray[np.int32], policy: NDArray[np.uint16]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """By root-PUCT."""
        player = v1.Player(boards.game, self._asked, self.search, seed=0, temperature_plies=0)
        step = RootStep(boards, self.search, player.shown, seed=0, temperature_plies=0)
        buffer = Buffer(boards.game, boards.count, games=1)
        buffer.append(len(slots))
        step.roots(slots, np.arange(boards.count, dtype=np.int32), buffer)
        player.root_search(step, buffer, v1.nothing)
        step.choose(buffer)
        policy[step.legal[: len(slots)]] = buffer.policy(step.n)
        return step.chosen[: len(slots)], buffer.view("root")


def search_player(evaluate: Evaluate, search: Search) -> Player:
    """The move of a search."""
    searcher = Searcher(evaluate, search)

    def move(boards: Boards, chance: np.random.Generator) -> NDArray[np.int32]:
        return searcher(boards)[1]

    return move


def draw_openings(
    game: str, count: int, moves: tuple[int, int], chance: np.random.Generator
) -> list[list[int]]:
    """Lines of legal random actions that lead to different positions, none of them over.

    moves: the least and the most of a line. Where no others are found, they come again.
    """
    found: dict[bytes, list[int]] = {}
    missed = 0
    while len(found) < count and missed < MISSES:
        board, line = Boards(game, 1), []
        for _ in range(chance.integers(moves[0], moves[1] + 1)):
            if not board.over[0]:
                action = random_player(board, chance)
                line.append(int(action[0]))
                board.step(action)
        seen = board.observe().tobytes() + board.to_move.tobytes()
        missed += 1
        if not board.over[0] and seen not in found:
            found[seen], missed = line, 0
    lines = list(found.values())
    return [lines[i % len(lines)] for i in range(count)]


def placed(game: str, lines: Sequence[Sequence[int]]) -> Boards:
    """A board after each of some lines of actions."""
    boards = Boards(game, len(lines))
    for row, line in enumerate(lines):
        one = Boards(game, 1)
        for action in line:
            one.step([action])
        boards.put(row, one, 0)
    return boards


def match(
    game: str, first: Player, second: Player, *, games: int, openings: tuple[int, int], seed: int
) -> dict[str, Any]:
    """Results of `first`, in pairs of games from equal openings: each side moves first once.

    openings: the least and the most random moves of an opening.
    """
    pairs, chance = (games + 1) // 2, np.random.default_rng(seed)
    lines = draw_openings(game, pairs, openings, chance)
    boards = placed(game, 2 * lines)
    mine = np.repeat([1, -1], pairs) * boards.to_move  # the side of `first`
    while not boards.over.all():
        by_first = boards.to_move == mine
        boards.step(np.where(by_first, first(boards, chance), second(boards, chance)))
    results = boards.result.astype(int) * mine
    wins, losses = int((results > 0).sum()), int((results < 0).sum())
    draws = 2 * pairs - wins - losses
    return {
        "games": 2 * pairs, "openings": len({tuple(line) for line in lines}), "wins": wins,
        "draws": draws, "losses": losses, "win_ratio": wins / (2 * pairs),
        "score": (wins + draws / 2) / (2 * pairs),
    }  # fmt: skip
