"""replay.bin: the signs of all pairs of every update, from which its weights can be rebuilt.

All numbers are little-endian. Header: `EGGSIGNS`, uint32 version, uint32 H, H bytes of JSON (kind,
pairs, config, network and, of a Trainer, its declaration and score_bits), uint32 CRC-32 of all
that. Then one record for every update: uint32 its number, from 1 on; uint32 the updates planned
then, as learning rates may depend on them; ceil(N / 5) bytes of ternary.py; uint32 CRC-32 of header
and record.

Letters: N pairs.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from eggroll import files as ternary
from eggroll.errors import InputError, object_in
from eggroll.files import Row, flush_to_disk, unwritable, write_whole
from eggroll.training.folder import Growing

MAGIC: Final = b"EGGSIGNS"
VERSION: Final = 1
FRONT: Final = struct.Struct("<8sII")
NUMBERS, CHECK = struct.Struct("<II"), struct.Struct("<I")
LONGEST_FACTS, MOST_PAIRS = 1 << 24, 1 << 23
# Of the header's facts; those that may be missing are not of every kind of run.
SCHEMA: Final = {
    "pairs": int,
    "config": dict,
    "kind": str | None,
    "network": str | None,
    "declaration": str | None,
    "score_bits": int | None,
}

Signs = NDArray[np.int8]
Facts = dict[str, Any]


class Recorded(NamedTuple):
    """A record: the updates made with it, the updates planned then, signs int8 [N]."""

    step: int
    steps: int
    signs: Signs


class Header(NamedTuple):
    """The beginning of the file, before the records. check: its CRC-32; size: its bytes."""

    facts: Facts
    check: int
    size: int

    @property
    def pairs(self) -> int:
        return int(self.facts["pairs"])

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return NUMBERS.size + ternary.packed_size(self.pairs) + CHECK.size

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The header that `write` makes of these facts."""
        header = cls(json.loads(json.dumps(facts)), 0, 0)
        data = header.data()
        return header._replace(check=zlib.crc32(data[: -CHECK.size]), size=len(data))

    def data(self) -> bytes:
        text = json.dumps(self.facts).encode()
        front = FRONT.pack(MAGIC, VERSION, len(text)) + text
        return front + CHECK.pack(zlib.crc32(front))

    def recorded(self, step: int, steps: int, signs: Signs) -> bytes:
        """The bytes of a record."""
        data = NUMBERS.pack(step, steps) + ternary.pack(signs).tobytes()
        return data + CHECK.pack(zlib.crc32(data, self.check))

    def read(self, data: bytes, step: int) -> Recorded | None:
        """The record of update `step` in these bytes; None if they are no such record."""
        body = data[: -CHECK.size]
        if len(data) != self.record or data[-CHECK.size :] != CHECK.pack(
            zlib.crc32(body, self.check)
        ):
            return None
        found, steps = NUMBERS.unpack_from(data)
        try:
            packed = np.frombuffer(body, np.uint8, offset=NUMBERS.size)
            signs = ternary.unpack(packed, self.pairs)
        except ValueError:
            return None
        return Recorded(found, steps, signs) if found == step else None


def header_of(file: BinaryIO, path: Path) -> Header:
    """The header of an open file; the records follow.

    Raises:
        InputError: it is none of a replay log, of a newer version, or damaged.
    """
    front = file.read(FRONT.size)
    magic, version, length = (
        FRONT.unpack(front) if len(front) == FRONT.size else (b"", VERSION, LONGEST_FACTS)
    )
    if magic != MAGIC:
        raise InputError(f"{str(path)!r} is no replay log: give the folder of a run that has one.")
    if version != VERSION:
        raise InputError(
            f"replay log {str(path)!r} has version {version} and this eggroll reads {VERSION}: "
            "update eggroll to replay it."
        )
    text = file.read(length) if length <= LONGEST_FACTS else b""
    check = zlib.crc32(front + text)
    if len(text) < length or file.read(CHECK.size) != CHECK.pack(check):
        raise _damaged(path, "its header is not whole")
    try:
        facts = object_in(text, SCHEMA)
    except ValueError as error:
        raise _damaged(path, f"its header {error}") from error
    if not 1 <= facts["pairs"] <= MOST_PAIRS:
        raise _damaged(path, "it names no number of pairs")
    return Header(facts, check, FRONT.size + length + CHECK.size)


def _damaged(path: Path, how: str) -> InputError:
    return InputError(
        f"replay log {str(path)!r} is damaged ({how}): restore it from a copy; the run itself does "
        "not need it."
    )


def records(file: BinaryIO, header: Header) -> Iterator[Recorded]:
    """The whole records that follow, of updates 1, 2 and so on, up to the first that is not."""
    step = 1
    while found := header.read(file.read(header.record), step):
        yield found
        step += 1


def _cut_back(
    path: Path, header: Header, step: int, changeable: Collection[str]
) -> tuple[Header, str]:
    """Leaves the records up to `step`: the file's own header, and why they do not reach it."""
    try:
        with open(path, "r+b") as file:
            found = header_of(file, path)
            if not _same_run(found.facts, header.facts, changeable):
                return found, f"{str(path)!r} is of another run"
            whole = sum(1 for _ in islice(records(file, found), step))
            file.truncate(found.size + whole * found.record)
            flush_to_disk(file.fileno())
    except FileNotFoundError:
        return header, "the run began without a replay log"
    except InputError:
        return header, f"{str(path)!r} is damaged"
    except OSError as error:
        raise unwritable(path, error) from error
    return found, "" if whole == step else f"{str(path)!r} ends with update {whole}"


def _same_run(one: Facts, other: Facts, changeable: Collection[str]) -> bool:
    """True if facts of headers are of one run; options that one does not know yet do not count."""
    pairs, network = (one.get(name) == other.get(name) for name in ("pairs", "network"))
    then, now = one.get("config"), other.get("config")
    if not (pairs and network and isinstance(then, dict) and isinstance(now, dict)):
        return False
    return all(then[name] == now[name] for name in (then.keys() & now.keys()) - {*changeable})


class SignLog(Growing):
    """replay.bin of a run under way: one record per update.

    Opening cuts it back to the updates up to `step`, as what follows them comes anew. lacks: why
    nothing more is recorded, empty if all is well.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        step: int,
        steps: int,
        signs: Callable[[], Any],
        changeable: Collection[str],
    ) -> None:
        """The log of a run that has made `step` of `steps` updates.

        facts: the header's, `pairs` and `config` among them; signs: of the last update's pairs,
        int8 [N]; changeable: options that a resumed run may change.
        """
        self._header, self._steps, self._signs, self.lacks = Header.of(facts), steps, signs, ""
        if step:
            self._header, self.lacks = _cut_back(path, self._header, step, changeable)
        else:
            write_whole(path, self._header.data())
        if not self.lacks:
            super().__init__(path)

    def append(self, row: Row) -> None:
        """Adds the whole record of the update of this line of metrics, or none.

        Raises:
            InputError: it cannot be written.
        """
        if not self.lacks:
            signs = np.asarray(self._signs())
            self.write(self._header.recorded(row["step"], self._steps, signs))

    def sync(self) -> None:
        if not self.lacks:
            super().sync()

    def __exit__(self, *error: object) -> None:
        if not self.lacks:
            super().__exit__(*error)
