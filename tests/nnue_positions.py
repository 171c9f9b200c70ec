"""Positions and packs for the tests of experiments/nnue, without a chess program."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.nnue.pack import ALIGNMENT, HEADER, MAGIC
from experiments.nnue.position import RECORD, Position

WORKED = "1k6/8/8/8/3r4/2P5/8/K7 w - - 0 1"  # of the document
# Before and after promotions, castling on either wing and en passant, and boards of extremes.
FENS = (
    WORKED,
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "r3k2r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/R3K2R w KQkq - 6 8",
    "r3k2r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/R4RK1 b kq - 7 8",
    "2kr3r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/R4RK1 w - - 8 9",
    "rnbqkb1r/ppp1pppp/5n2/3pP3/8/8/PPPP1PPP/RNBQKBNR w KQkq d6 0 3",
    "rnbqkb1r/ppp1pppp/3P1n2/8/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 3",
    "8/P5k1/8/8/8/8/6Kp/8 w - - 0 1",
    "Q7/6k1/8/8/8/8/6Kp/8 b - - 0 1",
    "N7/6k1/8/8/8/8/6K1/7q w - - 0 1",
    "qqqqkqqq/8/8/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1",
    "4k3/8/8/8/8/8/8/4K3 b - - 0 1",
    "7k/8/8/8/8/8/8/K6N b - - 0 1",
    "kr6/8/8/8/8/8/8/7K w - - 0 1",
)


def fixed_records() -> NDArray[np.void]:
    """The records of FENS."""
    return np.array([Position.from_fen(f).record(7 - i, i % 3 - 1, i) for i, f in enumerate(FENS)])


def raw_pack(path: Path, records: NDArray[np.void], **other: int | bytes) -> Path:
    """A pack whose header may lie, with the checksum that belongs to it."""
    text = json.dumps({"source": "a test"}).encode().ljust(ALIGNMENT * 2 - HEADER.size)
    data = np.ascontiguousarray(records).view(np.uint8).tobytes()
    fields = {
        "magic": MAGIC, "version": 1, "record": RECORD.itemsize, "offset": HEADER.size + len(text),
        "count": len(records), "crc": zlib.crc32(data, zlib.crc32(text)), "zero": 0, **other,
    }  # fmt: skip
    path.write_bytes(HEADER.pack(*fields.values()) + text + data)
    return path


def plain_text(records: NDArray[np.void], plies: list[int] | None = None) -> str:
    """Stockfish's plain text of records, whose moves nobody reads."""
    lines = []
    for i, record in enumerate(records):
        lines += [
            f"fen {Position.from_record(record).fen()}", "move e2e4", f"score {record['score']}",
            f"ply {plies[i] if plies else i}", f"result {record['result']}", "e",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"
