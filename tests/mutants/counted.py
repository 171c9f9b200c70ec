"""Which lines of the kernels ran, from notes (.gcno) and counts (.gcda) of GCC 12 or newer.

A function that ran stands for all its lines, those of what is inlined in it among them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

FUNCTION, LINES, COUNTS = 0x01000000, 0x01450000, 0x01A10000  # tags of records
HEAD = 16  # bytes: what it is, version, stamp, checksum


class Notes:
    """What is read of a file, from a place on."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def number(self) -> int:
        (value,) = struct.unpack_from("<I", self.data, self.at)
        self.at += 4
        return int(value)

    def text(self) -> str:
        size = self.number()
        self.at += size
        return self.data[self.at - size : self.at].rstrip(b"\0").decode()


def records(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each; a size below 0 is that of counts that are all 0."""
    while at + 8 <= len(data):
        tag, size = struct.unpack_from("<Ii", data, at)
        yield tag, data[at + 8 : at + 8 + max(size, 0)]
        at += 8 + max(size, 0)


def lines_of(notes: bytes) -> dict[int, set[str]]:
    """Function -> its lines, as "block.h:41"."""
    head = Notes(notes, HEAD)
    head.text()  # the folder
    head.number()  # whether blocks may not be executed
    found, function = dict[int, set[str]](), 0
    for tag, data in records(notes, head.at):
        content = Notes(data, 0)
        if tag == FUNCTION:
            function = content.number()
            found[function] = set()
        elif tag == LINES:
            content.number()  # the block
            name = ""
            while content.at < len(data):
                if not (line := content.number()):
                    if not (path := content.text()):
                        break
                    name = Path(path).name if "int8_gemm" in path else ""
                elif name:
                    found[function].add(f"{name}:{line}")
    return found


def ran(counts: bytes) -> set[int]:
    """The functions that ran."""
    found, function = set(), 0
    for tag, data in records(counts, HEAD):
        if tag == FUNCTION and data:
            function = int(struct.unpack_from("<I", data)[0])
        elif tag == COUNTS and any(data):
            found.add(function)
    return found


def entered(build: Path, counts: Path, isa: str) -> dict[str, list[str]]:
    """Line -> the tests that meet it, none for lines that could be met and were not.

    build: the folder with the notes; counts: one with a line per test in `names` and the counts of
    test i in folder i; isa: the instruction set whose unit counts, of such units.
    """
    functions = {
        path.stem: lines_of(path.read_bytes())
        for path in build.rglob("*.gcno")
        if not path.name.startswith("isa_") or path.name == f"isa_{isa}.cpp.gcno"
    }
    lines = {line: set[str]() for unit in functions.values() for at in unit.values() for line in at}
    for i, name in enumerate((counts / "names").read_text().splitlines()):
        for path in (counts / str(i)).rglob("*.gcda"):
            unit = functions.get(path.stem, {})
            for function in ran(path.read_bytes()):
                for line in unit.get(function, ()):
                    lines[line].add(name)
    return {line: sorted(names) for line, names in lines.items()}
