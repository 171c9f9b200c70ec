"""Alpha-beta search of connect four (native/alphabeta.cpp), the opponent of evaluations."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from eggroll import native
from experiments.selfplay.games import NATIVE

CELLS = 42


@cache
def library() -> native.Library:
    """The functions of alphabeta.cpp, compiled once."""
    return native.build(NATIVE / "alphabeta.cpp")


def best(
    planes: NDArray[np.int8], depth: int, keys: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Columns int32 [B], each of the best equally likely, and their scores.

    planes: int8 [B, 2 x 42], the mover's cells and the other's, column by column from below; depth:
    moves that are looked ahead, 1 or more; keys: random words uint64 [B].
    """
    boards = np.ascontiguousarray(planes, np.int8)
    actions, scores = (np.empty(len(boards), np.int32) for _ in range(2))
    library().handle.connect4_alphabeta(
        ctypes.c_void_p(boards.ctypes.data), ctypes.c_int64(len(boards)), ctypes.c_int(depth),
        ctypes.c_void_p(np.ascontiguousarray(keys).ctypes.data),
        ctypes.c_void_p(actions.ctypes.data), ctypes.c_void_p(scores.ctypes.data),
    )  # fmt: skip
    return actions, scores
