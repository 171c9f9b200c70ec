"""chain.bin: a chain of digests over the updates of a run, by which verify.py checks a run.

All numbers are little-endian, all digests BLAKE2b of 32 bytes. Header: `EGGCHAIN`, uint32 version,
uint32 H, H bytes of JSON (kind, every, config, corpus, network, and `bound`: the options that no
resume changes), uint32 CRC-32 of all that. Then one record of 112 bytes for every update: uint32
its number, from 1 on; uint32 the updates planned then; int64 the sum of all members' scores; the
digest of all pairs' signs (zeros where votes do not follow from signs); after every 50th update and
the last one that of weights, memory and members' states (zeros elsewhere); and the link, which is
the digest of the link before and of the record up to here.

The first link before is the digest of kind, every, bound, corpus and network. So no engine, number
of threads, place of the data or stop changes a link: equal last links are equal runs. Anchors are
earlier checkpoints of updates whose states the chain knows, as far as they take little room.

Letters: P members, N pairs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import mlx.core as mx
import numpy as np

from eggroll.errors import InputError
from eggroll.files import ANCHORS, CHECKPOINT, Row, flush_to_disk, unwritable, write_whole
from eggroll.spec.program import Leaves
from eggroll.training.folder import Growing

MAGIC: Final = b"EGGCHAIN"
VERSION: Final = 1
FRONT, CHECK = struct.Struct("<8sII"), struct.Struct("<I")
BODY: Final = struct.Struct("<IIq32s32s")
LINK: Final = 32  # bytes of a digest
RECORD: Final = BODY.size + LINK
LONGEST_FACTS: Final = 1 << 24
EVERY: Final = 50  # updates from one digest of the whole state to the next
NONE: Final = bytes(LINK)  # in the place of a digest that was not taken
BOUND: Final = ("kind", "every", "bound", "corpus", "network")  # what the first link binds

MOST_ANCHORS, ANCHOR_BYTES = 16, 1 << 26  # of a run, and bytes of all of them

Facts = dict[str, Any]


class ChainError(InputError):
    """The first update at which a run is not what its chain says."""


class Link(NamedTuple):
    """An update in the chain: its number, the updates planned then, and what tells it from others.

    total_score: of all members; signs, state: digests, NONE where there is none.
    """

    step: int
    steps: int
    total_score: int
    signs: bytes
    state: bytes

    def after(self, before: bytes) -> bytes:
        """The record of this update, whose end is its link; before: the link before."""
        body = BODY.pack(*self)
        return body + digest(before, body)


def digest(*parts: bytes) -> bytes:
    """The digest of these bytes, one after the other."""
    hashed = hashlib.blake2b(digest_size=LINK)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def digest_signs(fitness: mx.array | None) -> bytes:
    """The digest of the signs of all pairs, int8 [N]; NONE where votes do not follow from them."""
    return NONE if fitness is None else digest(np.asarray(fitness).astype(np.int8).tobytes())


def digest_state(weights: Leaves, memory: Leaves, state: mx.array) -> bytes:
    """The digest of all that an update goes on from; state: int8 [P, state_size] of all members."""
    hashed = hashlib.blake2b(digest_size=LINK)
    for leaves in (weights, memory, {"state": state}):
        for name in sorted(leaves):
            array = np.ascontiguousarray(leaves[name])
            hashed.update(f"{name} {array.dtype} {array.shape}\n".encode())
            hashed.update(array.data)
    return hashed.digest()


def takes_state(step: int, steps: int) -> bool:
    """True if the record of this update has the digest of the whole state."""
    return step % EVERY == 0 or step == steps


# The file.


class ChainHeader(NamedTuple):
    """The beginning of the file; size: its bytes."""

    facts: Facts
    size: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The header of a new chain of these facts."""
        header = cls(json.loads(json.dumps({"every": EVERY, **facts})), 0)
        return header._replace(size=len(header.data()))

    def data(self) -> bytes:
        text = json.dumps(self.facts).encode()
        front = FRONT.pack(MAGIC, VERSION, len(text)) + text
        return front + CHECK.pack(zlib.crc32(front))

    def first_link(self) -> bytes:
        """The link before the first record."""
        bound = {name: self.facts.get(name) for name in BOUND}
        return digest(json.dumps(bound, sort_keys=True).encode())


def read_header(file: BinaryIO, path: Path) -> ChainHeader:
    """The header of an open file; the records follow.

    Raises:
        InputError: it is none of a chain, of a newer version, or damaged.
    """
    front = file.read(FRONT.size)
    if len(front) < FRONT.size or not front.startswith(MAGIC):
        raise ChainError(f"{str(path)!r} is no chain of a run: restore it from a copy.")
    _, version, length = FRONT.unpack(front)
    if version > VERSION:
        raise ChainError(
            f"chain {str(path)!r} has version {version} and this eggroll reads up to {VERSION}: "
            "update eggroll to verify it."
        )
    text = file.read(length) if length <= LONGEST_FACTS else b""
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(text)
        if isinstance(facts, dict) and file.read(CHECK.size) == CHECK.pack(
            zlib.crc32(front + text)
        ):
            return ChainHeader(facts, FRONT.size + length + CHECK.size)
    raise ChainError(
        f"chain {str(path)!r} differs before update 1: its header is damaged; restore it from a "
        "copy."
    )


def read_links(file: BinaryIO, header: ChainHeader) -> Iterator[tuple[Link, bytes]]:
    """The update and the link of every record.

    Raises:
        ChainError: at the first record that does not follow from the one before.
    """
    before, step = header.first_link(), 1
    while record := file.read(RECORD):
        if len(record) < RECORD:
            raise ChainError(
                f"update {step} differs: the chain ends within its record, as after a power cut; "
                "resume the run, which makes the update anew, or restore the chain from a copy."
            )
        link = Link(*BODY.unpack_from(record))
        if link.step != step or record != link.after(before):
            raise ChainError(f"update {step} differs: {_fault(link, step)}.")
        before = record[BODY.size :]
        yield link, before
        step += 1


def _fault(link: Link, step: int) -> str:
    """The fault of the record that stands in the place of an update."""
    if link.step == step:
        return "its record in the chain was changed, or does not follow from the one before"
    return f"in its place the chain has the record of update {link.step}"


class ChainLog(Growing):
    """chain.bin of a run under way: one record per update.

    Opening cuts it back to the updates up to `step`, as what follows them comes anew.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any], step: int, made: Callable[[], Link]
    ) -> None:
        """The chain of a run that has made `step` updates.

        facts: the header's; made: gives the last update.
        """
        self._made, self.lacks, header = made, "", ChainHeader.of(facts)
        self._last, self._step = header.first_link(), step
        if step:
            self._last, self.lacks = _cut_back(path, header.facts, step)
        else:
            write_whole(path, header.data())
        if not self.lacks:
            super().__init__(path)

    def append(self, row: Row) -> None:
        """Adds the record of the update of this line of metrics.

        Raises:
            InputError: it cannot be written.
        """
        if not self.lacks:
            record = self._made().after(self._last)
            self.write(record)
            self._last, self._step = record[BODY.size :], row["step"]

    def keep_anchor(self) -> None:
        """Keeps the checkpoint, which is of the last record's update, as an anchor if it is due."""
        if not self.lacks:
            keep_anchor(self.path.parent, self._step)


def _cut_back(path: Path, facts: Facts, step: int) -> tuple[bytes, str]:
    """Leaves the records up to `step`: the last link, and why they do not reach it."""
    last, whole = NONE, 0
    try:
        with open(path, "r+b") as file:
            header = read_header(file, path)
            if not _same_run(header.facts, facts):
                return last, f"{str(path)!r} is of another run"
            for link, last in read_links(file, header):
                whole = link.step
                if whole == step:
                    file.truncate(header.size + step * RECORD)
                    flush_to_disk(file.fileno())
                    return last, ""
    except FileNotFoundError:
        return last, f"there is no {str(path)!r}"
    except ChainError as error:
        return last, f"in {str(path)!r} {str(error).split(':')[0]}"
    except OSError as error:
        raise unwritable(path, error) from error
    return last, f"{str(path)!r} ends with update {whole}"


def _same_run(then: Facts, now: Facts) -> bool:
    """True if two headers are of one run; options that one does not know yet do not count."""
    if any(then.get(name) != now.get(name) for name in BOUND if name != "bound"):
        return False
    one, other = then.get("bound"), now["bound"]
    return isinstance(one, dict) and all(one[k] == other[k] for k in one.keys() & other.keys())


# Anchors: the checkpoints that were, from which a stretch of updates can be made again.


def anchors_in(folder: Path) -> dict[int, Path]:
    """The anchors of a run by their updates, in order."""
    found = {}
    with contextlib.suppress(OSError):
        for path in (folder / ANCHORS).iterdir():
            if path.suffix == ".safetensors" and path.stem.isdecimal():
                found[int(path.stem)] = path
    return dict(sorted(found.items()))


def keep_anchor(folder: Path, step: int) -> None:
    """Keeps the checkpoint of this update as an anchor; of too many, those that lie closest go.

    A second name of the same file, so nothing is copied. Anchors make verifying faster and are
    needed for nothing: where they cannot be made there are none.
    """
    with contextlib.suppress(OSError):
        size = (folder / CHECKPOINT).stat().st_size
        most = min(MOST_ANCHORS, ANCHOR_BYTES // size)
        if step == 0 or step % EVERY or most < 2:
            return
        place = folder / ANCHORS
        place.mkdir(exist_ok=True)
        anchor = place / f"{step}.safetensors"
        anchor.unlink(missing_ok=True)
        os.link(folder / CHECKPOINT, anchor)
        for path in surplus(anchors_in(folder), most):
            path.unlink()


def drop_anchors(folder: Path, step: int) -> None:
    """Drops the anchors of updates after `step`, which come anew."""
    for at, path in anchors_in(folder).items():
        if at > step:
            with contextlib.suppress(OSError):
                path.unlink()


def surplus(anchors: Mapping[int, Path], most: int) -> list[Path]:
    """The anchors to drop, so that `most` are left and no gap is wider than it must be."""
    steps, dropped = [0, *anchors], []
    while len(steps) - 1 > most:
        closest = min(range(1, len(steps) - 1), key=lambda i: steps[i + 1] - steps[i - 1])
        dropped.append(anchors[steps.pop(closest)])
    return dropped
