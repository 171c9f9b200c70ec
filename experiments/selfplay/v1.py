"""Pipeline v1: games side by side in arrays, from the first move to the targets of training.

A step: all boards in play are shown and evaluated, searched, moved, and their games finished where
they ended. Every part is one native call for all boards; Python counts steps and hands arrays on.
A game draws its chance from (seed, its number, its plies) alone and is evaluated row by row, so
that its moves do not depend on the games beside it.

Letters: B boards, R of them in play, A actions, F values of an observation, n positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.selfplay.games import Boards, Game, find, pointer
from experiments.selfplay.operations import IN_PLACE, Draws, Evaluate, RootStep
from experiments.selfplay.operations import library as operations
from experiments.selfplay.search import Search, Trees

MOST_ROWS = 1 << 18
SEGMENTS = ("evaluate", "search", "pack_writeback", "step", "finalize")


class Trajectories(NamedTuple):
    """All positions of all games, game by game, each game's in the order of its moves.

    state: int8 [n, F] of 0 and 1, from the mover; policy: uint16 [n, A], visits, or with a Gumbel
    root the improved policy in 1/65,535; value: int8 [n], the result for the mover; soft: float32
    [n], the soft value of the last position for the mover; legal: bool [n, A]; game: int32 [n];
    action: int16 [n]; root: float32 [n], what the search found for the mover; mover: int8 [n], 1
    White, -1 Black. For rewards: material: float32 [n], the soft value for White after the move;
    still: int16 [n], the plies since a capture after the move.
    """

    state: NDArray[np.int8]
    policy: NDArray[np.uint16]
    value: NDArray[np.int8]
    soft: NDArray[np.float32]
    legal: NDArray[np.bool_]
    game: NDArray[np.int32]
    action: NDArray[np.int16]
    root: NDArray[np.float32]
    mover: NDArray[np.int8]
    material: NDArray[np.float32]
    still: NDArray[np.int16]


class Telemetry:
    """Seconds of the segments of every step. It reads a clock and nothing else; without it a step
    reads none."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.outcomes = np.zeros(3, np.int64)  # games that White won, drew, lost
        self.evaluations = 0

    def begin(self) -> None:
        """A step begins."""
        self.steps.append(dict.fromkeys(SEGMENTS, 0.0))

    @contextmanager
    def segment(self, name: str) -> Iterator[None]:
        """What is done within counts for a segment."""
        began = time.perf_counter()
        yield
        self.steps[-1][name] += time.perf_counter() - began


class Buffer:
    """Positions in the order of their steps, in memory that grows by doubling from MOST_ROWS on."""

    def __init__(self, game: Game, boards: int, games: int) -> None:
        self.game, self.size = game, 0
        self.room = min(
            games * game.longest, MOST_ROWS
        )  # memory is taken page by page, as it fills
        self.arrays = {
            name: np.empty((self.room, *shape), dtype) for name, (dtype, shape) in self.kinds()
        }
        # Rows of the moves of every board's game, and their number.
        self.rows = np.empty((boards, game.longest), np.int32)
        self.lengths = np.zeros(boards, np.int32)
        self.outcomes = np.zeros(3, np.int64)

    def kinds(self) -> list[tuple[str, tuple[Any, tuple[int, ...]]]]:
        F, A = self.game.inputs, self.game.actions
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "state": (np.int8, (F,)), "policy": (np.uint16, (A,)), "value": (np.int8, ()),
            "soft": (np.float32, ()), "legal": (np.bool_, (A,)), "game": (np.int32, ()),
            "action": (np.int16, ()), "root": (np.float32, ()), "mover": (np.int8, ()),
            "material": (np.float32, ()), "still": (np.int16, ()),
        }  # fmt: skip
        assert tuple(shapes) == Trajectories._fields
        return list(shapes.items())

    def append(self, slots: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """Views of new rows, one for every board of `slots`, to be filled."""
        first, self.size = self.size, self.size + len(slots)
        if self.size > self.room:
            self.room = 2 * self.size
            for name, array in self.arrays.items():
                wider = np.empty((self.room, *array.shape[1:]), array.dtype)
                wider[:first] = array[:first]
                self.arrays[name] = wider
        self.rows[slots, self.lengths[slots]] = np.arange(first, self.size, dtype=np.int32)
        self.lengths[slots] += 1
        return {name: array[first : self.size] for name, array in self.arrays.items()}

    def finalize(self, step: RootStep, ended: NDArray[np.int32]) -> None:
        """Fills the targets of games that ended in a step, by finalize_trajectory_inplace."""
        operations().finalize_trajectory_inplace(
            len(ended), step.finished_address, self.game.longest, pointer(self.rows),
            pointer(self.lengths), *(pointer(self.arrays[n]) for n in ("mover", "value", "soft")),
            pointer(self.outcomes),
        )  # fmt: skip
        self.lengths[ended] = 0

    def trajectories(self) -> Trajectories:
        """All rows, game by game."""
        order = np.argsort(self.arrays["game"][: self.size], kind="stable")
        return Trajectories(**{name: array[order] for name, array in self.arrays.items()})


def play_games(
    game: str,
    evaluate: Evaluate,
    *,
    games: int,
    simulations: int,
    batch: int,
    seed: int,
    temperature_plies: int,
    depth: int = 1,
    first: int = 0,
    telemetry: Telemetry | None = None,
    in_place: int = IN_PLACE,
    **options: Any,
) -> Trajectories:
    """Plays whole games by self-play, `batch` of them side by side.

    evaluate: states int8 [n, F], legal bool [n, A] -> logits float32 [n, A], values float32 [n]
    for the mover. The first `temperature_plies` moves of a game are drawn by their visits, later
    ones are the most visited. depth and `options` are of Search. Games are numbered from `first`;
    their chance is that of (seed, number).

    Raises:
        InputError: an unknown game, or a number out of range.
    """
    kind, search = find(game), Search(simulations, depth, **options)
    search.check(kind.longest)
    for name, value in (("games", games), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name} is {value}: at least 1 is needed.")
    if not 0 <= seed < 1 << 63:
        raise InputError(f"seed is {seed}: 0 to 2^63 - 1 is allowed.")
    return Player(kind, evaluate, search, seed, temperature_plies).play(
        games, min(batch, games), first, in_place, telemetry
    )


class Player:
    """Plays games of one kind by one search. steps, buffers: what does the work, see stages.py."""

    steps: type[RootStep] = RootStep
    buffers: type[Buffer] = Buffer

    def __init__(
        self, game: Game, evaluate: Evaluate, search: Search, seed: int, temperature_plies: int
    ) -> None:
        self.game, self.evaluate, self.search = game, Evaluation(evaluate), search
        self.seed, self.temperature_plies = seed, temperature_plies

    def play(
        self, games: int, batch: int, first: int, in_place: int, telemetry: Telemetry | None
    ) -> Trajectories:
        """Games from `first` on, `batch` at a time: a board whose game ended takes the next."""
        boards, buffer = Boards(self.game.name, batch), self.buffers(self.game, batch, games)
        step, trees = self.steps(boards), None
        if self.search.depth > 1:
            trees = Trees(boards, self.search)
        numbers = np.arange(first, first + batch, dtype=np.int32)
        upcoming, last = first + batch, first + games
        slots = np.arange(batch, dtype=np.int32)
        spent = telemetry.segment if telemetry else nothing
        while len(slots):
            if telemetry:
                telemetry.begin()
            ended = self.one_step(step, trees, buffer, slots, numbers, in_place, spent)
            if not len(ended):
                continue
            with spent("finalize"):
                buffer.finalize(step, ended)
            fresh = ended[: max(0, last - upcoming)]
            numbers[fresh] = np.arange(upcoming, upcoming + len(fresh))
            upcoming += len(fresh)
            boards.reset(fresh)
            if trees:
                trees.forget(ended)
            if len(fresh) < len(ended):
                slots = np.setdiff1d(slots, ended[len(fresh) :]).astype(np.int32)
        if telemetry:
            telemetry.outcomes += buffer.outcomes
        return buffer.trajectories()

    def one_step(
        self,
        step: RootStep,
        trees: Trees | None,
        buffer: Buffer,
        slots: NDArray[np.int32],
        numbers: NDArray[np.int32],
        in_place: int,
        spent: Callable[[str], Any],
    ) -> NDArray[np.int32]:
        """Searches and plays a move on the boards `slots`; gives those whose games ended."""
        with spent("pack_writeback"):
            row = buffer.append(slots)
            row["game"][:] = numbers[slots]
            row["mover"][:] = step.boards.to_move[slots]
            plies = step.boards.facts["plies"][slots].astype(np.int32)
            temperatures = (plies < self.temperature_plies).astype(np.float32)
            draws = Draws(self.seed, row["game"], plies)
            step.roots(slots, draws, row["state"], row["legal"])
        if trees:
            with spent("search"):
                trees.run(slots, draws, self.evaluate)
                chosen, row["root"][:] = trees.finish(slots, draws, temperatures, row["policy"])
                trees.advance(slots, chosen)
        else:
            row["root"][:] = self.root_search(step, row, spent)
            with spent("pack_writeback"):
                chosen = step.choose(temperatures, row["policy"])
        row["action"][:] = chosen
        with spent("step"):
            return step.step(chosen, row["material"], row["still"], in_place)

    def root_search(
        self, step: RootStep, row: dict[str, NDArray[Any]], spent: Callable[[str], Any]
    ) -> NDArray[np.float32]:
        """Root-PUCT: the roots' values, float32 [R]; visits stay with the step."""
        values_of = getattr(self.evaluate, "values", None)
        full = self.search.full or values_of is None
        with spent("evaluate"):
            logits, _ = self.evaluate(row["state"], row["legal"])
        with spent("pack_writeback"):
            states, legal = step.children(full)
        with spent("evaluate"):
            values = np.zeros(0, np.float32)
            if len(states):
                values = self.evaluate(states, legal)[1] if full else values_of(states)
        with spent("search"):
            s = self.search
            return step.allocate(logits, values, (s.noise, s.shape), s.simulations, s.exploration)


@contextmanager
def nothing(name: str) -> Iterator[None]:
    """A segment that nobody asks for."""
    yield


class Evaluation:
    """A caller's evaluation, whose answers are contiguous float32 of the right shape.

    Raises InputError: they are of another shape, or no numbers.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.native = getattr(evaluate, "native", None)
        if (values := getattr(evaluate, "values", None)) is not None:
            self.values = lambda states: self._values(values(states), len(states))

    def __call__(
        self, states: NDArray[np.int8], legal: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits, values = self._evaluate(states, legal)
        logits = np.ascontiguousarray(logits, np.float32)
        if logits.shape != legal.shape:
            raise InputError(
                f"evaluate gave logits {list(logits.shape)} for {list(legal.shape)} legal actions: "
                "they must have the same shape."
            )
        return logits, self._values(values, len(states))

    def _values(self, values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        values = np.ascontiguousarray(values, np.float32)
        if values.shape != (count,) or not np.isfinite(values).all():
            raise InputError(
                f"evaluate gave values {list(values.shape)} for {count} positions: finite numbers "
                f"[{count}] are needed."
            )
        return values
