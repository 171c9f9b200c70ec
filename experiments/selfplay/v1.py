"""Pipeline v1: games side by side in arrays, from the first move to the targets of training.

A step: all boards in play are shown and evaluated, searched, moved, and their games finished where
they ended. Every part is one native call for all boards; Python counts steps and hands arrays on.
A game draws its chance from (seed, its number, its plies) alone and is evaluated row by row, so
that its moves do not depend on the games beside it.

Letters: B boards, R of them in play, A actions, F values of an observation, n positions.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.selfplay.games import Boards, Game, address, find
from experiments.selfplay.operations import BITS, IN_PLACE, VALUES, WHOLE, Evaluate, RootStep
from experiments.selfplay.record import Buffer, Trajectories
from experiments.selfplay.search import Search, Trees

SEGMENTS = ("evaluate", "search", "pack_writeback", "step", "finalize")


class Segment:
    """What is done within counts for a segment of the step under way."""

    def __init__(self, steps: list[dict[str, float]], name: str) -> None:
        self.steps, self.name = steps, name

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.steps[-1][self.name] += time.perf_counter() - self.began


class Telemetry:
    """Seconds of the segments of every step. It reads a clock and nothing else; without it a step
    reads none."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.outcomes = np.zeros(3, np.int64)  # games that White won, drew, lost
        self.segment = {name: Segment(self.steps, name) for name in SEGMENTS}.__getitem__

    def begin(self) -> None:
        """A step begins."""
        self.steps.append(dict.fromkeys(SEGMENTS, 0.0))


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
        self.shown = WHOLE if search.full or not self.evaluate.alone else self.evaluate.shown
        self.seed, self.temperature_plies = seed, temperature_plies

    def play(
        self, games: int, batch: int, first: int, in_place: int, telemetry: Telemetry | None
    ) -> Trajectories:
        """Games from `first` on, `batch` at a time: a board whose game ended takes the next."""
        boards, buffer = Boards(self.game.name, batch), self.buffers(self.game, batch, games)
        step = self.steps(boards, self.search, self.shown, self.seed, self.temperature_plies)
        trees = Trees(boards, self.search) if self.search.depth > 1 else None
        if self.evaluate.native:  # which is asked by addresses, so that shapes are looked at here
            self.evaluate(boards.observe()[:1], boards.legal()[:1])
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
                begun = buffer.finalize(step, len(ended), numbers, upcoming, last)
            upcoming += begun
            if trees:
                trees.forget(ended)
            if begun < len(ended):
                slots = np.setdiff1d(slots, ended[begun:]).astype(np.int32)
        if telemetry:
            telemetry.outcomes += buffer.outcomes
        return buffer.trajectories(step.calls)

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
        R = len(slots)
        with spent("pack_writeback"):
            buffer.append(R)
            step.roots(slots, numbers, buffer)
        if trees:
            with spent("search"):
                trees.run(slots, step.draws, self.evaluate)
                policy = np.empty((R, self.game.actions), np.uint16)
                step.chosen[:R], buffer.view("root")[:] = trees.finish(
                    slots, step.draws, step.temperatures, policy
                )
                trees.advance(slots, step.chosen)
            buffer.policy(step.n)[:] = policy[step.legal[:R]]
            buffer.view("action")[:] = step.chosen[:R]
        else:
            self.root_search(step, buffer, spent)
            with spent("pack_writeback"):
                step.choose(buffer)
        with spent("step"):
            return step.step(buffer, in_place)

    def root_search(self, step: RootStep, buffer: Buffer, spent: Callable[[str], Any]) -> None:
        """Root-PUCT: the roots' values go to the buffer, visits stay with the step."""
        with spent("evaluate"):
            logits = self.evaluate.policy(step.seen, step.legal[: step.R])
        with spent("pack_writeback"):
            states, legal = step.children()
        with spent("evaluate"):
            values = np.zeros(0, np.float32)
            if len(states):
                if legal is None:
                    values = self.evaluate.values(states)
                else:
                    values = self.evaluate(states, legal)[1]
        with spent("search"):
            step.allocate(logits, values, buffer.view("root"))


NOTHING = nullcontext()


def nothing(name: str) -> AbstractContextManager[None]:
    """A segment that nobody asks for."""
    return NOTHING


class Evaluation:
    """A caller's evaluation, whose answers are contiguous float32 of the right shape.

    native: the addresses of a function in C++ and of its network, which are asked without coming
    back to Python, up to `rows` positions in a call; alone: whether it gives values alone; shown:
    what shows positions best then.

    Raises InputError: answers are of another shape, or values no numbers.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._values = getattr(evaluate, "values", None)
        self.alone = self._values is not None
        self.native = getattr(evaluate, "native", None)
        self.rows: int = getattr(evaluate, "rows", 1 << 30)
        bits = getattr(evaluate, "bits", None)
        self.shown = BITS if bits else VALUES
        # By the kind of what shows positions: a function, and its network.
        self._asked = {
            np.dtype(kind): (FUNCTION(asked[0]), ctypes.c_void_p(asked[1]))
            for kind, asked in ((np.int8, self.native), (np.uint64, bits))
            if asked
        }

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
        return logits, checked(values, len(states))

    def policy(self, states: NDArray[Any], legal: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Logits alone, float32 [n, A], of states as they are shown."""
        if not self.native:
            return self(states, legal)[0]
        logits = np.empty(legal.shape, np.float32)
        self._ask(states, logits)
        return logits

    def values(self, states: NDArray[Any]) -> NDArray[np.float32]:
        """Values alone, float32 [n], of states as they are shown."""
        found = self._ask(states, None) if self.native else self._values(states)
        return checked(found, len(states))

    def _ask(self, states: NDArray[Any], logits: NDArray[np.float32] | None) -> NDArray[np.float32]:
        n, values = len(states), np.empty(len(states), np.float32)
        function, net = self._asked[states.dtype]
        rows, found = address(states), address(values)
        width, wide = states.strides[0], 0
        policy = None
        if logits is not None:
            policy, wide = address(logits), logits.strides[0]
        for first in range(0, n, self.rows):
            function(
                net, min(self.rows, n - first), rows + first * width,
                policy and policy + first * wide, found + 4 * first,
            )  # fmt: skip
        return values


# Rows of states int8 [n, F] -> logits float32 [n, A] or NULL, values float32 [n], by a network.
FUNCTION = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


def checked(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Values as contiguous float32.

    Raises:
        InputError: they are not as many, or no finite numbers.
    """
    values = np.ascontiguousarray(values, np.float32)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise InputError(
            f"evaluate gave values {list(values.shape)} for {count} positions: finite numbers "
            f"[{count}] are needed."
        )
    return values
