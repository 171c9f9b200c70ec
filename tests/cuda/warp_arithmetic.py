"""The integer instructions of NVIDIA's machine code that addresses and loops are made of.

Each takes a walk and an instruction; None is a value that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from sass import Instruction

if TYPE_CHECKING:
    from warp_walk import Value, Walk

MASK, SIGN = 0xFFFFFFFF, 0x80000000
PREDICATE = re.compile(r"!?U?P(\d|T)")
SPECIAL = {"SR_CTAID.Y": 0, "SR_CTAID.Z": 0, "SR_TID.Y": 0, "SR_TID.Z": 0, "SR_CgaCtaId": 0}


def signed(v: int) -> int:
    return v - (1 << 32) if v & SIGN else v


def parts(i: Instruction) -> tuple[str, list[str], list[str], list[str]]:
    """Result, predicates written, values read, predicates read."""
    written, values, read = [], [], []
    out = ""
    for text in i.operands:
        if PREDICATE.fullmatch(text):
            (read if values else written).append(text)
        elif not out:
            out = text
        else:
            values.append(text)
    return out, written, values, read


def of_values(combine: Callable[..., int]) -> Callable[[Walk, Instruction], None]:
    """An instruction that makes one register from the values it reads."""

    def step(walk: Walk, i: Instruction) -> None:
        out, _, texts, _ = parts(i)
        values = [walk.value(text) for text in texts]
        walk.put(out, None if None in values else combine(i.name, *values))

    return step


def carries(walk: Walk, read: list[str]) -> Value:
    found = [walk.predicate(text) for text in read]
    return None if None in found else sum(map(bool, found))


def add(walk: Walk, i: Instruction) -> None:
    """IADD3: up to two carries out, and with .X as many in."""
    out, written, texts, read = parts(i)
    values = [walk.value(text) for text in texts]
    carried = carries(walk, read) if ".X" in i.name else 0
    total = None if None in values or carried is None else sum(values) + carried  # type: ignore[arg-type]
    if total is not None and ".X" in i.name:
        # A negated operand of the upper word is its complement: the carry completes it.
        total = sum(upper(walk, t) for t in texts) + carried  # type: ignore[operator]
    walk.put(out, total)
    over = None if total is None else total >> 32
    for place, text in enumerate(written):
        if text not in ("PT", "UPT"):
            walk.predicates[text] = None if over is None else over > place


def upper(walk: Walk, text: str) -> int:
    plain = walk.value(text.lstrip("-~") if text[0] in "-~" and "0x" not in text else text)
    assert plain is not None
    return ~plain & MASK if text[0] in "-~" and "0x" not in text else plain


def multiply(walk: Walk, i: Instruction) -> None:
    """IMAD and its disguises."""
    out, written, texts, read = parts(i)
    name = i.name
    if ".WIDE" in name:
        a, b, c = walk.value(texts[0]), walk.value(texts[1]), walk.wide(texts[2])
        known = a is not None and b is not None and c is not None
        if known and ".U32" not in name:
            a, b = signed(a), signed(b)  # type: ignore[arg-type]
        total = a * b + c if known else None  # type: ignore[operator]
        walk.put_wide(out, total)
        for text in written:
            if text != "PT":
                walk.predicates[text] = None if total is None else total >> 64 > 0
        return
    values = [walk.value(text) for text in texts]
    carried = carries(walk, read) if ".X" in name else 0
    if None in values or carried is None:
        walk.put(out, 0 if texts[:2].count("RZ") and values[2] == 0 else None)
        # 0 times what is not known is 0.
        if "RZ" in texts[:2]:
            walk.put(out, None if values[2] is None or carried is None else values[2] + carried)
        return
    a, b, c = values
    if ".HI" in name:  # the third operand is a pair
        pair = walk.wide(texts[2])
        if ".U32" not in name:
            a, b = signed(a), signed(b)  # type: ignore[arg-type]
        walk.put(out, None if pair is None else a * b + pair >> 32)  # type: ignore[operator]
    else:
        walk.put(out, a * b + c + carried)  # type: ignore[operator]


def lea(walk: Walk, i: Instruction) -> None:
    """LEA: (a << n) + b; .HI: the upper word of c:a << n, .SX32: of a, sign-extended."""
    out, written, texts, read = parts(i)
    shift = int(texts[-1], 16)
    values = [walk.value(text) for text in texts[:-1]]
    carried = carries(walk, read) if ".X" in i.name else 0
    if None in values or carried is None:
        total = None
    elif ".HI" in i.name:
        high = (-(values[0] >> 31) & MASK) if ".SX32" in i.name else values[2]  # type: ignore[operator]
        total = ((high << 32 | values[0]) << shift >> 32 & MASK) + values[1] + carried  # type: ignore[operator]
    else:
        total = (values[0] << shift & MASK) + values[1]  # type: ignore[operator]
    walk.put(out, total)
    for text in written:
        if text not in ("PT", "UPT"):
            walk.predicates[text] = None if total is None else total >> 32 > 0


def shift(name: str, low: int, by: int, high: int) -> int:
    """SHF: funnel shifts; with .HI the upper word, alone where the lower one is zero."""
    by = by & 31 if ".W" in name else min(by, 64)
    both = (signed(high) if ".S32" in name or ".S64" in name else high) << 32 | low
    if ".L" in name:
        return (both << by) >> 32 if ".HI" in name else low << by
    if ".HI" in name:
        return (signed(high) if ".S" in name else high) >> min(by, 32)
    return both >> by


def logic(walk: Walk, i: Instruction) -> None:
    """LOP3.LUT by its table; a known zero of an AND is enough."""
    out, written, texts, _ = parts(i)
    if len(texts) < 4:
        walk.put(out, None)
        return
    values, table = [walk.value(text) for text in texts[:3]], int(texts[3], 16)
    total = None if None in values else by_table(table, *values)  # type: ignore[arg-type]
    if total is None and table == 0xC0 and 0 in values[:2]:
        total = 0
    walk.put(out, total)
    for text in written:
        if text not in ("PT", "UPT"):
            walk.predicates[text] = None if total is None else total != 0


def by_table(table: int, a: int, b: int, c: int) -> int:
    total = 0
    for row in range(8):
        if table >> row & 1:
            x = a if row & 4 else ~a
            y = b if row & 2 else ~b
            z = c if row & 1 else ~c
            total |= x & y & z
    return total & MASK


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
}  # fmt: skip


def compare(walk: Walk, i: Instruction) -> None:
    """ISETP: a comparison and a predicate; .EX: of upper words after one of the lower."""
    first, second, a_text, b_text, *read = i.operands
    _, relation, *rest = i.name.split(".")
    a, b = walk.value(a_text), walk.value(b_text)
    found: bool | None = None
    if a is not None and b is not None:
        if "U32" not in rest:
            a, b = signed(a), signed(b)
        found = COMPARE[relation](a, b)
        if "EX" in rest and a == b:
            found = walk.predicate(read[-1])
        elif "EX" in rest and relation == "NE":
            found = True
    elif "U32" in rest and relation == "GE" and b == 0:
        found = True
    with_ = walk.predicate(read[0]) if read else True
    for text, one in ((first, found), (second, None if found is None else not found)):
        if text not in ("PT", "UPT"):
            walk.predicates[text] = joined("OR" in rest, "XOR" in rest, one, with_)


def joined(either: bool, differ: bool, a: bool | None, b: bool | None) -> bool | None:
    if differ:
        return None if a is None or b is None else a != b
    if either:
        return True if a or b else None if a is None or b is None else False
    return False if a is False or b is False else None if a is None or b is None else True


def predicate_logic(walk: Walk, i: Instruction) -> None:
    """PLOP3.LUT: two predicates by two tables of three."""
    first, second, *read, one, two = i.operands
    values = [walk.predicate(text) for text in read[:3]]
    for text, table in ((first, int(one, 16)), (second, int(two, 16))):
        if text in ("PT", "UPT"):
            continue
        given = list(zip(values, (4, 2, 1), strict=True))
        rows = (r for r in range(8) if all(v in (None, bool(r & bit)) for v, bit in given))
        found = {bool(table >> row & 1) for row in rows}
        walk.predicates[text] = found.pop() if len(found) == 1 else None


def select(walk: Walk, i: Instruction) -> None:
    out, a, b, condition = i.operands[:4]
    chosen = walk.predicate(condition)
    values = {walk.value(text) for text in ((a, b) if chosen is None else (a if chosen else b,))}
    walk.put(out, values.pop() if len(values) == 1 else None)


def extreme(walk: Walk, i: Instruction) -> None:
    """VIMNMX, IMNMX: the least if the predicate is true, else the largest."""
    out, a, b, least = i.operands[:4]
    x, y, chosen = walk.value(a), walk.value(b), walk.predicate(least)
    if x is None or y is None or chosen is None:
        walk.put(out, None)
        return
    order = (lambda v: v) if ".U32" in i.name else signed
    walk.put(out, (min if chosen else max)(x, y, key=order))


def add_extreme(walk: Walk, i: Instruction) -> None:
    """VIADDMNMX: the same of a sum and a third value."""
    out, *texts, least = i.operands[:5]
    values, chosen = [walk.value(text) for text in texts], walk.predicate(least)
    if None in values or chosen is None:
        walk.put(out, None)
        return
    order = (lambda v: v) if ".U32" in i.name else signed
    a, b, c = values
    walk.put(out, (min if chosen else max)(a + b & MASK, c, key=order))  # type: ignore[operator]


def permute(name: str, a: int, selector: int, b: int) -> int:
    """PRMT: bytes of two words; bit 3 spreads a byte's sign."""
    pool, total = b << 32 | a, 0
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = pool >> 8 * (nibble & 7) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        total |= byte << 8 * place
    return total


def special(walk: Walk, i: Instruction) -> None:
    """S2R: thread and block numbers. CS2R: zeros."""
    out, what = i.operands[:2]
    known: dict[str, int] = SPECIAL | {
        "SR_TID.X": walk.launch.thread, "SR_CTAID.X": walk.launch.block, "SRZ": 0,
    }  # fmt: skip
    walk.put(out, known.get(what))
    if i.name.startswith("CS2R") and ".32" not in i.name:
        walk.put_wide(out, 0 if what == "SRZ" else None)


def constant(walk: Walk, i: Instruction) -> None:
    out, place = i.operands[:2]
    if ".64" in i.name or ".128" in i.name:
        walk.put_wide(out, walk.wide(place) if place.startswith("c[0x0][0x") else None)
    else:
        walk.put(out, walk.value(place) if ".U8" not in i.name else None)


def load(walk: Walk, i: Instruction) -> None:
    from warp_walk import following, spread

    spread(walk, i.operands[0], i.name)
    if i.name.startswith("LDG.E") and not re.search(r"\.(U8|S8|U16|S16)", i.name):
        register = i.operands[0]
        found = [walk.load(i, n) for n in range(4 if ".128" in i.name else 1 + (".64" in i.name))]
        for value in found:
            walk.put(register, value)
            register = following(register)


def save_predicates(walk: Walk, i: Instruction) -> None:
    """P2R: predicates as bits of a register; also of a byte of it."""
    out, mask = i.operands[0], walk.value(i.operands[-1])
    values = [walk.predicates.get(f"P{n}", False) for n in range(7)]
    total = 0
    for n in range(7):
        if mask is not None and mask >> n & 1:
            if values[n] is None:
                walk.put(out, None)
                return
            total |= values[n] << n
    before = walk.value(i.operands[-2])
    byte = re.search(r"\.B(\d)", i.name)
    total <<= 8 * int(byte[1]) if byte else 0
    walk.put(
        out,
        None
        if before is None
        else before & ~((mask or 0) << (8 * int(byte[1]) if byte else 0)) | total,
    )


def restore_predicates(walk: Walk, i: Instruction) -> None:
    """R2P: the other way."""
    value, mask = walk.value(i.operands[-2]), walk.value(i.operands[-1])
    byte = re.search(r"\.B(\d)", i.operands[-2])
    if byte:
        value = walk.value(i.operands[-2].partition(".")[0])
        value = None if value is None else value >> 8 * int(byte[1])
    for n in range(7):
        if mask is not None and mask >> n & 1:
            walk.predicates[f"P{n}"] = None if value is None else bool(value >> n & 1)


PREDICATES: dict[str, Callable[[Walk, Instruction], None]] = {
    "ISETP": compare,
    "PLOP3": predicate_logic,
    "R2P": restore_predicates,
}
ARITHMETIC: dict[str, Callable[[Walk, Instruction], None]] = {
    "MOV": of_values(lambda name, a, *mask: a),
    "VIADD": of_values(lambda name, a, b: a + b),
    "IADD": of_values(lambda name, a, b: a + b),
    "SHF": of_values(shift),
    "PRMT": of_values(permute),
    "IABS": of_values(lambda name, a: abs(signed(a))),
    "VIADDMNMX": add_extreme,
    "IADD3": add,
    "IMAD": multiply,
    "LEA": lea,
    "LOP3": logic,
    "SEL": select,
    "VIMNMX": extreme,
    "IMNMX": extreme,
    "S2R": special,
    "S2UR": special,
    "CS2R": special,
    "LDC": constant,
    "LDCU": constant,
    "LDG": load,
    "P2R": save_predicates,
    "R2UR": of_values(lambda name, a: a),
}
ARITHMETIC["S2UR"] = special
