"""The instructions of NVIDIA's machine code that our kernels are made of, for lanes.py.

An instruction of arithmetic is a function of the values that it reads, as rows of 32 bits; the name
tells the rest. One with U before its name does the same once for a warp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from lanes import (
    ENDED,
    LANES,
    STACK,
    ZERO,
    MachineError,
    Mask,
    Step,
    Threads,
    Words,
    predicate,
    register,
)
from numpy.typing import NDArray
from sass import Instruction
from warp_arithmetic import PREDICATE, parts

Value = Callable[[Threads], Words]
LOW = np.uint64(0xFFFFFFFF)


def signed(v: Words) -> NDArray[np.int32]:
    return np.ascontiguousarray(v).view(np.int32)


def wide(low: Words, high: Words) -> NDArray[np.uint64]:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def halves(v: NDArray) -> list[Words]:
    """The words of 64 bits, the lower one first."""
    return [v.astype(np.uint32), (v >> v.dtype.type(32)).astype(np.uint32)]


def as_word(v: NDArray) -> Words:
    return v.astype(np.uint32)


# Arithmetic: of a name and values, to a value.


def shift(name: str, low: Words, by: Words, high: Words) -> Words:
    """SHF: two words shifted; with .HI the upper one of them, else the lower."""
    parts = {*name.split(".")[1:]}
    if parts - {"L", "R", "W", "HI", "U32", "S32", "U64", "S64"}:
        raise MachineError(f"{name} is not known")
    by = by & 31 if "W" in parts else np.minimum(by, 64 if parts & {"U64", "S64"} else 32)
    both = wide(low, high)
    if "S32" in parts or "S64" in parts:
        both = both.view(np.int64)
    half = by.astype(both.dtype) // 2  # as 64 at once is none in C
    rest = by.astype(both.dtype) - half
    out = both << half << rest if "L" in parts else both >> half >> rest
    return halves(out)["HI" in parts]


def by_table(table: int, a: Words, b: Words, c: Words) -> Words:
    """LOP3.LUT: bit 4 a + 2 b + c of the table."""
    total = np.zeros(1, np.uint32)
    for row in range(8):
        if table >> row & 1:
            x, y, z = (v if row & bit else ~v for v, bit in ((a, 4), (b, 2), (c, 1)))
            total = total | (x & y & z)
    return total


def permute(name: str, a: Words, selector: Words, b: Words) -> Words:
    """PRMT: bytes of two words; bit 3 spreads a byte's sign."""
    of_name(name, ("",))
    pool, total = wide(a, b), np.zeros(1, np.uint32)
    for place in range(4):
        nibble = selector >> np.uint32(4 * place)
        byte = as_word(pool >> ((nibble & 7) * 8).astype(np.uint64)) & 255
        spread = np.where(byte & 128, np.uint32(255), np.uint32(0))
        total = total | np.where(nibble & 8, spread, byte) << np.uint32(8 * place)
    return total


def dot(name: str, a: Words, b: Words, c: Words) -> Words:
    """IDP.4A: four bytes of each, multiplied and summed."""
    kinds = [np.int8 if kind == "S8" else np.uint8 for kind in name.split(".")[2:4]]
    if not name.startswith("IDP.4A.") or len(kinds) != 2:
        raise MachineError(f"{name} is not known")
    x, y = (
        np.ascontiguousarray(v).view(kind).reshape(-1, 4).astype(np.int32)
        for v, kind in zip((a, b), kinds, strict=True)
    )
    return as_word((x * y).sum(axis=1, dtype=np.int32)) + c


def clipped(v: Words, least: int, most: int) -> Words:
    return as_word(np.clip(signed(v), least, most))


def pack(name: str, high: Words, low: Words, above: Words | None = None) -> Words:
    """I2IP: two values, saturated, side by side; bytes go below the lower half of `above`."""
    if name == "I2IP.S8.S32.SAT":
        assert above is not None
        two = [clipped(v, -128, 127) & 255 for v in (high, low)]
        return above << 16 | two[0] << 8 | two[1]
    if name == "I2IP.S16.S32.SAT":
        two = [clipped(v, -32768, 32767) & 65535 for v in (high, low)]
        return two[0] << 16 | two[1]
    raise MachineError(f"{name} is not known")


def extreme(name: str, a: Words, b: Words, least: Mask) -> Words:
    """VIMNMX, IMNMX: the least where the predicate is true, else the largest."""
    parts = name.split(".")[1:]
    if parts in ([], ["S32"]):
        x, y = signed(a), signed(b)
    elif parts == ["U32"]:
        x, y = a, b
    elif parts in (["S16x2"], ["U16x2"]):
        kind = np.int16 if parts == ["S16x2"] else np.uint16
        x, y = (np.ascontiguousarray(v).view(kind).reshape(-1, 2) for v in (a, b))
        found = np.where(least[:, None], np.minimum(x, y), np.maximum(x, y))
        return np.ascontiguousarray(found).view(np.uint32).reshape(-1)
    else:
        raise MachineError(f"{name} is not known")
    return as_word(np.where(least, np.minimum(x, y), np.maximum(x, y)))


def leading(name: str, v: Words) -> Words:
    """FLO: the place of the highest bit, -1 for none; .SH: the zeros above it."""
    if not name.startswith("FLO.U32"):
        raise MachineError(f"{name} is not known")
    place = np.frexp(v.astype(np.float64))[1] - 1  # exact, as 53 bits hold it
    place = np.where(v == 0, -1, 31 - place if ".SH" in name else place)
    return as_word(place)


def reciprocal(name: str, v: Words) -> Words:
    """MUFU.RCP: of a float32; a GPU's differs by one unit in the last place at most."""
    if name != "MUFU.RCP":
        raise MachineError(f"{name} is not known")
    with np.errstate(all="ignore"):  # of lanes that do not do it
        return (np.float32(1) / v.view(np.float32)).astype(np.float32).view(np.uint32)


def to_float(name: str, v: NDArray) -> Words:
    """I2F: to float32, the nearest or, with .RP, none below; v: of the type that the name says."""
    found = v.astype(np.float32)
    if name.endswith("RP"):
        # 2^64 itself, the nearest of the largest ones, is no uint64.
        with np.errstate(all="ignore"):
            low = (found < np.float32(2**63)) & (found.astype(np.float64).astype(v.dtype) < v)
            low |= (
                (found >= np.float32(2**63))
                & (found < np.float32(2**64))
                & (found.astype(np.uint64) < v.astype(np.uint64))
            )
        found = np.where(low, np.nextafter(found, np.float32(np.inf)), found)
    return found.astype(np.float32).view(np.uint32)


def from_float(v: Words, bits: int) -> NDArray[np.uint64]:
    """F2I: toward zero, with the ends of the range of unsigned numbers beyond them."""
    with np.errstate(all="ignore"):
        exact = np.nan_to_num(np.trunc(v.view(np.float32).astype(np.float64)))
    inside = np.clip(exact, 0, 2.0**bits * (1 - 2.0**-53)).astype(np.uint64)
    return np.where(exact >= 2.0**bits, np.uint64((1 << bits) - 1), inside)


def of_name(name: str, known: Sequence[str]) -> None:
    if name.partition(".")[2] not in known:
        raise MachineError(f"{name} is not known")


def move(name: str, v: Words, *mask: Words) -> Words:
    of_name(name, ("", "32"))
    if mask and not (mask[0] == 0xF).all():
        raise MachineError(f"{name} of some bytes is not known")
    return v


def plus(name: str, a: Words, b: Words) -> Words:
    of_name(name, ("",))
    return a + b


def magnitude(name: str, v: Words) -> Words:
    of_name(name, ("",))
    return as_word(np.abs(signed(v)))


def bits_of(name: str, v: Words) -> Words:
    of_name(name, ("",))
    return as_word(np.bitwise_count(v))


VALUES: dict[str, Callable[..., Words]] = {
    "MOV": move, "VIADD": plus, "IADD": plus, "SHF": shift, "PRMT": permute, "IABS": magnitude,
    "IDP": dot, "I2IP": pack, "FLO": leading, "POPC": bits_of, "MUFU": reciprocal,
}  # fmt: skip


# Operands.


class Operands(NamedTuple):
    """An instruction's operands by what they are: result, predicates written, values, predicates.

    uniform: whether it is one for a warp.
    """

    out: str
    written: list[str]
    values: list[Value]
    texts: list[str]
    read: list[Callable[[Threads], Mask]]
    uniform: bool

    def all(self, t: Threads) -> list[Words]:
        return [value(t) for value in self.values]

    def put(self, t: Threads, values: Sequence[Words], mask: Mask | None) -> None:
        """Writes the result, and the registers behind it."""
        if not self.out:
            return
        first, put = register(self.out), t.put_uniform if self.uniform else t.put
        for i, value in enumerate(values):
            put(first + i if first != ZERO else ZERO, value, mask)

    def decide(self, t: Threads, found: Sequence[Mask], mask: Mask | None) -> None:
        """Writes predicates."""
        put = t.put_uniform_predicate if self.uniform else t.put_predicate
        for text, value in zip(self.written, found, strict=False):
            put(number_of(text), value, mask)


def number_of(text: str) -> int:
    """Of a predicate that is written."""
    found = re.fullmatch(r"U?P(\d|T)", text)
    if not found:
        raise MachineError(f"{text!r} cannot be written")
    return 7 if found[1] == "T" else int(found[1])


def constant_of(t: Threads, bank: int, offset: int) -> Words:
    words = t.banks.get(bank)
    if words is None or offset % 4 or not 0 <= offset // 4 < len(words):
        raise MachineError(f"there is no constant c[{bank:#x}][{offset:#x}]")
    return words[offset // 4 : offset // 4 + 1]


def value_of(text: str, uniform: bool) -> Value:
    """An operand as 32 bits: of lanes, or of warps if the instruction is uniform."""
    if found := re.fullmatch(r"(-?)0x([0-9a-f]+)", text):
        number = int(found[2], 16) * (-1 if found[1] else 1)
        fixed = np.array([number & 0xFFFFFFFF], np.uint32)
        return lambda t: fixed
    if text[0] in "-~":
        inner = value_of(text[1:], uniform)
        return (lambda t: ~inner(t) + np.uint32(1)) if text[0] == "-" else (lambda t: ~inner(t))
    if found := re.fullmatch(r"c\[0x([0-9a-f]+)\]\[0x([0-9a-f]+)\]", text):
        bank, offset = int(found[1], 16), int(found[2], 16)
        return lambda t: constant_of(t, bank, offset)
    if re.fullmatch(r"UR(\d+|Z)", text):
        number = register(text)
        if uniform:
            return lambda t: t.uniform[number]
        return lambda t: t.of_warps(t.uniform[number])
    if re.fullmatch(r"R(\d+|Z)", text):
        number = register(text)
        if uniform:
            raise MachineError(f"{text} in an instruction of a warp")
        return lambda t: t.registers[number]
    raise MachineError(f"the operand {text!r} is not known")


def next_word(text: str) -> str:
    """The operand with the upper word of one of 64 bits."""
    if found := re.fullmatch(r"(U?R)(\d+)", text):
        return f"{found[1]}{int(found[2]) + 1}"
    if found := re.fullmatch(r"(c\[0x[0-9a-f]+\]\[0x)([0-9a-f]+)\]", text):
        return f"{found[1]}{int(found[2], 16) + 4:x}]"
    if text in ("RZ", "URZ"):
        return text
    if re.fullmatch(r"0x[0-9a-f]+", text):
        return "0x0"
    raise MachineError(f"{text!r} has no 64 bits")


def wide_of(text: str, uniform: bool) -> Callable[[Threads], NDArray[np.uint64]]:
    low, high = value_of(text, uniform), value_of(next_word(text), uniform)
    return lambda t: wide(low(t), high(t))


def read_predicate(text: str, uniform: bool) -> Callable[[Threads], Mask]:
    if not uniform:
        return predicate(text)
    of_lanes = predicate(text)
    return lambda t: of_lanes(t)[::LANES]


def operands(i: Instruction, uniform: bool) -> Operands:
    out, written, texts, read = parts(i)
    values = [value_of(text, uniform) for text in texts]
    found = [read_predicate(text, uniform) for text in read]
    return Operands(out, written, values, texts, found, uniform)


# Steps of instructions with more than one result or other than plain operands.

Compute = Callable[[Threads, Mask | None], None]


def plain(i: Instruction, kind: str, uniform: bool) -> Compute:
    of, combine = operands(i, uniform), VALUES[kind]
    name = i.name.removeprefix("U") if uniform else i.name

    def compute(t: Threads, mask: Mask | None) -> None:
        of.put(t, [combine(name, *of.all(t))], mask)

    return compute


def add(i: Instruction, kind: str, uniform: bool) -> Compute:
    """IADD3: up to two carries out; with .X as many in. A negative is a complement and one more."""
    of_name(i.name, ("", "X"))
    out, written, texts, read = parts(i)
    carried = [read_predicate(text, uniform) for text in read] if i.name.endswith(".X") else []
    minus = [text[0] == "-" and "0x" not in text for text in texts]
    values = [
        value_of(f"~{text[1:]}" if less else text, uniform)
        for text, less in zip(texts, minus, strict=True)
    ]
    of = Operands(out, written, values, texts, [], uniform)

    def compute(t: Threads, mask: Mask | None) -> None:
        total = np.full(1, sum(minus), np.uint64)
        for value in (*of.all(t), *(each(t) for each in carried)):
            total = total + value.astype(np.uint64)
        low, over = halves(total)
        of.put(t, [low], mask)
        of.decide(t, [over > 0, over > 1], mask)

    return compute


def multiply(i: Instruction, kind: str, uniform: bool) -> Compute:
    """IMAD: the sum is of 64 bits with .WIDE and .HI, and its third operand is a pair then."""
    parts = [p for p in i.name.split(".")[1:] if p not in ("MOV", "SHL", "IADD")]
    if {*parts} - {"WIDE", "HI", "U32", "X"}:
        raise MachineError(f"{i.name} is not known")
    of = operands(i._replace(operands=(*i.operands,)), uniform)
    if len(of.values) != 3:
        raise MachineError(f"{i} has other operands than known")
    long = "WIDE" in parts or "HI" in parts
    kinds = np.uint64 if "U32" in parts else np.int64
    third = wide_of(of.texts[2], uniform) if long else None

    def compute(t: Threads, mask: Mask | None) -> None:
        a, b = of.values[0](t), of.values[1](t)
        carried = [each(t).astype(np.uint64) for each in of.read] if "X" in parts else []
        if third is None:
            total = a * b + of.values[2](t)
            of.put(t, [total + as_word(sum(carried))] if carried else [total], mask)
            return
        if kinds is np.int64:
            a, b = signed(a), signed(b)
        product = (a.astype(kinds) * b.astype(kinds)).view(np.uint64)
        total = product + third(t)
        over = total < product
        for each in carried:
            total = total + each
            over = over | (total < each)
        words = halves(total)
        of.put(t, words[1:] if "HI" in parts else words, mask)
        of.decide(t, [over], mask)

    return compute


def lea(i: Instruction, kind: str, uniform: bool) -> Compute:
    """LEA: (a << n) + b; .HI: the upper word of c:a << n, .SX32: of a, sign-extended."""
    parts = i.name.split(".")[1:]
    if {*parts} - {"HI", "X", "SX32"}:
        raise MachineError(f"{i.name} is not known")
    of, high = operands(i, uniform), "HI" in parts
    count = 4 if high and "SX32" not in parts else 3
    if len(of.values) != count:
        raise MachineError(f"{i} has other operands than known")

    def compute(t: Threads, mask: Mask | None) -> None:
        a, b, *rest = of.all(t)
        by = rest[-1].astype(np.uint64)
        if high:
            upper = as_word(signed(a) >> 31) if "SX32" in parts else rest[0]
            moved = halves(wide(a, upper) << by)[1]
        else:
            moved = as_word(a.astype(np.uint64) << by)
        total = moved.astype(np.uint64) + b.astype(np.uint64)
        for carried in of.read if "X" in parts else ():
            total = total + carried(t).astype(np.uint64)
        low, over = halves(total)
        of.put(t, [low], mask)
        of.decide(t, [over > 0], mask)

    return compute


def logic(i: Instruction, kind: str, uniform: bool) -> Compute:
    """LOP3.LUT: a predicate is whether some bit is set, or the last predicate is."""
    of_name(i.name, ("LUT",))
    of = operands(i, uniform)
    table = int(of.texts[3], 16)

    def compute(t: Threads, mask: Mask | None) -> None:
        total = by_table(table, *of.all(t)[:3])
        of.put(t, [total], mask)
        if of.written:
            of.decide(t, [(total != 0) | of.read[0](t)], mask)

    return compute


COMPARE: dict[str, Callable[..., Mask]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip


def compare(i: Instruction, kind: str, uniform: bool) -> Compute:
    """ISETP: a comparison and a predicate; .EX: of upper words after one of the lower."""
    relation, *rest = i.name.split(".")[1:]
    if {*rest} - {"U32", "S32", "AND", "OR", "XOR", "EX"}:
        raise MachineError(f"{i.name} is not known")
    first, second, a_text, b_text, *read_texts = i.operands
    a_value, b_value = value_of(a_text, uniform), value_of(b_text, uniform)
    read = [read_predicate(text, uniform) for text in read_texts]
    of = Operands("", [first, second], [], [], read, uniform)

    def compute(t: Threads, mask: Mask | None) -> None:
        a, b = a_value(t), b_value(t)
        if "U32" not in rest:
            a, b = signed(a), signed(b)
        found = COMPARE[relation](a, b)
        if "EX" in rest:
            found = np.where(a == b, read[-1](t), found)
        joined = read[0](t)
        put = []
        for one in (found, ~found):
            if "OR" in rest:
                put.append(one | joined)
            else:
                put.append(one ^ joined if "XOR" in rest else one & joined)
        of.decide(t, put, mask)

    return compute


def predicate_logic(i: Instruction, kind: str, uniform: bool) -> Compute:
    """PLOP3.LUT: two predicates by two tables of three."""
    of_name(i.name, ("LUT",))
    first, second, *texts, one, two = i.operands
    read = [read_predicate(text, uniform) for text in texts[:3]]
    tables = int(one, 16), int(two, 16)
    of = Operands("", [first, second], [], [], read, uniform)

    def compute(t: Threads, mask: Mask | None) -> None:
        values = [each(t) for each in read]
        row = values[0] * 4 + values[1] * 2 + values[2] * 1
        of.decide(t, [(table >> row & 1).astype(np.bool_) for table in tables], mask)

    return compute


def select(i: Instruction, kind: str, uniform: bool) -> Compute:
    of_name(i.name, ("",))
    of = operands(i, uniform)

    def compute(t: Threads, mask: Mask | None) -> None:
        a, b = of.all(t)
        of.put(t, [np.where(of.read[0](t), a, b)], mask)

    return compute


def extremes(i: Instruction, kind: str, uniform: bool) -> Compute:
    """VIMNMX, IMNMX; VIMNMX3: of three values; VIADDMNMX: of a sum and a third value."""
    of, name = operands(i, uniform), i.name.removeprefix("U") if uniform else i.name

    def compute(t: Threads, mask: Mask | None) -> None:
        *rest, last = np.broadcast_arrays(*of.all(t), np.zeros(t.n, np.uint32))[:-1]
        least = np.broadcast_to(of.read[0](t), last.shape)
        if kind == "VIADDMNMX":
            rest = [rest[0] + rest[1]]
        for value in rest:
            last = extreme(name, value, last, least)
        of.put(t, [last], mask)

    return compute


TO_FLOAT: dict[str, type] = {
    "I2F.U32.RP": np.uint32, "I2F.RP": np.int32, "I2F.U64.RP": np.uint64,
    "I2FP.F32.U32": np.uint32, "I2FP.F32.S32": np.int32,
}  # fmt: skip
FROM_FLOAT = {"F2I.FTZ.U32.TRUNC.NTZ": 32, "F2I.U64.TRUNC": 64}  # bits


def convert(i: Instruction, kind: str, uniform: bool) -> Compute:
    """I2F, F2I: of 32 bits or of a pair."""
    out, text = i.operands
    of = Operands(out, [], [], [], [], uniform)
    if i.name in FROM_FLOAT:
        value, bits = value_of(text, uniform), FROM_FLOAT[i.name]
        return lambda t, mask: of.put(t, halves(from_float(value(t), bits))[: bits // 32], mask)
    if i.name not in TO_FLOAT:
        raise MachineError(f"{i.name} is not known")
    number = TO_FLOAT[i.name]
    read = wide_of(text, uniform) if number is np.uint64 else value_of(text, uniform)
    return lambda t, mask: of.put(t, [to_float(i.name, read(t).view(number))], mask)


def moved_halves(i: Instruction, kind: str, uniform: bool) -> Compute:
    """HFMA2 of zeros, by which the compiler loads two halves of float16 as a constant."""
    out, a, b, *numbers = i.operands
    if {a.lstrip("-"), b.lstrip("-")} != {"RZ"} or len(numbers) != 2:
        raise MachineError(f"{i} is no constant")
    high, low = (int(np.float16(float(text)).view(np.uint16)) for text in numbers)
    value, of = np.array([high << 16 | low], np.uint32), Operands(out, [], [], [], [], uniform)
    return lambda t, mask: of.put(t, [value], mask)


def byte_of(text: str) -> int:
    found = re.search(r"\.B([0-3])", text)
    return 8 * int(found[1]) if found else 0


def save_predicates(i: Instruction, kind: str, uniform: bool) -> Compute:
    """P2R: predicates in place of some bits of a register, or of a byte of it."""
    out, what, text, mask_text = i.operands
    bits, by, before = int(mask_text, 16), byte_of(i.name), value_of(text, False)
    if what != "PR":
        raise MachineError(f"{i} is not known")
    of = Operands(out, [], [], [], [], False)

    def compute(t: Threads, mask: Mask | None) -> None:
        total = before(t) & np.uint32(~(bits << by) & 0xFFFFFFFF)
        for n in range(7):
            if bits >> n & 1:
                total = total | t.predicates[n].astype(np.uint32) << np.uint32(n + by)
        of.put(t, [total], mask)

    return compute


def restore_predicates(i: Instruction, kind: str, uniform: bool) -> Compute:
    """R2P: the other way."""
    what, text, mask_text = i.operands
    bits, by, value = int(mask_text, 16), byte_of(text), value_of(text.partition(".")[0], False)
    if what != "PR":
        raise MachineError(f"{i} is not known")

    def compute(t: Threads, mask: Mask | None) -> None:
        v = value(t)
        for n in range(7):
            if bits >> n & 1:
                t.put_predicate(n, (v >> np.uint32(n + by) & 1).astype(np.bool_), mask)

    return compute


def vote(i: Instruction, kind: str, uniform: bool) -> Compute:
    """VOTE, VOTEU: a predicate of all lanes that do it, or of one of them; their bits as well."""
    *first, written, text = i.operands
    value, number, of_warp = predicate(text), number_of(written), kind == "VOTEU"
    how = i.name.partition(".")[2]
    if how not in ("ALL", "ANY") or len(first) > 1:
        raise MachineError(f"{i} is not known")
    of = Operands("".join(first), [], [], [], [], of_warp)

    def compute(t: Threads, mask: Mask | None) -> None:
        some = np.ones(t.n, np.bool_) if mask is None else mask
        lanes = t.lanes_of(some & value(t))
        found = lanes == t.lanes_of(some) if how == "ALL" else lanes != 0
        if of_warp:
            of.put(t, [lanes[::LANES]], mask)
            t.put_uniform_predicate(number, found[::LANES], mask)
        else:
            of.put(t, [lanes], mask)
            t.put_predicate(number, found, mask)

    return compute


def special(i: Instruction, kind: str, uniform: bool) -> Compute:
    """S2R, S2UR: thread, block and lane numbers. CS2R: zeros."""
    out, what = i.operands
    words = 2 if i.name == "CS2R" else 1
    axis = {"X": 0, "Y": 1, "Z": 2}.get(what[-1], 0)

    def numbers(t: Threads) -> Words:
        if what.startswith("SR_TID."):
            return t.thread if axis == 0 else np.zeros(t.n, np.uint32)
        if what.startswith("SR_CTAID."):
            return t.of.numbers[t.block, axis]
        if what == "SR_LANEID":
            return t.lane
        if what in ("SRZ", "SR_CgaCtaId"):
            return np.zeros(t.n, np.uint32)
        raise MachineError(f"{what} is not known")

    of = Operands(out, [], [], [], [], uniform)

    def compute(t: Threads, mask: Mask | None) -> None:
        value = numbers(t)
        of.put(t, [value[::LANES] if uniform else value] * words, mask)

    return compute


def to_uniform(i: Instruction, kind: str, uniform: bool) -> Compute:
    """R2UR: the value of a warp's first lane that does it; all of them have the same."""
    *_, out, text = i.operands
    value = value_of(text, False)
    number = register(out)

    def compute(t: Threads, mask: Mask | None) -> None:
        v = np.broadcast_to(value(t), (t.n,)).reshape(-1, LANES)
        some = np.ones((t.warps, LANES), np.bool_) if mask is None else mask.reshape(-1, LANES)
        first = v[np.arange(t.warps), some.argmax(axis=1)]
        if ((v != first[:, None]) & some).any():
            raise MachineError("R2UR of lanes that differ")
        t.put_uniform(number, first, mask)

    return compute


# Memory.

BYTES = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


def size_of(name: str) -> int:
    return next((BYTES[part] for part in name.split(".") if part in BYTES), 4)


ADDRESS = re.compile(r"(?:desc\[UR\d+\])?\[(.*)\]")
TERM = re.compile(r"(-?)(U?R(?:\d+|Z)|0x[0-9a-f]+)(?:\.(64|U32|X4|X8|X16))?")


def address_of(text: str, device: bool) -> Callable[[Threads], NDArray[np.uint64]]:
    """The sum in brackets: registers, a pair of them, one that is scaled, a number.

    device: whether a register is a pair, unless it says .U32.
    """
    found = ADDRESS.fullmatch(text)
    if not found:
        raise MachineError(f"the address {text!r} is not known")
    terms: list[Callable[[Threads], NDArray[np.uint64]]] = []
    for word in re.split(r"\+(?=[-UR0])", found[1]):
        term = TERM.fullmatch(word)
        if not term:
            raise MachineError(f"the address {text!r} is not known")
        sign, plain_text, how = term[1], term[2], term[3]
        if how == "64" or (device and not how and "R" in plain_text):
            terms.append(wide_of(plain_text, False))
            continue
        number = value_of(plain_text, False)
        by = np.uint64({"X4": 4, "X8": 8, "X16": 16}.get(how or "", 1))
        if sign:
            terms.append(lambda t, n=number: np.uint64(0) - n(t).astype(np.uint64))  # type: ignore[misc]
        else:
            terms.append(lambda t, n=number, by=by: n(t).astype(np.uint64) * by)  # type: ignore[misc]

    def address(t: Threads) -> NDArray[np.uint64]:
        total = np.zeros(t.n, np.uint64)
        for term in terms:
            total = total + term(t)
        return total

    return address


def place_in(t: Threads, kind: str, address: NDArray[np.uint64]):
    """The memory of an instruction's kind, and addresses in it for all threads."""
    if kind in ("LDG", "STG"):
        return t.memory, address
    address = address & LOW  # 32 bits
    if kind in ("LDS", "STS"):
        size = t.shared_size
        at = address.astype(np.int64) - t.shared_begin
        if ((at < 0) | (at >= max(size, 1))).any():
            wrong = int(at[(at < 0) | (at >= size)][0])
            raise MachineError(f"byte {wrong} of {size} bytes of shared memory")
        return t.shared, (at + t.block[t.doing] * t.stride).astype(np.uint64)
    if (address >= STACK).any():
        raise MachineError("an access outside a thread's own memory")
    return t.stacks, address + t.own[t.doing]


def load(i: Instruction, kind: str, uniform: bool) -> Compute:
    size, out = size_of(i.name), register(i.operands[0])
    address = address_of(i.operands[1], kind == "LDG")
    extend = {"S8": np.int8, "S16": np.int16}
    narrow = next((extend[part] for part in i.name.split(".") if part in extend), None)

    def compute(t: Threads, mask: Mask | None) -> None:
        t.doing = np.arange(t.n) if mask is None else np.flatnonzero(mask)
        memory, at = place_in(t, kind, address(t)[t.doing])
        for n, word in enumerate(memory.load(at, size)):
            value = word.astype(narrow).astype(np.int32).view(np.uint32) if narrow else word
            if out != ZERO:
                t.registers[out + n][t.doing] = value

    return compute


def store(i: Instruction, kind: str, uniform: bool) -> Compute:
    size, address = size_of(i.name), address_of(i.operands[0], kind == "STG")
    first = register(i.operands[1])
    numbers = [first + n if first != ZERO else ZERO for n in range(max(size // 4, 1))]

    def compute(t: Threads, mask: Mask | None) -> None:
        t.doing = np.arange(t.n) if mask is None else np.flatnonzero(mask)
        memory, at = place_in(t, kind, address(t)[t.doing])
        memory.store(at, size, [t.registers[n][t.doing] for n in numbers])

    return compute


def constant(i: Instruction, kind: str, uniform: bool) -> Compute:
    """LDC, ULDC, LDCU: a constant, at a place that a register may add to."""
    size = size_of(i.name)
    found = re.fullmatch(r"c\[0x([0-9a-f]+)\]\[(.*)\]", i.operands[1])
    if not found or (size < 4 and "U8" not in i.name):
        raise MachineError(f"{i} is not known")
    bank, terms = int(found[1], 16), [value_of(word, uniform) for word in found[2].split("+")]
    of = Operands(i.operands[0], [], [], [], [], uniform)

    def compute(t: Threads, mask: Mask | None) -> None:
        at = np.zeros(1, np.int64)
        for term in terms:
            at = at + term(t).astype(np.int64)
        words = t.banks.get(bank)
        if mask is not None and len(at) == t.n:
            at = np.where(mask, at, at[np.argmax(mask)])
        if words is None or (at < 0).any() or (at + size > 4 * len(words)).any():
            raise MachineError(f"a read outside constant bank {bank}")
        if size == 1:
            of.put(t, [words.view(np.uint8)[at].astype(np.uint32)], mask)
            return
        if (at % 4).any():
            raise MachineError("a constant that is not aligned")
        of.put(t, [words[at // 4 + n] for n in range(size // 4)], mask)

    return compute


# Who goes on.


def warp_wide(work: Callable[[Threads, Mask], None]) -> Callable[[Threads, int, Mask], None]:
    """What all lanes of a warp do together; those that come first wait."""

    def control(t: Threads, at: int, mask: Mask) -> None:
        ready = t.whole_warps(mask)
        if ready.any():
            work(t, ready)
        t.wait(at, mask & ~ready)

    return control


def shuffle(i: Instruction) -> Callable[[Threads, Mask], None]:
    valid, out, text, lane_text, clamp = i.operands
    if valid != "PT" or clamp != "0x1f":
        raise MachineError(f"{i} is not known")
    value, lane, number = value_of(text, False), value_of(lane_text, False), register(out)
    how = i.name.partition(".")[2]

    def work(t: Threads, mask: Mask) -> None:
        by = np.broadcast_to(lane(t), (t.n,))
        if how == "BFLY":
            other = t.lane ^ by
        elif how == "IDX":
            other = by
        else:
            raise MachineError(f"{i.name} is not known")
        v = np.broadcast_to(value(t), (t.n,))
        other = (other & 31).astype(np.int64) + t.warp * LANES
        t.put(number, v[other], mask)

    return work


def reduction(i: Instruction) -> Callable[[Threads, Mask], None]:
    """REDUX.SUM: the sum over a warp, as a value of the warp."""
    if not re.fullmatch(r"REDUX\.SUM(\.S32)?", i.name):
        raise MachineError(f"{i.name} is not known")
    out, text = i.operands
    value, number = value_of(text, False), register(out)

    def work(t: Threads, mask: Mask) -> None:
        v = np.where(mask, np.broadcast_to(value(t), (t.n,)), np.uint32(0)).reshape(-1, LANES)
        t.put_uniform(number, v.sum(axis=1, dtype=np.uint32), mask)

    return work


def product(i: Instruction) -> Callable[[Threads, Mask], None]:
    """IMMA: as the tables of the PTX ISA have mma.sync, by warps."""
    shapes = {"IMMA.16832.S8.S8": 2, "IMMA.8816.S8.S8": 1}
    if i.name not in shapes:
        raise MachineError(f"{i.name} is not known")
    H = shapes[i.name]  # halves of rows, and of inputs
    out = register(i.operands[0])
    a, b, c = (register(text.partition(".")[0]) for text in i.operands[1:4])

    def rows(t: Threads, first: int, count: int) -> NDArray:
        """[warps, group, quad, words]"""
        numbers = [first + n if first != ZERO else ZERO for n in range(count)]
        return np.stack([t.registers[n] for n in numbers], axis=1).reshape(t.warps, 8, 4, count)

    def work(t: Threads, mask: Mask) -> None:
        of_a = np.ascontiguousarray(rows(t, a, H * H)).view(np.int8)
        of_b = np.ascontiguousarray(rows(t, b, H)).view(np.int8)
        left = of_a.reshape(t.warps, 8, 4, H, H, 4).transpose(0, 4, 1, 3, 2, 5)
        right = of_b.reshape(t.warps, 8, 4, H, 4).transpose(0, 3, 2, 4, 1)
        # Exact: at most 32 products of 2^14.
        total = np.matmul(
            left.reshape(t.warps, 8 * H, 16 * H).astype(np.float32),
            right.reshape(t.warps, 16 * H, 8).astype(np.float32),
        ).astype(np.int32)
        each = total.reshape(t.warps, H, 8, 4, 2).transpose(2, 0, 3, 1, 4)
        each = each.transpose(1, 0, 2, 3, 4).reshape(t.n, 2 * H)
        for n in range(2 * H):
            before = t.registers[c + n if c != ZERO else ZERO]
            t.put(out + n, each[:, n].astype(np.uint32) + before, mask)

    return work


def barrier(i: Instruction) -> Callable[[Threads, int, Mask], None]:
    if not i.name.startswith("BAR.SYNC") or i.operands[0] != "0x0":
        raise MachineError(f"{i} is not known")

    def control(t: Threads, at: int, mask: Mask) -> None:
        t.wait(at, mask & ~t.whole_blocks(mask))

    return control


def branch(i: Instruction) -> Callable[[Threads, int, Mask], None]:
    target = i.target
    if target < 0:
        raise MachineError(f"{i} goes to a place that is not known")
    more = predicate(i.operands[0]) if PREDICATE.fullmatch(i.operands[0]) else None

    def control(t: Threads, at: int, mask: Mask) -> None:
        t.at[mask if more is None else mask & more(t)] = target

    return control


def end(t: Threads, at: int, mask: Mask) -> None:
    t.state[mask] = ENDED


def returns(i: Instruction) -> Callable[[Threads, int, Mask], None]:
    """RET: to the instruction whose address, in bytes, lies in a register."""
    number = register(i.operands[0].partition(" ")[0])

    def control(t: Threads, at: int, mask: Mask) -> None:
        t.at[mask] = t.registers[number][mask].astype(np.int64) // 16

    return control


def meeting(i: Instruction) -> Callable[[Threads, int, Mask], None]:
    """BSYNC: with those that BSSY named."""
    name = i.operands[-1]

    def control(t: Threads, at: int, mask: Mask) -> None:
        t.wait(at, mask & ~t.joined(name, mask))

    return control


def name_lanes(i: Instruction, kind: str, uniform: bool) -> Compute:
    """BSSY: the lanes that do it will meet at a BSYNC."""
    name = i.operands[0]

    def compute(t: Threads, mask: Mask | None) -> None:
        mask = np.ones(t.n, np.bool_) if mask is None else mask
        lanes = t.joins.setdefault(name, np.zeros(t.n, np.uint32))
        lanes[mask] = t.lanes_of(mask)[mask]

    return compute


def leave(i: Instruction, kind: str, uniform: bool) -> Compute:
    """BREAK: the lanes that do it will not come to the BSYNC."""
    name = i.operands[-1]

    def compute(t: Threads, mask: Mask | None) -> None:
        mask = np.ones(t.n, np.bool_) if mask is None else mask
        t.joins[name] &= ~t.lanes_of(mask)

    return compute


def nothing(i: Instruction, kind: str, uniform: bool) -> Compute:
    return lambda t, mask: None


COMPUTES: dict[str, Callable[[Instruction, str, bool], Compute]] = {
    **dict.fromkeys(VALUES, plain),
    "IADD3": add, "IMAD": multiply, "LEA": lea, "LOP3": logic, "ISETP": compare,
    "PLOP3": predicate_logic, "SEL": select, "VIMNMX": extremes, "IMNMX": extremes,
    "VIADDMNMX": extremes, "VIMNMX3": extremes, "HFMA2": moved_halves, "I2F": convert,
    "I2FP": convert, "F2I": convert, "P2R": save_predicates,
    "R2P": restore_predicates, "VOTE": vote, "VOTEU": vote,
    "S2R": special, "CS2R": special, "R2UR": to_uniform,
    "LDG": load, "LDS": load, "LDL": load, "STG": store, "STS": store, "STL": store,
    "LDC": constant, "LDCU": constant, "BSSY": name_lanes, "BREAK": leave, "NOP": nothing,
    "YIELD": nothing, "BMOV": nothing,  # of B registers that nobody meets at any more
}  # fmt: skip
CONTROLS: dict[str, Callable[[Instruction], Callable[[Threads, int, Mask], None]]] = {
    "BAR": barrier, "BRA": branch, "EXIT": lambda i: end, "BSYNC": meeting, "RET": returns,
    "CALL": branch,
    "SHFL": lambda i: warp_wide(shuffle(i)),
    "IMMA": lambda i: warp_wide(product(i)),
    "REDUX": lambda i: warp_wide(reduction(i)),
    # With all lanes of a warp there, neither parts them.
    "WARPSYNC": lambda i: warp_wide(lambda t, mask: None),
    "BRA.DIV": lambda i: warp_wide(lambda t, mask: None),
}  # fmt: skip


def step_of(i: Instruction) -> Step:
    """What an instruction does. Raises MachineError if it is not known."""
    guard = predicate(i.guard) if i.guard else None
    kind = i.name.partition(".")[0]
    control = CONTROLS.get(i.name) or CONTROLS.get(kind)
    if control:
        return Step(guard, nothing(i, kind, False), control(i))
    uniform = kind == "S2UR" or (kind[0] == "U" and kind[1:] in COMPUTES)
    kind = {"S2UR": "S2R"}.get(kind, kind[1:] if uniform else kind)
    if kind not in COMPUTES:
        raise MachineError(f"{i.name} is not known")
    plain_name = i._replace(name=i.name[1:]) if uniform and i.name[0] == "U" else i
    return Step(guard, COMPUTES[kind](plain_name, kind, uniform))


def refusal(i: Instruction, why: MachineError) -> Step:
    """An instruction that is not known, and may never be come to."""

    def compute(t: Threads, mask: Mask | None) -> None:
        raise MachineError(f"{why}: {i.guard} {i.name} {', '.join(i.operands)}")

    return Step(predicate(i.guard) if i.guard else None, compute)


def steps_of(code: Sequence[Instruction]) -> list[Step]:
    steps = []
    for i in code:
        try:
            steps.append(step_of(i))
        except MachineError as why:
            steps.append(refusal(i, why))
    return steps
