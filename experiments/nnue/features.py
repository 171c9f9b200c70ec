"""Feature sets: names, numbers of rows, plain Python extraction, coalescing.

A set is made of blocks, whose rows lie one after another in the order of BLOCKS. Each side sees the
board as if it were white: its own pieces first, and for black the ranks turned over.

- `768`: (piece with kings, square).
- `halfkp`: (own king's square, piece, square); kings are no pieces in this and the next blocks.
- `p`: (piece, square), a factor of HalfKP.
- `k`: (own king's square), a factor whose value is the number of pieces other than kings.
- `relative`: (piece, file and rank of the piece minus those of the king), a factor, 15 x 15 places.
- `pairs`: two pawns, beside 768.

`reference_lists` defines which rows are active; the native loader is tested against it.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, shown
from experiments.nnue.position import KINGS, Position

# Block -> its bit for the native loader and its number of rows.
BLOCKS: dict[str, tuple[int, int]] = {
    "768": (1, 12 * 64),
    "halfkp": (2, 64 * 640),
    "p": (4, 10 * 64),
    "k": (8, 64),
    "relative": (16, 10 * 15 * 15),
    "pairs": (32, 96 * 95 // 2),
}
FACTORS = ("p", "k", "relative")
SETS: dict[str, tuple[str, ...]] = {
    "768": ("768",),
    **{
        "+".join(blocks): blocks
        for used in product((False, True), repeat=3)
        if (blocks := ("halfkp", *(f for f, use in zip(FACTORS, used, strict=True) if use)))
    },
    "halfrelativekp": ("relative",),
    "768+pairs": ("768", "pairs"),
}
# Feature set -> its number of rows.
FEATURES: dict[str, int] = {
    name: sum(BLOCKS[block][1] for block in blocks) for name, blocks in SETS.items()
}

Rows = list[tuple[int, int]]  # row and its value, ascending


class Reference(NamedTuple):
    """Active rows of a position and their values, for each side."""

    white: Rows
    black: Rows


def blocks_of(features: str) -> tuple[str, ...]:
    """The blocks of a feature set.

    Raises:
        InputError: there is no such set.
    """
    if features not in SETS:
        raise InputError(f"the feature set {shown(features)} is none of {', '.join(SETS)}.")
    return SETS[features]


def offsets_of(features: str) -> dict[str, int]:
    """Block -> its first row in a feature set."""
    offsets, first = {}, 0
    for block in blocks_of(features):
        offsets[block] = first
        first += BLOCKS[block][1]
    return offsets


def reference_lists(board: Position, features: str) -> Reference:
    """The active rows of a position with one king a side, found piece by piece."""
    return Reference(_rows(board, features, 0), _rows(board, features, 1))


def _rows(board: Position, features: str, side: int) -> Rows:
    """side: 0 white, 1 black."""
    found: dict[int, int] = {}
    (king,) = (square for square, code in board.pieces.items() if code == KINGS[side])
    seen = {_seen(square, side): code ^ side for square, code in board.pieces.items()}
    for block, offset in offsets_of(features).items():
        if block == "pairs":
            found |= {offset + row: 1 for row in _pairs(seen)}
            continue
        for square, code in seen.items():
            if code in KINGS and block != "768":
                continue
            row = offset + row_of(block, _seen(king, side), code, square)
            found[row] = found.get(row, 0) + 1
    return sorted(found.items())


def _pairs(seen: dict[int, int]) -> list[int]:
    """Rows of every two pawns, each a number below 96: the own side's squares first."""
    pawns = sorted(48 * code + square - 8 for square, code in seen.items() if code < 2)
    return [j * (j - 1) // 2 + i for i, j in combinations(pawns, 2)]


def _seen(square: int, side: int) -> int:
    """A square as a side sees it."""
    return square ^ 56 if side else square


def row_of(block: str, king: int, code: int, square: int) -> int:
    """The row of a piece in a block; squares and code as the side sees them."""
    if block == "k":
        return king
    if block == "halfkp":
        return king * 640 + code * 64 + square
    if block == "relative":
        file, rank = square % 8 - king % 8 + 7, square // 8 - king // 8 + 7  # 0 to 14
        return code * 225 + file * 15 + rank
    return code * 64 + square  # 768 and p


def coalesce(rows: NDArray, features: str) -> NDArray:
    """Rows [FEATURES[features], M] of a set as rows [40960, M] of plain HalfKP, exactly.

    The rows of every factor are added to those of HalfKP that are active with it: a row of P to one
    row of each king's square, K's to the 640 of its square, a relative one to all that lie so.
    Integers become int32, which has room; floats keep their type, and there the sum is rounded.

    Raises:
        InputError: it is another set's number of rows, or 768, which has no kings' squares.
    """
    blocks = blocks_of(features)
    if "768" in blocks:
        raise InputError(
            f"{features} cannot be coalesced into HalfKP, as it has rows of kings: use it as it is."
        )
    if len(rows) != FEATURES[features]:
        raise InputError(f"{features} has {FEATURES[features]} rows, not {len(rows)}.")
    kind = np.int32 if np.issubdtype(rows.dtype, np.integer) else rows.dtype
    total = np.zeros((64, 10, 64, rows.shape[1]), kind)
    for block, offset in offsets_of(features).items():
        part = rows[offset : offset + BLOCKS[block][1]].astype(kind)
        total += _spread(block, part)
    return total.reshape(64 * 640, rows.shape[1])


def _spread(block: str, rows: NDArray) -> NDArray:
    """Rows of a block by (king, piece, square), with axes of length 1 where it has no such part."""
    width = rows.shape[1]
    if block == "halfkp":
        return rows.reshape(64, 10, 64, width)
    if block == "p":
        return rows.reshape(1, 10, 64, width)
    if block == "k":
        return rows.reshape(64, 1, 1, width)
    squares = np.arange(64)
    file = squares % 8 - squares[:, None] % 8 + 7  # [king, square]
    rank = squares // 8 - squares[:, None] // 8 + 7
    return rows.reshape(10, 225, width)[:, file * 15 + rank].swapaxes(0, 1)
