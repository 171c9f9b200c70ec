"""What games have played: a buffer that steps fill, and its rows game by game.

Letters: F values of an observation, A actions, B boards, n positions.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.selfplay.games import FACTS, Game, Positions, library, pointer

if TYPE_CHECKING:
    from experiments.selfplay.operations import RootStep

MOST_ROWS = 1 << 18


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


# Arrays of a buffer, row by row, as struct Record of operations.cpp has them.
KINDS: dict[str, Any] = {
    "white": np.uint64, "black": np.uint64, "marks": np.uint64, "facts": FACTS,
    "policy": np.uint16, "value": np.int8, "soft": np.float32, "game": np.int32,
    "action": np.int16, "root": np.float32, "mover": np.int8, "material": np.float32,
    "still": np.int16,
}  # fmt: skip
BOARD = ("white", "black", "marks", "facts")


class _Record(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in KINDS),
        ("longest", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("steps", "lengths", "outcomes")),
    )


class Buffer:
    """Positions in the order of their steps, in memory that grows by doubling from MOST_ROWS on.

    steps: int32 [B, longest], the rows of the moves of every board's game; lengths: int32 [B],
    their number; outcomes: int64 [3], games that White won, drew, lost. Rows `first` to `size` - 1
    are those of the step under way.
    """

    def __init__(self, game: Game, boards: int, games: int) -> None:
        self.game, self.first, self.size = game, 0, 0
        self.room = min(
            games * game.longest, MOST_ROWS
        )  # memory is taken page by page, as it fills
        self.arrays = {
            name: np.empty((self.room, game.actions) if name == "policy" else self.room, kind)
            for name, kind in KINDS.items()
        }
        self.steps = np.empty((boards, game.longest), np.int32)
        self.lengths, self.outcomes = np.zeros(boards, np.int32), np.zeros(3, np.int64)
        self._record = _Record(longest=game.longest)
        for name in ("steps", "lengths", "outcomes"):
            setattr(self._record, name, pointer(getattr(self, name)))
        self._point()

    def _point(self) -> None:
        for name, array in self.arrays.items():
            setattr(self._record, name, pointer(array))

    @property
    def address(self) -> Any:
        """The struct Record, for native code."""
        return ctypes.byref(self._record)

    def append(self, count: int) -> None:
        """New rows for a step, to be filled."""
        self.first, self.size = self.size, self.size + count
        if self.size <= self.room:
            return
        self.room = 2 * self.size
        for name, array in self.arrays.items():
            wider = np.empty((self.room, *array.shape[1:]), array.dtype)
            wider[: self.first] = array[: self.first]
            self.arrays[name] = wider
        self._point()

    def view(self, name: str) -> NDArray[Any]:
        """The rows of the step under way."""
        return self.arrays[name][self.first : self.size]

    def finalize(
        self, step: RootStep, count: int, numbers: NDArray[np.int32], upcoming: int, last: int
    ) -> int:
        """Fills the targets of the `count` games that a step ended, and begins games on their
        boards, numbered from `upcoming` while below `last`, by finalize_trajectory_inplace; gives
        how many it began. numbers: int32 [B], of the boards' games."""
        begun: int = step.calls.finalize_trajectory_inplace(
            *step.game, count, step.address, self.address, pointer(numbers), upcoming, last
        )
        return begun

    def trajectories(self) -> Trajectories:
        """All rows, game by game."""
        n, F, A = self.size, self.game.inputs, self.game.actions
        order = np.argsort(self.arrays["game"][:n], kind="stable")
        rows = {name: array[order] for name, array in self.arrays.items()}
        boards = [rows.pop(name) for name in BOARD]
        positions = Positions(*map(pointer, boards))
        state, legal = np.empty((n, F), np.int8), np.empty((n, A), np.bool_)
        library().boards_show(
            self.game.number, ctypes.byref(positions), ctypes.c_int64(n), pointer(state),
            pointer(legal),
        )  # fmt: skip
        return Trajectories(state=state, legal=legal, **rows)
