"""replay.bin: the fitness of all pairs of every update, from which its weights can be rebuilt.

All numbers are little-endian. Header: `EGGSIGNS`, uint32 version, uint32 H, H bytes of JSON (kind,
pairs, config, network and, of a Trainer, its declaration and score_bits), uint32 CRC-32 of all
that. Then one record for every update: uint32 its number, from 1 on; uint32 the updates planned
then, as learning rates may depend on them; ceil(N / 5) bytes of signs (files.pack); uint32 CRC-32
of header and record.

With `packing` `small` in the header, a pair's fitness is a number from -15 to 15, and records
differ in size: byte 255 and uint32 the updates planned, if they are others than in the record
before; the bytes of files.pack_small; the three low bytes of the CRC-32 of header, number and
record.

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

from eggroll import files
from eggroll.errors import InputError, object_in
from eggroll.files import Row, flush_to_disk, unwritable, write_whole
from eggroll.training.folder import Growing

MAGIC: Final = b"EGGSIGNS"
VERSION: Final = 1
FRONT: Final = struct.Struct("<8sII")
NUMBERS, CHECK = struct.Struct("<II"), struct.Struct("<I")
SMALL: Final = "small"  # packing of fitness that is more than a sign
PLANNED: Final = 255  # the byte before another number of updates, with which no number begins
SHORT_CHECK: Final = 3  # bytes
LONGEST_FACTS, MOST_PAIRS = 1 << 24, 1 << 23
# Of the header's facts; those that may be missing are not of every kind of run.
SCHEMA: Final = {
    "pairs": int,
    "config": dict,
    "kind": str | None,
    "packing": str | None,
    "network": str | None,
    "declaration": str | None,
    "score_bits": int | None,
}

Signs = NDArray[np.int8]
Facts = dict[str, Any]


class Recorded(NamedTuple):
    """A record: the updates made with it, the updates planned then, signs or fitness int8 [N].

    before: the updates planned in the record before, or in the header.
    """

    step: int
    steps: int
    signs: Signs
    before: int


class Header(NamedTuple):
    """The beginning of the file, before the records. check: its CRC-32; size: its bytes."""

    facts: Facts
    check: int
    size: int

    @property
    def pairs(self) -> int:
        return int(self.facts["pairs"])

    @property
    def is_small(self) -> bool:
        """True if the records have numbers in the place of signs."""
        return self.facts.get("packing") == SMALL

    @property
    def planned(self) -> int:
        """The updates that were planned at first."""
        steps = self.facts["config"].get("steps")
        return steps if type(steps) is int else 0

    @property
    def record(self) -> int:
        """Bytes of a record; the most if they differ in size."""
        if self.is_small:
            longest = (2 * files.MOST_SMALL // 4 + 3) * self.pairs
            return 1 + CHECK.size + -(-longest // 8) + SHORT_CHECK
        return NUMBERS.size + files.packed_size(self.pairs) + CHECK.size

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

    def recorded(self, step: int, steps: int, signs: Signs, before: int) -> bytes:
        """The bytes of a record of these fields of `Recorded`."""
        if self.is_small:
            front = b"" if steps == before else bytes([PLANNED]) + CHECK.pack(steps)
            data = front + files.pack_small(signs).tobytes()
            return data + self._short_check(step, data)
        data = NUMBERS.pack(step, steps) + files.pack(signs).tobytes()
        return data + CHECK.pack(zlib.crc32(data, self.check))

    def _short_check(self, step: int, data: bytes) -> bytes:
        return CHECK.pack(zlib.crc32(CHECK.pack(step) + data, self.check))[:SHORT_CHECK]

    def read(self, data: bytes, step: int, before: int) -> Recorded | None:
        """The record of update `step` that begins these bytes; None if there is none."""
        try:
            found = (self._read_small if self.is_small else self._read_signs)(data, step, before)
        except (ValueError, struct.error):
            return None
        return found if found and found.step == step else None

    def _read_signs(self, data: bytes, step: int, before: int) -> Recorded | None:
        body = data[: -CHECK.size]
        if len(data) != self.record or data[-CHECK.size :] != CHECK.pack(
            zlib.crc32(body, self.check)
        ):
            return None
        packed = np.frombuffer(body, np.uint8, offset=NUMBERS.size)
        found, steps = NUMBERS.unpack_from(data)
        return Recorded(found, steps, files.unpack(packed, self.pairs), before)

    def _read_small(self, data: bytes, step: int, before: int) -> Recorded | None:
        front, steps = 0, before
        if data[:1] == bytes([PLANNED]):
            front, steps = 1 + CHECK.size, CHECK.unpack_from(data, 1)[0]
        packed = np.frombuffer(data[front:], np.uint8)
        fitness, size = files.unpack_small(packed, self.pairs)
        end = front + size
        if data[end : end + SHORT_CHECK] != self._short_check(step, data[:end]):
            return None
        return Recorded(step, steps, fitness, before)


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
    step, planned, data = 1, header.planned, b""
    while True:
        data += file.read(header.record - len(data))
        found = header.read(data, step, planned)
        if found is None:
            return
        yield found
        data = data[len(header.recorded(*found)) :]
        step, planned = step + 1, found.steps


class Kept(NamedTuple):
    """A log that a resumed run goes on with. planned: in its last record; lacks: see SignLog."""

    header: Header
    planned: int
    lacks: str


def _cut_back(path: Path, header: Header, step: int, changeable: Collection[str]) -> Kept:
    """Leaves the records up to `step`."""
    try:
        with open(path, "r+b") as file:
            found = header_of(file, path)
            if not _same_run(found.facts, header.facts, changeable):
                return Kept(found, 0, f"{str(path)!r} is of another run")
            whole, size, planned = 0, found.size, found.planned
            for one in islice(records(file, found), step):
                whole, size, planned = whole + 1, size + len(found.recorded(*one)), one.steps
            file.truncate(size)
            flush_to_disk(file.fileno())
    except FileNotFoundError:
        return Kept(header, 0, f"there is no {str(path)!r}")
    except InputError:
        return Kept(header, 0, f"{str(path)!r} is damaged")
    except OSError as error:
        raise unwritable(path, error) from error
    lacks = "" if whole == step else f"{str(path)!r} ends with update {whole}"
    return Kept(found, planned, lacks)


def _same_run(one: Facts, other: Facts, changeable: Collection[str]) -> bool:
    """True if facts of headers are of one run; options that one does not know yet do not count."""
    alike = all(one.get(name) == other.get(name) for name in ("pairs", "packing", "network"))
    then, now = one.get("config"), other.get("config")
    if not (alike and isinstance(then, dict) and isinstance(now, dict)):
        return False
    return all(then[name] == now[name] for name in (then.keys() & now.keys()) - {*changeable})


class SignLog(Growing):
    """replay.bin of a run under way: one record per update.

    Opening cuts it back to the updates up to `step`, as what follows them comes anew.
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
        header, self._steps, self._signs = Header.of(facts), steps, signs
        kept = Kept(header, header.planned, "")
        if step:
            kept = _cut_back(path, header, step, changeable)
        else:
            write_whole(path, header.data())
        self._header, self._planned, self.lacks = kept
        if not self.lacks:
            super().__init__(path)

    def append(self, row: Row) -> None:
        """Adds the whole record of the update of this line of metrics, or none.

        Raises:
            InputError: it cannot be written.
        """
        if not self.lacks:
            signs = np.asarray(self._signs())
            self.write(self._header.recorded(row["step"], self._steps, signs, self._planned))
            self._planned = self._steps
