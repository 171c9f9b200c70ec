"""Chess positions: squares and pieces, FEN, and the packed record of 32 bytes (see DATA.md).

Squares are a1 = 0, b1 = 1 ... h8 = 63. A piece's code is 2 * type + colour, types pawn, knight,
bishop, rook, queen, king, colours 0 white and 1 black. The side to move is 1 for white, 0 for
black. Castling rights, en passant and clocks are left out, as no feature set sees them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, shown

LETTERS = "PpNnBbRrQqKk"  # of FEN, by code
KINGS = (10, 11)
MOST_PIECES = 32

# A position with its labels, little-endian; RECORD's fields are explained in DATA.md.
RECORD = np.dtype(
    [
        ("occupied", "<u8"), ("codes", "u1", (16,)), ("score", "<i2"), ("stm", "u1"),
        ("result", "i1"), ("game", "<u4"),
    ]
)  # fmt: skip


class Position(NamedTuple):
    """A board and who moves."""

    pieces: dict[int, int]  # square -> code
    stm: int  # 1: white moves, 0: black

    @classmethod
    def from_fen(cls, fen: str) -> Position:
        """The position of a FEN, whose fields past the side to move are not read.

        Raises:
            InputError: it is none.
        """
        words = fen.split()
        ranks = words[0].split("/") if words else []
        pieces: dict[int, int] = {}
        complete = len(ranks) == 8 and len(words) > 1 and words[1] in ("w", "b")
        for rank, text in zip(range(7, -1, -1), ranks, strict=False):
            file = 0
            for letter in text:
                if letter in LETTERS:
                    pieces[8 * rank + min(file, 7)] = LETTERS.index(letter)
                file += int(letter) if letter in "12345678" else 1
                complete &= letter in LETTERS + "12345678"
            complete &= file == 8
        if not complete:
            raise InputError(
                f"{shown(fen)} is no FEN: eight ranks and the side to move are needed, as in "
                "'1k6/8/8/8/3r4/2P5/8/K7 w - - 0 1'."
            )
        return cls(pieces, int(words[1] == "w"))

    def fen(self) -> str:
        """The position's FEN, without castling and en passant."""
        ranks = []
        for rank in range(7, -1, -1):
            row = [self.pieces.get(8 * rank + file) for file in range(8)]
            text = "".join(" " if code is None else LETTERS[code] for code in row)
            for empty in range(8, 0, -1):
                text = text.replace(" " * empty, str(empty))
            ranks.append(text)
        return f"{'/'.join(ranks)} {'w' if self.stm else 'b'} - - 0 1"

    def record(self, score: int = 0, result: int = 0, game: int = 0) -> NDArray[np.void]:
        """The packed record, a scalar array of RECORD.

        score: centipawns, result: -1, 0, 1, both from the side to move.

        Raises:
            InputError: there are more than 32 pieces, which have no room.
        """
        if len(self.pieces) > MOST_PIECES:
            raise InputError(f"the board has {len(self.pieces)} pieces: at most 32 are allowed.")
        found = np.zeros((), RECORD)
        for i, square in enumerate(sorted(self.pieces)):
            found["occupied"] |= np.uint64(1 << square)
            found["codes"][i // 2] |= self.pieces[square] << 4 * (i % 2)
        found["score"], found["stm"], found["result"] = score, self.stm, result
        found["game"] = game
        return found

    @classmethod
    def from_record(cls, record: NDArray[np.void] | np.void) -> Position:
        """The position of a packed record, which is not checked."""
        occupied, codes = int(record["occupied"]), record["codes"].tolist()
        squares = [square for square in range(64) if occupied >> square & 1]
        return cls(
            {square: codes[i // 2] >> 4 * (i % 2) & 15 for i, square in enumerate(squares)},
            int(record["stm"]),
        )


def boards_of(records: NDArray[np.void]) -> NDArray[np.int8]:
    """The boards of records [n] as codes int8 [n, 64], -1 where a square is empty."""
    packed = records["codes"]
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(records), MOST_PIECES)
    occupied = np.unpackbits(
        np.ascontiguousarray(records["occupied"]).view(np.uint8).reshape(-1, 8),
        axis=1, bitorder="little",
    ).astype(bool)  # fmt: skip
    boards = np.full((len(records), 64), -1, np.int8)
    # Pieces lie in the order of their squares, so the mask takes them one after another.
    boards[occupied] = codes[np.arange(MOST_PIECES) < occupied.sum(axis=1)[:, None]]
    return boards
