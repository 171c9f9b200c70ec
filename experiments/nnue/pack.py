"""Packs: files of positions with a header and a checksum; DATA.md describes every byte."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, object_in
from eggroll.files import open_regular, replacing, unwritable
from experiments.nnue.position import RECORD

MAGIC = b"EGGNNUE\n"
VERSION = 1
HEADER = struct.Struct("<8sIIQQII")  # magic, version, record, offset, records, crc, zero
ALIGNMENT = 64
MOST_ABOUT = 1 << 20  # bytes of the text
CONVERT = (
    "`python -m experiments.nnue data --read FILE --out PACK` converts those of other programs"
)


@dataclass(frozen=True)
class Pack:
    """A pack whose checksum is right."""

    path: Path
    about: dict[str, Any]  # where its positions and labels come from
    offset: int  # bytes before the first record
    records: NDArray[np.void]  # RECORD [n], mapped


def write_pack(path: Path, records: NDArray[np.void], about: dict[str, Any]) -> None:
    """Writes a pack, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    text = json.dumps(about, ensure_ascii=False).encode()
    offset = -(-(HEADER.size + len(text)) // ALIGNMENT) * ALIGNMENT
    text = text.ljust(offset - HEADER.size)
    data = np.ascontiguousarray(records).view(np.uint8)
    crc = zlib.crc32(data, zlib.crc32(text))
    header = HEADER.pack(MAGIC, VERSION, RECORD.itemsize, offset, len(records), crc, 0)
    try:
        with replacing(path) as file:
            file.write(header + text)
            file.write(data)
    except OSError as error:
        raise unwritable(path, error) from None


def read_pack(path: str | Path) -> Pack:
    """Opens a pack and sees that it is whole.

    Raises:
        InputError: it is missing, of another format, cut off or damaged.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            header = file.read(HEADER.size)
            offset, count, crc = _parse(path, header)
            text = file.read(min(offset, MOST_ABOUT) - HEADER.size)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror or error}): give the path of a pack, "
            "as `python -m experiments.nnue data --out PACK` writes it."
        ) from None
    whole, there = offset + count * RECORD.itemsize, (size - offset) // RECORD.itemsize
    if size < whole:
        raise InputError(
            f"{str(path)!r} is cut off at record {max(0, there)} of {count}: copy or make it again."
        )
    if size > whole:
        raise InputError(
            f"{str(path)!r} has {size - whole} bytes after its {count} records: make it again."
        )
    records = np.memmap(path, RECORD, "r", offset, (count,))
    if zlib.crc32(records.view(np.uint8), zlib.crc32(text)) != crc:
        raise InputError(
            f"{str(path)!r} is damaged (its checksum is wrong): copy or make it again."
        )
    try:
        about = object_in(text)
    except ValueError as error:
        raise InputError(f"the text about {str(path)!r} {error}: make the pack again.") from None
    return Pack(path, about, offset, records)


def is_pack(path: Path) -> bool:
    """Tells by its first bytes if a file means to be a pack; False where it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _parse(path: Path, header: bytes) -> tuple[int, int, int]:
    """Offset of the records, their number, and the checksum."""
    if header[: len(MAGIC)] != MAGIC[: len(header)] or not header:
        raise InputError(
            f"{str(path)!r} is no pack (it begins with {header[:8]!r}, a pack with {MAGIC!r}): "
            f"{CONVERT}."
        )
    if len(header) < HEADER.size:
        raise InputError(f"{str(path)!r} is cut off in its header: copy or make it again.")
    _, version, record, offset, count, crc, zero = HEADER.unpack(header)
    if version != VERSION:
        raise InputError(f"{str(path)!r} is a pack of version {version}: this reads {VERSION}.")
    bounds = HEADER.size <= offset <= MOST_ABOUT and offset % ALIGNMENT == 0
    if record != RECORD.itemsize or not 1 <= count < 1 << 48 or not bounds or zero:
        raise InputError(
            f"{str(path)!r} has a header of no pack (records of {record} bytes, {count} of them "
            f"from byte {offset} on): copy or make it again."
        )
    return offset, count, crc
