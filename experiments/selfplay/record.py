"""What games have played: a buffer that steps fill, and its rows game by game.

Letters: F values of an observation, A actions, B boards, n positions.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.selfplay.games import FACTS, Game, pointer

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


# Arrays of a buffer, row by row, as struct Record of operations.cpp has them; start: of the row's
# policy.
KINDS: dict[str, Any] = {
    "white": np.uint64, "black": np.uint64, "marks": np.uint64, "facts": FACTS, "start": np.int64,
    "value": np.int8, "soft": np.float32, "game": np.int32, "action": np.int16,
    "root": np.float32, "mover": np.int8, "material": np.float32, "still": np.int16,
}  # fmt: skip
BOARD = ("white", "black", "marks", "facts")


class _Record(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*KINDS, "policy")),
        ("longest", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("steps", "lengths", "outcomes")),
    )


class Buffer:
    """Positions in the order of their steps, in memory that grows by doubling from MOST_ROWS on.

    A row has its board and the policy of its legal actions alone; what the board shows is made when
    the games are over. Rows `first` to `size` - 1 are those of the step under way; packed: the
    legal actions of all rows. steps: int32 [B, longest], the rows of the moves of every board's
    game; lengths: int32 [B], their number; outcomes: int64 [3], games that White won, drew, lost.
    """

    def __init__(self, game: Game, boards: int, games: int) -> None:
        self.game = game
        self.first = self.size = self.packed = 0
        self.arrays = {name: np.empty(0, kind) for name, kind in KINDS.items()}
        self.policies = np.empty(0, np.uint16)
        self.steps = np.empty((boards, game.longest), np.int32)
        self.lengths, self.outcomes = np.zeros(boards, np.int32), np.zeros(3, np.int64)
        self._record = _Record(longest=game.longest)
        for name in ("steps", "lengths", "outcomes"):
            setattr(self._record, name, pointer(getattr(self, name)))
        self._grow(min(games * game.longest, MOST_ROWS))

    def _grow(self, rows: int) -> None:
        """Room for so many rows; memory is taken page by page, as it fills."""
        self.room = rows
        for name, array in self.arrays.items():
            self.arrays[name] = np.empty(rows, array.dtype)
            self.arrays[name][: self.first] = array[: self.first]
            setattr(self._record, name, pointer(self.arrays[name]))
        policies = np.empty(rows * self.game.most_legal, np.uint16)
        policies[: self.packed] = self.policies[: self.packed]
        self.policies, self._record.policy = policies, pointer(policies)

    @property
    def address(self) -> Any:
        """The struct Record, for native code."""
        return ctypes.byref(self._record)

    def append(self, count: int) -> None:
        """New rows for a step, to be filled."""
        self.first, self.size = self.size, self.size + count
        if self.size > self.room:
            self._grow(2 * self.size)

    def view(self, name: str) -> NDArray[Any]:
        """The rows of the step under way."""
        return self.arrays[name][self.first : self.size]

    def policy(self, count: int) -> NDArray[np.uint16]:
        """The policies of the last `count` legal actions, a view."""
        return self.policies[self.packed - count : self.packed]

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

    def trajectories(self, calls: Any) -> Trajectories:
        """All rows, game by game. calls: the functions of operations.cpp."""
        n, F, A = self.size, self.game.inputs, self.game.actions
        order = np.argsort(self.arrays["game"][:n], kind="stable")
        seen = {
            "state": np.empty((n, F), np.int8), "legal": np.empty((n, A), np.bool_),
            "policy": np.empty((n, A), np.uint16),
        }  # fmt: skip
        calls.show_record(
            self.game.number, ctypes.c_int64(n), pointer(order), self.address,
            *map(pointer, seen.values()),
        )  # fmt: skip
        rest = {name: self.arrays[name][order] for name in KINDS if name in Trajectories._fields}
        return Trajectories(**seen, **rest)
