"""The worlds of world.cpp in Python, for `Trainer.ask` and `tell`, and what both of them read.

Letters: P members, S states, T rows. Arrays are over all members; every member's chance is a pure
function of its key, so that both languages meet the same positions, openings and replies.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from eggroll import native
from eggroll.errors import InputError
from experiments.tictactoe import game

POOL = 32  # policies at most
ROWS = 4096  # of an update at most
ONE = 64  # of an input, Q4
IDLE, ROW, BEGINS = 0, 1, 2  # as in eggroll_world.h
SOURCE = Path(__file__).with_name("world.cpp")
STATES, OPEN = 5478, 4520

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]

SHARED = np.dtype(
    [
        ("replies", np.int32),
        ("openings", np.int32),
        ("snapshots", np.int32),
        ("children", np.int16, (STATES, game.CELLS)),
        ("open", np.int16, OPEN),
        ("legal", np.uint16, STATES),
        ("optimal", np.uint16, STATES),
        ("mover", np.uint8, STATES),
        ("winner", np.uint8, STATES),
        ("stones", np.uint8, STATES),
        ("inputs", np.int8, (STATES, game.INPUTS)),
        ("policy", np.int8, (POOL, STATES)),
    ],
    align=True,
)  # struct Shared of world.cpp


def tables(
    policies: Iterable[NDArray[Any]] = (), *, replies: float = 0.0, openings: int = 0
) -> NDArray[Any]:
    """What the worlds read, SHARED [1]: `Trainer.play` takes it as `shared`.

    policies: frozen ones, moves [S], up to POOL; replies: chance that a random move replies in
    their place; openings: random moves that a whole game begins with at most.

    Raises:
        InputError: a chance or count out of range.
    """
    if not 0 <= replies <= 1:
        raise InputError(f"replies is {replies}: a chance from 0 to 1 is needed.")
    if not 0 <= openings <= 8:
        raise InputError(f"openings is {openings}: 0 to 8 random moves may begin a game.")
    known = game.states()
    found = np.zeros(1, SHARED)
    row = found[0]
    bits = 1 << np.arange(game.CELLS)
    row["replies"], row["openings"] = round(replies * 65536), openings
    row["children"], row["open"] = game.children(), np.flatnonzero(~known.over)
    row["legal"], row["optimal"] = game.legal() @ bits, game.optimal().moves @ bits
    row["mover"], row["winner"] = known.mover, known.winner
    row["stones"] = game.stones(known.boards)
    row["inputs"] = game.observations(known.boards, ONE, np.int8)
    set_policies(found, policies)
    return found


def set_policies(shared: NDArray[Any], policies: Iterable[NDArray[Any]]) -> None:
    """Replaces the frozen policies, without any by one that moves to the first free cell."""
    given = list(policies) or [game.legal().argmax(axis=1)]
    if len(given) > POOL:
        raise InputError(f"{len(given)} policies were given: {POOL} are the most.")
    shared["policy"][0, : len(given)] = given
    shared["snapshots"] = len(given)


@cache
def library() -> native.Library:
    """world.cpp, compiled once."""
    return native.build(SOURCE)


def draw(keys: Keys, place: Any) -> Keys:
    """Random words [P], the same wherever they are asked for: splitmix64 at a place of the key."""
    with np.errstate(over="ignore"):
        z = keys + (np.asarray(place) + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def below(n: Any, random: Keys) -> Ints:
    """Random numbers [P] below n."""
    high = random >> np.uint64(32)
    return (high * np.asarray(n).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


class World(Protocol):
    """The worlds of all members in an update; see docs/native.md."""

    def __init__(self, keys: Keys, shared: NDArray[Any]) -> None: ...
    def observe(self, row: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]: ...
    def act(self, row: int, outputs: NDArray[np.int8]) -> None: ...
    def values(self, rows: int) -> NDArray[np.int8]: ...


class _Base:
    """What the worlds have in common: one board for each member."""

    def __init__(self, keys: Keys, shared: NDArray[Any]) -> None:
        self.keys, self.shared = keys, shared[0]
        self.state = np.zeros(len(keys), np.int64)
        self.worth = np.zeros((len(keys), ROWS), np.int8)

    def values(self, rows: int) -> NDArray[np.int8]:
        return self.worth[:, :rows]

    def earned(self, row: int, values: NDArray[Any]) -> None:
        if row < ROWS:
            self.worth[:, row] = values

    def shown(self) -> NDArray[np.int8]:
        return self.shared["inputs"][self.state]

    def over(self) -> NDArray[np.bool_]:
        return self.shared["legal"][self.state] == 0

    def choose(self, outputs: NDArray[np.int8], active: Any = slice(None)) -> None:
        """Makes the move of the highest output among the free cells."""
        legal = game.legal()[self.state[active]]
        cell = np.where(legal, outputs[active].astype(np.int64), -1000).argmax(axis=1)
        self.state[active] = self.shared["children"][self.state[active], cell]

    def anywhere(self, random: Keys, active: NDArray[np.bool_]) -> Ints:
        """States after a random move of active members."""
        legal = game.legal()[self.state[active]]
        skip = below(legal.sum(axis=1), random[active])
        cell = (legal.cumsum(axis=1) == skip[:, None] + 1).argmax(axis=1)
        return self.shared["children"][self.state[active], cell].astype(np.int64)

    def follow(self, policy: Any, random: Keys | None, active: NDArray[np.bool_]) -> None:
        """A policy's move of active members, with the caller's chance a random one."""
        if random is not None:
            drawn = active & ((random & np.uint64(0xFFFF)) < np.uint64(self.shared["replies"]))
            after = self.anywhere(random, drawn)
        state = self.state[active]
        chosen = policy[active] if isinstance(policy, np.ndarray) else policy
        cell = self.shared["policy"][chosen, state]
        self.state[active] = self.shared["children"][state, cell]
        if random is not None:
            self.state[drawn] = after

    def results(self, side: NDArray[np.uint8]) -> NDArray[np.int8]:
        """1 where the side has won, -1 where the other has."""
        winner = self.shared["winner"][self.state]
        return np.where(winner == 0, 0, np.where(winner == side, 1, -1)).astype(np.int8)


class _Positions(_Base):
    """A random position in every row."""

    def observe(self, row: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        at = below(OPEN, draw(self.keys, 16 * row))
        self.state = self.shared["open"][at].astype(np.int64)
        return self.shown(), np.full(len(self.keys), ROW)


class States(_Positions):
    """Worth 1: the move was optimal."""

    def act(self, row: int, outputs: NDArray[np.int8]) -> None:
        before = self.state.copy()
        self.choose(outputs)
        moved = self.shared["children"][before] == self.state[:, None]
        bit = (moved @ (1 << np.arange(game.CELLS))) & self.shared["optimal"][before]
        self.earned(row, bit > 0)


class Vine(_Positions):
    """The frozen policy plays both sides on from the move; worth the result."""

    def act(self, row: int, outputs: NDArray[np.int8]) -> None:
        side = self.shared["mover"][self.state]
        self.choose(outputs)
        for ply in range(1, game.CELLS):
            left = ~self.over()
            own = self.shared["mover"][self.state] == side
            random = draw(self.keys, 16 * row + ply)
            mine, theirs = left & own, left & ~own
            self.follow(0, None, mine)
            self.follow(0, random, theirs)
        self.earned(row, self.results(side))


class Games(_Base):
    """Whole games against frozen policies; all rows of a game are worth its result."""

    def __init__(self, keys: Keys, shared: NDArray[Any]) -> None:
        super().__init__(keys, shared)
        self.game, self.first, self.end, self.snapshot = np.zeros((4, len(keys)), np.int64)

    def observe(self, row: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        begins = self.end == row
        self._open(row, begins)
        over = self.over()
        inputs = np.where(over[:, None], 0, self.shown()).astype(np.int8)
        return inputs, np.where(over, IDLE, np.where(begins, BEGINS, ROW))

    def _open(self, row: int, begins: NDArray[np.bool_]) -> None:
        place = 32 * self.game
        self.game += begins
        random = draw(self.keys, place)
        snapshot = below(self.shared["snapshots"], random << np.uint64(32))
        self.snapshot = np.where(begins, snapshot, self.snapshot)
        self.state[begins] = 0
        left = np.where(begins, below(self.shared["openings"] + 1, random), 0)
        while (going := left > 0).any():
            after = self.anywhere(draw(self.keys, place + left), going)
            over = self.shared["legal"][after] == 0
            self.state[going] = np.where(over, self.state[going], after)
            left[going] = np.where(over, 0, left[going] - 1)
        self.first = np.where(begins, row, self.first)
        length = (game.CELLS + 1 - self.shared["stones"][self.state].astype(np.int64)) // 2
        self.end = np.where(begins, row + length, self.end)

    def act(self, row: int, outputs: NDArray[np.int8]) -> None:
        active = ~self.over()
        side = self.shared["mover"][self.state]
        self.choose(outputs, active)
        random = draw(self.keys, 32 * (self.game - 1) + 16 + row - self.first)
        self.follow(self.snapshot, random, active & ~self.over())
        over, results = active & self.over(), self.results(side)
        for rows in self.first + np.arange(1 + game.CELLS // 2)[:, None]:
            of_game = over & (rows < self.end) & (rows < ROWS)
            self.worth[of_game, rows[of_game]] = results[of_game]


WORLDS: dict[str, type[World]] = {"states": States, "vine": Vine, "games": Games}


def play(es: Any, name: str, rows: int, shared: NDArray[Any], group: int = 2) -> Any:
    """An update of a Trainer by a world in Python: what es.play does with the one of world.cpp."""
    world = WORLDS[name](np.repeat(es.keys(es.pop // group), group), shared)
    members = es.ask()
    for row in range(rows):
        inputs, flags = world.observe(row)
        world.act(row, members(inputs, begins=flags == BEGINS, active=flags > 0))
    return es.tell(world.values(rows))
