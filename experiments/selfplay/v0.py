"""Pipeline v0, the old way: one game at a time, objects, search trees in C++, lines of JSON.

A position is an object of Python, its legal moves a list of dicts; the C++ search (native/v0.cpp)
has a node object for every position it meets, sends its leaves to the network in batches through a
callback, and answers with visits. Every position of every game becomes a line of JSON, which
training has to parse. Searches are those of v1: equal evaluations give equal games.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from eggroll import native
from eggroll.errors import InputError
from experiments.selfplay import plain
from experiments.selfplay.games import NATIVE, find, pointer
from experiments.selfplay.operations import Evaluate
from experiments.selfplay.search import Search

LEAVES = 512  # of a batch
Line = dict[str, Any]


class State(ctypes.Structure):
    """State of state.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("white", "black", "marks")),
        *((name, ctypes.c_int8) for name in ("mover", "over", "result")),
        *((name, ctypes.c_uint8) for name in ("phase", "pending", "still")),
        ("plies", ctypes.c_uint16),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("simulations", "leaves", "depth")),
        ("exploration", ctypes.c_float),
        *((name, ctypes.c_double) for name in ("share", "shape")),
    )


_P = ctypes.c_void_p
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_int32, _P, _P, _P, _P)


@cache
def library() -> Any:
    """The functions of v0.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the cache cannot be written.
    """
    calls = native.build(NATIVE / "v0.cpp").handle
    calls.v0_new.restype = ctypes.c_void_p
    calls.v0_search.restype = ctypes.c_float
    return calls


def state_of(position: plain.Position) -> State:
    """A position as C++ has it."""
    pitch = (6, 7) if isinstance(position, plain.Connect4) else (1, 1)  # columns of 6 take 7 bits
    places = [cell // pitch[0] * pitch[1] + cell % pitch[0] for cell in range(len(position.board))]
    white, black = (
        sum(1 << at for at, stone in zip(places, position.board, strict=True) if stone == side)
        for side in (1, -1)
    )
    found = State(white, black, 0, position.mover, position.over, position.result)
    found.plies = position.plies
    if isinstance(position, plain.Liuzhou):
        found.marks = sum(1 << cell for cell in position.marks)
        found.phase = plain.PHASES.index(position.phase)
        found.pending, found.still = position.pending, position.still
    return found


class Tree:
    """The search of one game, in C++."""

    def __init__(self, game: str, evaluate: Evaluate, search: Search, seed: int) -> None:
        self.game, self.evaluate, self.seed = find(game), evaluate, seed
        self.calls = library()
        self._memory = ctypes.c_void_p(self.calls.v0_new(self.game.number))
        self._options = _Options(
            search.simulations, LEAVES if search.depth == 1 else search.leaves, search.depth,
            search.exploration, search.noise, search.shape,
        )  # fmt: skip
        self._callback = _Callback(self._answer)
        self._error: BaseException | None = None

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            self.calls.v0_delete(self._memory)

    def _answer(self, n: int, states: int, legal: int, logits: int, values: int) -> None:
        """Evaluates n leaves for C++, which gave the addresses."""

        def view(address: int, kind: Any, *shape: int) -> Any:
            size = kind * int(np.prod(shape))
            return np.ctypeslib.as_array(size.from_address(address)).reshape(shape)

        try:
            found = self.evaluate(
                view(states, ctypes.c_int8, n, self.game.inputs),
                view(legal, ctypes.c_uint8, n, self.game.actions).view(np.bool_),
            )
            view(logits, ctypes.c_float, n, self.game.actions)[:] = found[0]
            view(values, ctypes.c_float, n)[:] = found[1]
        except BaseException as error:  # C++ cannot carry it: it is raised once the search is back
            self._error = error

    def search(self, position: plain.Position, number: int) -> plain.Found:
        """Visits of all actions, and the root's value."""
        visits = np.empty(self.game.actions, np.float32)
        value = self.calls.v0_search(
            self._memory, ctypes.byref(state_of(position)), ctypes.byref(self._options),
            ctypes.c_uint64(self.seed), ctypes.c_uint64(number), self._callback, pointer(visits),
        )  # fmt: skip
        if self._error:
            error, self._error = self._error, None
            raise error
        return plain.Found(visits.tolist(), value)


class Played(NamedTuple):
    """A game: its moves, and the position that ended it."""

    steps: list[plain.Step]
    last: plain.Position

    def lines(self, number: int) -> Iterator[Line]:
        """A line for every position, as training reads it."""
        for position, found, action in self.steps:
            total = sum(found.visits)
            yield {
                "game": number,
                "state": {
                    "planes": position.planes(), "mover": position.mover, "plies": position.plies,
                },
                "moves": [move_of(position, action) for action in position.legal()],
                "policy": [found.visits[action] / total for action in position.legal()],
                "visits": found.visits,
                "root": found.value,
                "action": action,
                "value": self.last.result * position.mover,
                "soft": self.last.soft() * position.mover,
            }  # fmt: skip


def move_of(position: plain.Position, action: int) -> dict[str, Any]:
    """A move as its parts, which a reader of the lines understands without the encoding."""
    if not isinstance(position, plain.Liuzhou):
        return {"kind": "place", "at": action}
    if action < 36:
        return {"kind": "place", "at": [action // 6, action % 6]}
    if action < 180:
        cell, direction = divmod(action - 36, 4)
        dr, dc = plain.STEPS[direction]
        at = [cell // 6, cell % 6]
        return {"kind": "move", "at": at, "to": [at[0] + dr, at[1] + dc]}
    if action < 216:
        return {"kind": position.phase, "at": [(action - 180) // 6, (action - 180) % 6]}
    return {"kind": "removal"}


def play_game(tree: Tree, game: str, *, number: int, seed: int, temperature_plies: int) -> Played:
    """A game from the first move to the last."""
    position: plain.Position = plain.GAMES[game].begin()
    steps = []
    while not position.over:
        found = tree.search(position, number)
        temperature = 1.0 if position.plies < temperature_plies else 0.0
        u = plain.uniform(seed, number, position.plies)
        steps.append(plain.Step(position, found, plain.sampled(found.visits, temperature, u)))
        position = position.apply(steps[-1].action)
    return Played(steps, position)


def check(search: Search) -> None:
    """Raises InputError for a search that objects do not have."""
    if search.reuse or search.gumbel:
        raise InputError("v0 has neither reuse nor gumbel: leave them out, or play by v1 alone.")


def play_games(
    game: str,
    evaluate: Evaluate,
    *,
    games: int,
    simulations: int,
    seed: int,
    temperature_plies: int,
    depth: int = 1,
    first: int = 0,
    **options: Any,
) -> Iterator[str]:
    """Plays games one after another; gives the lines of JSON of each as it ends.

    Arguments as of v1.play_games.

    Raises:
        InputError: a search that objects do not have, by reuse or a Gumbel root.
    """
    search = Search(simulations, depth, **options)
    search.check(find(game).longest)
    check(search)
    tree = Tree(game, evaluate, search, seed)
    for number in range(first, first + games):
        played = play_game(
            tree, game, number=number, seed=seed, temperature_plies=temperature_plies
        )
        yield "".join(json.dumps(line) + "\n" for line in played.lines(number))
