"""The built-in evaluation: material and a table of squares for each piece, in centipawns.

It labels positions where no engine is there, and nets can learn it exactly. Its tables are simple
formulas: pieces like the centre, pawns like to advance, kings like their back rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.nnue.position import Position, boards_of

VALUES = (100, 320, 330, 500, 900, 0)  # pawn, knight, bishop, rook, queen, king
CENTRE = (2, 8, 5, 1, 1, -4)  # centipawns a step nearer to the centre, by type
ADVANCE = (7, 0, 0, 2, 0, -6)  # centipawns a rank from the own back rank


def tables() -> NDArray[np.int32]:
    """Centipawns for white of a piece's code on a square, int32 [12, 64]."""
    squares = np.arange(64)
    file, rank = squares % 8, squares // 8
    steps = 3 - np.maximum(abs(2 * file - 7), abs(2 * rank - 7)) // 2  # 0 at the rim, 3 inside
    found = np.empty((12, 64), np.int32)
    for kind, value in enumerate(VALUES):
        white = value + CENTRE[kind] * steps + ADVANCE[kind] * rank
        found[2 * kind], found[2 * kind + 1] = white, -white[squares ^ 56]
    return found


def evaluate(records: NDArray[np.void]) -> NDArray[np.int16]:
    """Centipawns from the side to move, int16 [n], of records [n]."""
    boards = boards_of(records)
    padded = np.concatenate([tables(), np.zeros((1, 64), np.int32)])  # code -1: an empty square
    white = padded[boards, np.arange(64)].sum(axis=1)
    return np.where(records["stm"] == 1, white, -white).astype(np.int16)


def evaluate_one(board: Position, table: NDArray[np.int32]) -> int:
    """Centipawns from the side to move of one position; table: of `tables()`."""
    white = sum(int(table[code, square]) for square, code in board.pieces.items())
    return white if board.stm else -white
