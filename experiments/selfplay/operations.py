"""The operations of a step of self-play, in C++ (native/operations.cpp), on NumPy's arrays.

Letters: R roots, A actions, F values of an observation, n legal actions of all roots, row by row:
those of root r are row_ptr[r] to row_ptr[r + 1] - 1 (CSR). m children are to be evaluated.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll import native
from eggroll.errors import InputError
from experiments.selfplay.games import NATIVE, Boards, pointer

if TYPE_CHECKING:
    from experiments.selfplay.record import Buffer
    from experiments.selfplay.search import Search

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


class Draws:
    """What draws the chance of roots: a seed, and of each the game's number and its plies, int32
    [R]."""

    class _Struct(ctypes.Structure):
        _fields_ = (
            ("seed", ctypes.c_uint64),
            *((name, ctypes.c_void_p) for name in ("games", "plies")),
        )

    def __init__(self, seed: int, games: NDArray[np.int32], plies: NDArray[np.int32]) -> None:
        self.seed = seed  # the arrays are read when chance is drawn
        self.games, self.plies = (np.ascontiguousarray(a, np.int32) for a in (games, plies))
        self._struct = self._Struct(seed, self.games.ctypes.data, self.plies.ctypes.data)

    @property
    def address(self) -> Any:
        """The struct Draws, for native code."""
        return ctypes.byref(self._struct)


# Arrays of a step, as struct Step of operations.cpp has them: of roots, of their legal actions, and
# of the games that ended.
_ROOTS = {
    "row_ptr": np.int32, "games": np.int32, "plies": np.int32, "chosen": np.int32,
    "temperatures": np.float32, "legal": np.bool_, "states": np.int8, "bits": np.uint64,
}  # fmt: skip
_ACTIONS = {
    "packed": np.int32, "leaves": np.float32, "priors": np.float32, "visits": np.float32,
    "sums": np.float32, "waiting": np.int32, "signs": np.int8, "child_states": np.int8,
    "child_bits": np.uint64, "child_legal": np.bool_,
}  # fmt: skip
_ENDED = {"ended_slots": np.int32, "ended_results": np.int8, "ended_softs": np.float32}


class _Step(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in (*_ROOTS, *_ACTIONS, *_ENDED))


class Options(ctypes.Structure):
    """How roots are searched; share and shape of Dirichlet noise."""

    _fields_ = (
        ("simulations", ctypes.c_int32),
        ("exploration", ctypes.c_float),
        ("share", ctypes.c_double),
        ("shape", ctypes.c_double),
    )


# What shows roots and children: planes, with children's legal actions or without, or bits, from
# which a network in C++ gives values alone of children.
WHOLE, VALUES = ("states", "child_states", "child_legal"), ("states", "child_states")
BITS = ("bits", "child_bits")


class Children(NamedTuple):
    """Children that are to be evaluated. states: int8 [m, F], or the same as bits, uint64 [m,
    words]; legal: bool [m, A], or None where values alone are asked for."""

    states: NDArray[np.int8] | NDArray[np.uint64]
    legal: NDArray[np.bool_] | None


class RootStep:
    """One step of root-PUCT on boards, call by call, in memory that is taken once.

    Of R roots: games, plies: int32, their numbers and plies; temperatures: float32 and chosen:
    int32, of the move that is drawn; legal: bool [R, A]; and what they show, states: int8 [R, F],
    or bits: uint64 [R, words].
    """

    row_ptr: NDArray[np.int32]
    games: NDArray[np.int32]
    plies: NDArray[np.int32]
    chosen: NDArray[np.int32]
    temperatures: NDArray[np.float32]
    legal: NDArray[np.bool_]
    states: NDArray[np.int8]
    bits: NDArray[np.uint64]
    packed: NDArray[np.int32]
    leaves: NDArray[np.float32]
    priors: NDArray[np.float32]
    visits: NDArray[np.float32]
    sums: NDArray[np.float32]
    waiting: NDArray[np.int32]
    signs: NDArray[np.int8]
    child_states: NDArray[np.int8]
    child_bits: NDArray[np.uint64]
    child_legal: NDArray[np.bool_]
    ended_slots: NDArray[np.int32]
    ended_results: NDArray[np.int8]
    ended_softs: NDArray[np.float32]

    def __init__(
        self,
        boards: Boards,
        search: Search,
        shown: tuple[str, ...],
        seed: int,
        temperature_plies: int,
    ) -> None:
        """Memory for steps of all boards.

        shown: what shows positions, WHOLE, VALUES or BITS. The first `temperature_plies` moves of a
        game are drawn by their visits, later ones are the most visited.
        """
        self.boards, self.calls = boards, library()
        self.search, self.shown, self.temperature_plies = search, shown, temperature_plies
        game, B = boards.game, boards.count
        most = B * game.most_legal
        F, A, words = game.inputs, game.actions, game.words
        widths = {
            "legal": A, "states": F, "bits": words, "child_states": F, "child_bits": words,
            "child_legal": A,
        }  # fmt: skip
        self._step = _Step()
        for names, count in ((_ROOTS, B), (_ACTIONS, most), (_ENDED, B)):
            for name, kind in names.items():
                if name in (*WHOLE, *BITS) and name not in shown:
                    continue
                shape = (count, widths[name]) if name in widths else count + (name == "row_ptr")
                array = np.empty(shape, kind)
                setattr(self, name, array)
                setattr(self._step, name, array.ctypes.data)
        self.draws = Draws(seed, self.games, self.plies)
        self.options = Options(search.simulations, search.exploration, search.noise, search.shape)
        self.game = (game.number, boards.address)
        self.address = ctypes.byref(self._step)

    def roots(self, slots: NDArray[np.int32], numbers: NDArray[np.int32], buffer: Buffer) -> None:
        """Begins a step of the boards `slots`, int32 [R], in the last rows of a buffer. numbers:
        int32 [B], of the boards' games."""
        self.slots, self.R, self._slots = slots, len(slots), pointer(slots)
        self.n = self.calls.pack_roots(
            *self.game, self.R, self._slots, pointer(numbers), self.temperature_plies,
            self.address, buffer.address, buffer.first, ctypes.c_int64(buffer.packed),
        )  # fmt: skip
        buffer.packed += self.n

    @property
    def seen(self) -> NDArray[np.int8] | NDArray[np.uint64]:
        """What the roots show, as children do."""
        found: NDArray[Any] = getattr(self, self.shown[0])
        return found[: self.R]

    def children(self) -> Children:
        """The children to evaluate."""
        self.m = self.calls.make_children(*self.game, self.R, self._slots, self.address)
        states, *legal = (getattr(self, name)[: self.m] for name in self.shown[1:])
        return Children(states, *legal or [None])

    def allocate(
        self, logits: NDArray[np.float32], values: NDArray[np.float32], roots: NDArray[np.float32]
    ) -> None:
        """Allots visits to the roots' actions; fills the roots' values, float32 [R].

        logits: float32 [R, A] of the roots; values: float32 [m] of the children, for their movers.
        """
        self.calls.search_roots(
            *logits.shape, self.m, self.address, self.draws.address, ctypes.byref(self.options),
            pointer(logits), pointer(values), pointer(roots),
        )  # fmt: skip

    def choose(self, buffer: Buffer) -> None:
        """Draws a move of every root, and writes visits and moves to the buffer."""
        self.calls.root_finalize_from_visits(
            self.R, self.address, self.draws.address, buffer.address, buffer.first
        )

    def step(self, buffer: Buffer, in_place: int = IN_PLACE) -> NDArray[np.int32]:
        """Plays the chosen moves on the boards; gives the slots whose games ended, int32, a view.

        in_place: the number of boards, all in play, from which no copy is made.
        """
        ended = self.calls.self_play_step_inplace(
            *self.game, self.boards.count, self.R, self._slots, in_place, self.address,
            buffer.address, buffer.first,
        )  # fmt: skip
        return self.ended_slots[:ended]
