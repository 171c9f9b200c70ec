"""Positions of other programs' files: Stockfish's plain text and .binpack, bullet's records.

Facts of these formats are in DATA.md. A bad record ends the reading with a sentence that names it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.files import open_regular
from experiments.nnue import loader_calls as native
from experiments.nnue.position import RECORD, boards_of

CHUNK = 1 << 17  # records; a chain of .binpack has up to NNUE_BINPACK_CHAIN, half of it
BULLET = np.dtype(
    [
        ("occupied", "<u8"), ("codes", "u1", (16,)), ("score", "<i2"), ("result", "u1"),
        ("king", "u1"), ("other_king", "u1"), ("extra", "u1", (3,)),
    ]
)  # fmt: skip
BULLET_GAME = 1024  # records of bullet's that count as one game, as it stores no games
REPAIR = "repair the file or leave the record out."
GAMES = {
    "plain": "a game ends where the ply does not grow",
    "binpack": "a game ends where the ply does not grow",
    "bullet": f"runs of {BULLET_GAME} records, as the format has no games",
}


def read_foreign(path: Path, name: str | None = None) -> tuple[NDArray[np.void], dict[str, Any]]:
    """Records of a file of another format, RECORD [n], and what to write about them.

    name: plain, binpack or bullet; None tells by the file's first bytes and its size.

    Raises:
        InputError: the file cannot be read, is of another format, or has a bad record.
    """
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            if not size:
                raise InputError(f"{str(path)!r} is empty: give a file with positions.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                name = name or _recognise(path, data[:8], size)
                parts = list(READERS[name](path, data))
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror or error}): give the path of a file."
        ) from None
    records = np.concatenate(parts) if parts else np.empty(0, RECORD)
    if not len(records):
        raise InputError(f"{str(path)!r} has no positions: give a file with some.")
    return records, {"source": path.name, "format": name, "game": GAMES[name]}


def _recognise(path: Path, first: bytes, size: int) -> str:
    if first.startswith(b"fen "):
        return "plain"
    if first.startswith(b"BINP"):
        return "binpack"
    if size % BULLET.itemsize:
        raise InputError(
            f"{str(path)!r} is of no format that is read here (it begins with {first!r}): plain "
            "text begins with b'fen ', a binpack with b'BINP', and bullet's records have "
            f"{BULLET.itemsize} bytes each."
        )
    return "bullet"


def _native(function: str, state: Any, path: Path, data: mmap.mmap) -> Iterator[NDArray[np.void]]:
    """Records that a function of the library reads, a chunk at a time."""
    read, error = getattr(native.library(), function), native.error_text()
    given = np.frombuffer(data, np.uint8)
    try:
        while True:
            records = np.empty(CHUNK, RECORD)
            found = read(
                given.ctypes.data,
                len(given),
                ctypes.byref(state),
                records.ctypes.data,
                CHUNK,
                error,
            )
            if found < 0:
                raise InputError(f"{str(path)!r}, {_words(error)}: {REPAIR}")
            if not found:
                return
            yield records[:found]
    finally:
        del given  # or the map could not be closed


def _read_plain(path: Path, data: mmap.mmap) -> Iterator[NDArray[np.void]]:
    return _native("nnue_plain_read", native.Plain(), path, data)


def _read_binpack(path: Path, data: mmap.mmap) -> Iterator[NDArray[np.void]]:
    return _native("nnue_binpack_read", native.Binpack(), path, data)


def _read_bullet(path: Path, data: mmap.mmap) -> Iterator[NDArray[np.void]]:
    # Bit 3 of bullet's nibbles is the colour (0: of the side to move), the others the type.
    nibble = np.array([2 * (c & 7) + (c >> 3) for c in range(16)], np.uint8)  # 12 up: refused
    both = (nibble[np.arange(256) & 15] | nibble[np.arange(256) >> 4] << 4).astype(np.uint8)
    whole, rest = divmod(len(data), BULLET.itemsize)
    if rest:
        _refuse(path, whole, f"the file ends after {rest} of its {BULLET.itemsize} bytes")
    for first in range(0, whole, CHUNK):
        given = np.frombuffer(
            data[first * BULLET.itemsize : (first + CHUNK) * BULLET.itemsize], BULLET
        )
        records = np.zeros(len(given), RECORD)
        records["occupied"], records["codes"] = given["occupied"], both[given["codes"]]
        records["score"], records["stm"] = given["score"], 1
        records["result"] = given["result"].astype(np.int16) - 1
        records["game"] = (first + np.arange(len(given))) // BULLET_GAME
        if (wrong := np.flatnonzero(given["result"] > 2)).size:
            _refuse(path, first + wrong[0], f"the result is {given['result'][wrong[0]]}, of 0 to 2")
        check(path, records, first)
        _check_kings(path, given, records, first)
        yield records


def _check_kings(
    path: Path, given: NDArray[np.void], records: NDArray[np.void], first: int
) -> None:
    """Sees that bullet's two squares of kings are where the kings stand."""
    boards = boards_of(records)
    own, other = (boards == 10).argmax(axis=1), (boards == 11).argmax(axis=1) ^ 56
    wrong = np.flatnonzero((own != given["king"]) | (other != given["other_king"]))
    if wrong.size:
        at = wrong[0]
        _refuse(
            path, first + at,
            f"kings are said to be on {given['king'][at]} and {given['other_king'][at]}, and are "
            f"on {own[at]} and {other[at]}",
        )  # fmt: skip


def _words(error: Any) -> str:
    return error.value.decode(errors="replace")


def _refuse(path: Path, record: int, fault: str) -> None:
    raise InputError(f"{str(path)!r}, record {record}: {fault}: {REPAIR}")


def check(path: Path, records: NDArray[np.void], first: int = 0) -> None:
    """Sees that records are positions that chess allows, with labels in range.

    first: the number of records before these in the file.

    Raises:
        InputError: one is bad; it is named.
    """
    records, error = np.ascontiguousarray(records), native.error_text()
    wrong = native.library().nnue_check(records.ctypes.data, len(records), error)
    if wrong >= 0:
        _refuse(path, first + wrong, _words(error))


READERS: dict[str, Callable[[Path, mmap.mmap], Iterator[NDArray[np.void]]]] = {
    "plain": _read_plain,
    "binpack": _read_binpack,
    "bullet": _read_bullet,
}
