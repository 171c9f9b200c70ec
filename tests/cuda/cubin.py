"""The parts of a kernel's cubin beside its code: constant banks, arrays that it brings along.

A cubin is an ELF file. A bank is a section .nv.constantN, of the kernel or of all; bank 4 has the
addresses of arrays, which are known when these have a place in memory.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

RELOCATIONS = {4: 24, 9: 16}  # section types RELA and REL -> bytes of an entry
SYMBOLS = 2


class Section(NamedTuple):
    name: str
    kind: int
    data: bytes
    link: int  # the symbols of relocations
    info: int  # the section that relocations belong to


class Address(NamedTuple):
    """A place in a bank that holds the address of a byte of an array."""

    bank: int
    offset: int
    array: str
    at: int


class Cubin(NamedTuple):
    """Banks by number; arrays of device memory by section, with what they hold; addresses."""

    banks: dict[int, bytes]
    arrays: dict[str, bytes]
    addresses: list[Address]
    shared: int  # bytes of shared memory that the kernel declares besides the launch's


def text_at(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("ascii")


def sections(cubin: bytes) -> list[Section]:
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + size * n) for n in range(count)]

    def data(n: int) -> bytes:
        _, kind, _, _, offset, length, *_ = heads[n]
        empty = kind == 8  # NOBITS: zeros, of which the file has none
        return bytes(length) if empty else cubin[offset : offset + length]

    return [
        Section(text_at(data(names), head[0]), head[1], data(n), head[6], head[7])
        for n, head in enumerate(heads)
    ]


def cubin_of(cubin: bytes) -> Cubin:
    found = sections(cubin)
    banks: dict[int, bytes] = {}
    for section in found:
        bank = re.fullmatch(r"\.nv\.constant(\d+)(?:\..*)?", section.name)
        if bank:
            assert int(bank[1]) not in banks, "a kernel has a bank twice"
            banks[int(bank[1])] = section.data
    arrays = {s.name: s.data for s in found if s.name in (".nv.global", ".nv.global.init")}
    shared = sum(len(s.data) for s in found if s.name.startswith(".nv.shared."))
    addresses = []
    for section in found:
        if section.kind not in RELOCATIONS:
            continue
        of = re.match(r"\.nv\.constant(\d+)", found[section.info].name)
        if not of:
            continue
        step = RELOCATIONS[section.kind]
        for at in range(0, len(section.data), step):
            offset, info = struct.unpack_from("<QQ", section.data, at)
            symbol = struct.unpack_from("<IBBHQQ", found[section.link].data, 24 * (info >> 32))
            more = struct.unpack_from("<q", section.data, at + 16)[0] if step == 24 else 0
            array = found[symbol[3]].name
            assert array in arrays, f"an address of {array}"
            addresses.append(Address(int(of[1]), offset, array, symbol[4] + more))
    return Cubin(banks, arrays, addresses, shared)
