"""Three games behind one interface: tic-tac-toe, connect four and Liuzhou chess, in C++.

A board is seen from the side to move: planes of 0 and 1, the first its own stones, the second the
other's. White is 1 and begins tic-tac-toe and connect four; Black is -1 and begins Liuzhou chess,
whose rules LIUZHOU.md states. native/*.h has cells, actions and planes of each game.

Letters: B boards, F = planes x cells, A actions.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll import native
from eggroll.errors import InputError, shown

NATIVE = Path(__file__).with_name("native")
FACTS = np.dtype(
    [
        *((name, np.int8) for name in ("mover", "over", "result")),
        *((name, np.uint8) for name in ("phase", "pending", "still")),
        ("plies", np.uint16),
    ]
)  # struct Facts of state.h


class Game(NamedTuple):
    """A game's sizes. longest: plies after which a game is a draw, or ends by itself."""

    name: str
    actions: int
    planes: int
    cells: int
    longest: int
    most_legal: int  # actions of a position at most

    @property
    def inputs(self) -> int:
        """F, the values of an observation."""
        return self.planes * self.cells

    @property
    def words(self) -> int:
        """Of 64 bits, that show a position: a bit of every input, then one of every plane for
        those that hold everywhere, whose own bits stay 0."""
        return -(-(self.inputs + self.planes) // 64)

    @property
    def number(self) -> int:
        """The game's number in native code."""
        return list(GAMES).index(self.name)


GAMES = {
    game.name: game
    for game in (
        Game("tictactoe", 9, 3, 9, 9, 9),
        Game("connect4", 7, 3, 42, 42, 7),
        Game("liuzhou", 220, 11, 36, 144, 72),
    )
}


def find(name: str) -> Game:
    """The game of a name.

    Raises:
        InputError: there is none.
    """
    if name not in GAMES:
        raise InputError(f"the game {shown(name)} is unknown: choose one of {', '.join(GAMES)}.")
    return GAMES[name]


@cache
def library() -> Any:
    """The functions of games.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the cache cannot be written.
    """
    calls = native.build(NATIVE / "games.cpp").handle
    calls.boards_step.restype = ctypes.c_int64
    sizes = np.empty(5, np.int32)
    for game in GAMES.values():
        calls.game_constants(game.number, pointer(sizes))
        assert tuple(sizes) == game[1:], game
    return calls


def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    """The address of a contiguous array, for as long as it lives."""
    return ctypes.c_void_p(None if array is None else address(array))


def address(array: NDArray[Any]) -> int:
    """The same as a number."""
    assert array.flags.c_contiguous
    if array.flags.writeable and array.size:  # the quicker way
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    found: int = array.__array_interface__["data"][0]
    return found


class Positions(ctypes.Structure):
    """Positions of state.h: the addresses of arrays."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("white", "black", "marks", "facts"))


class Boards:
    """Games side by side, as a structure of arrays.

    white, black: uint64 [B], bits of stones; marks: uint64 [B], bits of marked ones; facts: FACTS
    [B]. Native code reads and writes them in place.
    """

    def __init__(self, game: str, count: int) -> None:
        """New games on `count` boards.

        Raises:
            InputError: an unknown game, or fewer than one board.
        """
        self.game = find(game)
        if count < 1:
            raise InputError(f"count is {count}: at least 1 board is needed.")
        self.count = count
        self._calls = library()
        self.white, self.black, self.marks = np.zeros((3, count), np.uint64)
        self.facts = np.zeros(count, FACTS)
        self._struct = Positions(
            *(a.ctypes.data for a in (self.white, self.black, self.marks, self.facts))
        )
        self.reset(np.arange(count))

    @property
    def address(self) -> Any:
        """The struct Positions, for native code."""
        return ctypes.byref(self._struct)

    @property
    def to_move(self) -> NDArray[np.int8]:
        """int8 [B]: 1 White, -1 Black; a view."""
        return self.facts["mover"]

    @property
    def over(self) -> NDArray[np.int8]:
        """int8 [B]: 1 where the game has ended; a view."""
        return self.facts["over"]

    @property
    def result(self) -> NDArray[np.int8]:
        """int8 [B]: 1 White won, 0 a draw or not over, -1 Black won; a view."""
        return self.facts["result"]

    @property
    def soft(self) -> NDArray[np.float32]:
        """float32 [B], from White: in Liuzhou chess tan(2 d / 18) within [-1, 1], d being White's
        stones less Black's; 0 in games where nothing is taken."""
        found = np.empty(self.count, np.float32)
        self._calls.boards_soft(self.game.number, self.address, self._count, pointer(found))
        return found

    @property
    def _count(self) -> ctypes.c_int64:
        return ctypes.c_int64(self.count)

    def reset(self, rows: ArrayLike) -> None:
        """Begins new games on some boards, by their numbers or a mask [B].

        Raises:
            InputError: a board that there is not.
        """
        at = np.asarray(rows)
        at = np.flatnonzero(at) if at.dtype == np.bool_ else at.reshape(-1)
        if len(at) and (at.min() < 0 or at.max() >= self.count):
            raise InputError(
                f"rows reach from {at.min()} to {at.max()}: boards are 0 to {self.count - 1}."
            )
        at = np.ascontiguousarray(at, np.int32)
        self._calls.boards_reset(
            self.game.number, self.address, ctypes.c_int64(len(at)), pointer(at)
        )

    def put(self, rows: ArrayLike, others: Boards, of: ArrayLike) -> None:
        """Puts copies of the boards `of` of others onto `rows`."""
        for name in ("white", "black", "marks", "facts"):
            getattr(self, name)[rows] = getattr(others, name)[of]

    def observe(self) -> NDArray[np.int8]:
        """What the side to move sees, int8 [B, F] of 0 and 1."""
        planes = np.empty((self.count, self.game.inputs), np.int8)
        self._calls.boards_show(
            self.game.number, self.address, self._count, pointer(planes), pointer(None)
        )
        return planes

    def legal(self) -> NDArray[np.bool_]:
        """Legal actions, bool [B, A]; none where the game is over."""
        legal = np.empty((self.count, self.game.actions), np.bool_)
        self._calls.boards_show(
            self.game.number, self.address, self._count, pointer(None), pointer(legal)
        )
        return legal

    def step(self, actions: ArrayLike) -> None:
        """Applies an action on every board, whole numbers [B]; boards that are over stay.

        Raises:
            InputError: another shape, or an action that is not legal; nothing has changed.
        """
        given = np.ascontiguousarray(actions, np.int32)
        if given.shape != (self.count,):
            raise InputError(
                f"actions have the shape {list(given.shape)}: [{self.count}] is needed."
            )
        wrong = self._calls.boards_step(self.game.number, self.address, self._count, pointer(given))
        if wrong >= 0:
            allowed = np.flatnonzero(self.legal()[wrong]).tolist()
            raise InputError(
                f"the action {given[wrong]} of board {wrong} is not legal: {allowed} are."
            )
