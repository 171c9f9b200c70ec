"""Search trees of many games side by side, in C++ (native/tree.h).

Letters: R roots, A actions, F values of an observation, m leaves of a round.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll import native
from eggroll.errors import InputError
from experiments.selfplay.games import NATIVE, Boards, pointer
from experiments.selfplay.operations import Draws, Evaluate

ROOM = 1 << 31  # edges of all slots, whose numbers are int32


class Search(NamedTuple):
    """How a move is searched.

    depth: plies below the root; 1 is root-PUCT, whose children are all evaluated at once. Deeper
    searches are trees: leaves, walks of a game in a round; reuse, whether the subtree of the move
    that was played stays, to which the next simulations are added; gumbel, the actions that a
    Gumbel root considers, 0 for PUCT. noise, shape: share and shape of Dirichlet noise in the
    root's priors. full: policies of children are evaluated, too, where values would do.
    """

    simulations: int
    depth: int = 1
    exploration: float = 1.5
    noise: float = 0.0
    shape: float = 0.5
    leaves: int = 1
    reuse: bool = False
    gumbel: int = 0
    full: bool = False

    def check(self, longest: int) -> None:
        """Raises InputError for what is out of range, or does not go together."""
        for name, least, most in (
            ("simulations", 1, 65535), ("depth", 1, 1 << 20), ("exploration", 0, 1e6),
            ("noise", 0, 1), ("shape", 1e-3, 1e3), ("leaves", 1, 4096), ("gumbel", 0, 256),
        ):  # fmt: skip
            value = getattr(self, name)
            if not least <= value <= most:
                raise InputError(f"{name} is {value}: {least:g} to {most:g} is allowed.")
        if self.depth == 1 and (self.leaves > 1 or self.reuse or self.gumbel):
            raise InputError(
                "depth is 1, root-PUCT, which has no leaves, reuse or gumbel: raise depth, or "
                "leave them out."
            )
        if self.reuse and self.depth < longest:
            raise InputError(
                f"reuse needs a tree without a limit, and depth is {self.depth}: give {longest}."
            )
        if self.gumbel and (self.reuse or self.noise):
            raise InputError(
                "gumbel counts visits from 0 and draws its own chance: leave out reuse and noise."
            )


class _Round(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("planes", "legal", "logits", "values"))


class _Options(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int32) for n in ("slots", "simulations", "leaves", "depth", "reuse")),
        ("gumbel", ctypes.c_int32),
        ("exploration", ctypes.c_float),
    )


@cache
def library() -> Any:
    """The functions of tree.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the cache cannot be written.
    """
    calls = native.build(NATIVE / "tree.cpp").handle
    calls.trees_new.restype = ctypes.c_void_p
    return calls


class Trees:
    """The search trees of boards, one per board."""

    def __init__(self, boards: Boards, search: Search) -> None:
        """Memory for a search on every board.

        Raises:
            InputError: the boards and simulations ask for more memory than there is.
        """
        self.boards, self.search, self.calls = boards, search, library()
        nodes = (3 if search.reuse else 1) * (search.simulations + 2)
        if boards.count * nodes * boards.game.most_legal >= ROOM:
            raise InputError(
                f"{boards.count} boards with {search.simulations} simulations are more than a "
                "search numbers: take fewer boards at a time."
            )
        options = _Options(
            boards.count, search.simulations, search.leaves, search.depth, search.reuse,
            search.gumbel, search.exploration,
        )  # fmt: skip
        memory = self.calls.trees_new(boards.game.number, ctypes.byref(options))
        if not memory:
            raise InputError(f"{boards.count} boards need more memory: take fewer at a time.")
        self._memory = ctypes.c_void_p(memory)
        rows = boards.count * search.leaves
        self.states = np.empty((rows, boards.game.inputs), np.int8)
        self.legal = np.empty((rows, boards.game.actions), np.bool_)
        self.logits = np.empty((rows, boards.game.actions), np.float32)
        self.values = np.empty(rows, np.float32)
        round_ = (self.states, self.legal, self.logits, self.values)
        self._round = _Round(*(a.ctypes.data for a in round_))

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            self.calls.trees_delete(self._memory)

    def run(self, slots: NDArray[np.int32], draws: Draws, evaluate: Evaluate) -> None:
        """All simulations of the searches of `slots`, int32 [R], round by round; an evaluation with
        an attribute `native` is asked in C++."""
        c, R, memory = self.calls, len(slots), self._memory
        c.trees_start(
            memory, self.boards.address, R, pointer(slots), draws.address,
            ctypes.c_double(self.search.noise), ctypes.c_double(self.search.shape),
        )  # fmt: skip
        at, states, legal = pointer(slots), pointer(self.states), pointer(self.legal)
        if asked := getattr(evaluate, "native", None):
            c.trees_run(memory, R, at, ctypes.byref(self._round), *map(ctypes.c_void_p, asked))
            return
        while m := c.trees_select(memory, R, at, states, legal):
            logits, values = evaluate(self.states[:m], self.legal[:m])
            c.trees_expand(memory, pointer(logits), pointer(values))

    def finish(
        self,
        slots: NDArray[np.int32],
        draws: Draws,
        temperatures: NDArray[np.float32],
        policy: NDArray[np.uint16],
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Draws a move of every root, int32 [R], and gives the roots' values, float32 [R].

        policy: uint16 [R, A], filled with visits; with a Gumbel root the improved policy in
        1/65,535.
        """
        chosen, values = np.empty(len(slots), np.int32), np.empty(len(slots), np.float32)
        self.calls.trees_finish(
            self._memory, len(slots), pointer(slots), pointer(temperatures), draws.address,
            pointer(policy), pointer(chosen), pointer(values),
        )  # fmt: skip
        return chosen, values

    def visits(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Visits of the roots' actions, int32 [R, A]: a Gumbel root's policy does not tell them."""
        found = np.empty((len(slots), self.boards.game.actions), np.int32)
        self.calls.trees_visits(self._memory, len(slots), pointer(slots), pointer(found))
        return found

    def advance(self, slots: NDArray[np.int32], chosen: NDArray[np.int32]) -> None:
        """Moves were played: their subtrees stay, where the search reuses them."""
        self.calls.trees_advance(self._memory, len(slots), pointer(slots), pointer(chosen))

    def forget(self, slots: NDArray[np.int32]) -> None:
        """New games begin in `slots`, int32 [R]."""
        self.calls.trees_forget(self._memory, len(slots), pointer(slots))
