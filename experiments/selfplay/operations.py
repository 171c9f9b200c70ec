"""The operations of a step of self-play, in C++ (native/operations.cpp), on NumPy's arrays.

Letters: R roots, A actions, F values of an observation, n legal actions of all roots, row by row:
those of root r are row_ptr[r] to row_ptr[r + 1] - 1 (CSR). m children are to be evaluated.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll import native
from eggroll.errors import InputError
from experiments.selfplay.games import NATIVE, Boards, pointer

# states int8 [n, F], legal bool [n, A] -> logits float32 [n, A], values float32 [n] in [-1, 1], for
# the side to move. One with an attribute `values`, states -> values, is asked that way where no
# policy is needed.
Evaluate = Callable[
    [NDArray[np.int8], NDArray[np.bool_]], tuple[NDArray[np.float32], NDArray[np.float32]]
]
MOST_ACTIONS = 256  # of puct.h
IN_PLACE = 32  # boards, all in play, from which a step works in place
UNITS = ("avx2", "avx512") if platform.machine() in ("x86_64", "AMD64") else ()


@cache
def library() -> Any:
    """The functions of operations.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the cache cannot be written.
    """
    names = ("operations", *(f"puct_{unit}" for unit in ("generic", *UNITS)))
    return native.build(*(NATIVE / f"{name}.cpp" for name in names)).handle


class Visits(NamedTuple):
    """What root-PUCT allots. visits, sums: float32 [R, A], of values for the root's mover; values:
    float32 [R], the mean of all simulations."""

    visits: NDArray[np.float32]
    sums: NDArray[np.float32]
    values: NDArray[np.float32]


def root_puct_allocate_visits(
    priors: NDArray[np.float32],
    leaf_values: NDArray[np.float32],
    valid: NDArray[np.bool_],
    simulations: int,
    exploration: float,
) -> Visits:
    """Simulations of root-PUCT: each goes to the valid action of the largest q + u, the first of
    equals, and adds that action's leaf value. Rows without valid actions get 0.

    priors, leaf_values: float32 [R, A]; valid: bool [R, A].

    Raises:
        InputError: shapes that differ, or more actions than 256.
    """
    p, v = (np.ascontiguousarray(a, np.float32) for a in (priors, leaf_values))
    mask = np.ascontiguousarray(valid, np.bool_)
    if p.ndim != 2 or not p.shape == v.shape == mask.shape or p.shape[1] > MOST_ACTIONS:
        raise InputError(
            f"priors {list(p.shape)}, leaf_values {list(v.shape)} and valid {list(mask.shape)} are "
            f"given: three arrays [R, A] are needed, A up to {MOST_ACTIONS}."
        )
    if not 0 <= simulations < 1 << 24:
        raise InputError(f"simulations is {simulations}: 0 to {(1 << 24) - 1} can be counted.")
    found = Visits(np.empty_like(p), np.empty_like(p), np.empty(len(p), np.float32))
    library().root_puct_allocate_visits(
        *p.shape, pointer(p), pointer(v), pointer(mask), simulations,
        ctypes.c_float(exploration), *map(pointer, found),
    )  # fmt: skip
    return found


class Packed(NamedTuple):
    """Legal actions row by row. row_ptr: int32 [R + 1]; actions: int32 [n]."""

    row_ptr: NDArray[np.int32]
    actions: NDArray[np.int32]


def pack_legal_rows(legal: NDArray[np.bool_]) -> Packed:
    """The legal actions of masks [R, A], packed (CSR)."""
    mask = np.ascontiguousarray(legal, np.bool_)
    found = Packed(np.empty(len(mask) + 1, np.int32), np.empty(mask.size + 1, np.int32))
    n = library().pack_legal_rows(*mask.shape, pointer(mask), *map(pointer, found))
    return found._replace(actions=found.actions[:n])


def sample_visits(
    weights: NDArray[np.float32], temperature: float, u: NDArray[np.float64]
) -> NDArray[np.int32]:
    """A place of each row of weights [R, A] by odds weight^(1 / temperature), taken in logarithms;
    u: float64 [R] in [0, 1), the chance. Temperature 0 gives the first of the largest."""
    rows = np.ascontiguousarray(weights, np.float32)
    chance, chosen = np.ascontiguousarray(u, np.float64), np.empty(len(rows), np.int32)
    library().sample_rows(
        *rows.shape, pointer(rows), ctypes.c_double(temperature), pointer(chance), pointer(chosen)
    )
    return chosen


class Rows(ctypes.Structure):
    """Packed actions of roots, for native code."""

    _fields_ = (
        ("count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("row_ptr", "actions")),
    )


class Draws:
    """What draws the chance of roots: a seed, and of each the game's number and its plies, int32
    [R]."""

    class _Struct(ctypes.Structure):
        _fields_ = (
            ("seed", ctypes.c_uint64),
            *((name, ctypes.c_void_p) for name in ("games", "plies")),
        )

    def __init__(self, seed: int, games: NDArray[np.int32], plies: NDArray[np.int32]) -> None:
        self.seed = seed
        self.games, self.plies = (np.ascontiguousarray(a, np.int32) for a in (games, plies))
        self._struct = self._Struct(seed, self.games.ctypes.data, self.plies.ctypes.data)

    @property
    def address(self) -> Any:
        """The struct Draws, for native code."""
        return ctypes.byref(self._struct)


class _Waiting(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("places", "signs", "planes", "legal"))


class _Finished(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("slots", "results", "softs"))


class Children(NamedTuple):
    """Children that are to be evaluated. states: int8 [m, F]; legal: bool [m, A], or None where
    values alone are asked for."""

    states: NDArray[np.int8]
    legal: NDArray[np.bool_] | None


class RootStep:
    """One step of root-PUCT on boards, call by call, in memory that is taken once."""

    def __init__(self, boards: Boards) -> None:
        self.boards, self.calls = boards, library()
        B, game = boards.count, boards.game
        most = game.most_legal
        self.row_ptr, self.packed = np.empty(B + 1, np.int32), np.empty(B * most, np.int32)
        self.priors, self.leaves, self.visits, self.sums = np.empty((4, B * most), np.float32)
        self.waiting, self.signs = np.empty(B * most, np.int32), np.empty(B * most, np.int8)
        self.child_states = np.empty((B * most, game.inputs), np.int8)
        self.child_legal: NDArray[np.bool_] | None = None
        self.ended_slots, self.ended_results = np.empty(B, np.int32), np.empty(B, np.int8)
        self.ended_softs = np.empty(B, np.float32)
        ended = (self.ended_slots, self.ended_results, self.ended_softs)
        self.finished = _Finished(*(a.ctypes.data for a in ended))

    @property
    def finished_address(self) -> Any:
        """The struct Finished of the last step, for native code."""
        return ctypes.byref(self.finished)

    def roots(
        self,
        slots: NDArray[np.int32],
        draws: Draws,
        states: NDArray[np.int8],
        legal: NDArray[np.bool_],
    ) -> None:
        """Begins a step of the boards `slots`, int32 [R]; fills what they show, states int8 [R, F],
        and their legal actions, bool [R, A]."""
        R, game = len(slots), self.boards.game
        self.slots, self.draws = slots, draws
        self.n = self.calls.pack_roots(
            game.number, self.boards.address, R, pointer(slots), pointer(states), pointer(legal),
            pointer(self.row_ptr), pointer(self.packed),
        )  # fmt: skip
        self.rows = Rows(R, self.row_ptr.ctypes.data, self.packed.ctypes.data)

    def children(self, full: bool) -> Children:
        """The children to evaluate; full: with their legal actions."""
        if full and self.child_legal is None:
            shape = (len(self.child_states), self.boards.game.actions)
            self.child_legal = np.empty(shape, np.bool_)
        waiting = _Waiting(
            *(a.ctypes.data for a in (self.waiting, self.signs, self.child_states)),
            self.child_legal.ctypes.data if full and self.child_legal is not None else None,
        )
        self.m = self.calls.make_children(
            self.boards.game.number, self.boards.address, ctypes.byref(self.rows),
            pointer(self.slots), pointer(self.leaves), ctypes.byref(waiting),
        )  # fmt: skip
        legal = self.child_legal[: self.m] if full and self.child_legal is not None else None
        return Children(self.child_states[: self.m], legal)

    def allocate(
        self,
        logits: NDArray[np.float32],
        values: NDArray[np.float32],
        noise: tuple[float, float],
        simulations: int,
        exploration: float,
    ) -> NDArray[np.float32]:
        """Allots visits to the roots' actions; gives the roots' values, float32 [R].

        logits: float32 [R, A] of the roots; values: float32 [m] of the children, for their movers;
        noise: share and shape of Dirichlet noise.
        """
        R, A = logits.shape
        found = np.empty(R, np.float32)
        c, rows = self.calls, ctypes.byref(self.rows)
        c.fill_leaves(
            self.m, pointer(self.waiting), pointer(self.signs), pointer(values),
            pointer(self.leaves),
        )  # fmt: skip
        c.make_priors(
            rows, A, pointer(logits), *map(ctypes.c_double, noise), self.draws.address,
            pointer(self.priors),
        )  # fmt: skip
        c.allocate_visits_rows(
            R, pointer(self.row_ptr), pointer(self.priors), pointer(self.leaves), simulations,
            ctypes.c_float(exploration), pointer(self.visits), pointer(self.sums), pointer(found),
        )  # fmt: skip
        return found

    def choose(
        self, temperatures: NDArray[np.float32], policy: NDArray[np.uint16]
    ) -> NDArray[np.int32]:
        """Draws a move of every root, int32 [R], and fills policy [R, A] with the visits."""
        chosen = np.empty(len(policy), np.int32)
        self.calls.root_finalize_from_visits(
            ctypes.byref(self.rows), policy.shape[1], pointer(self.visits), pointer(temperatures),
            self.draws.address, pointer(policy), pointer(chosen),
        )  # fmt: skip
        return chosen

    def step(
        self,
        chosen: NDArray[np.int32],
        after: NDArray[np.float32],
        still: NDArray[np.int16],
        in_place: int = IN_PLACE,
    ) -> NDArray[np.int32]:
        """Plays moves on the boards; gives the slots whose games ended, int32, a view.

        after, still: float32 and int16 [R], the soft value for White and the plies since a capture
        after the move; in_place: the number of boards, all in play, from which no copy is made.
        """
        ended = self.calls.self_play_step_inplace(
            self.boards.game.number, self.boards.address, self.boards.count, len(chosen),
            pointer(self.slots), pointer(chosen), in_place, pointer(after), pointer(still),
            self.finished_address,
        )  # fmt: skip
        return self.ended_slots[:ended]
