"""Walks through a kernel's machine code as lane 0 of one warp does, and counts what is issued.

Only what decides branches has to be known: integers from thread numbers, constants and the sizes
that a launch is given. All else is None, as is everything computed from it. A forward branch that
depends on None falls through, so that both arms of an `if` without `else` count; a backward one
raises WalkError. Lane 0 has the most turns of loops that lanes share out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sass import Instruction

MASK, SIGN = 0xFFFFFFFF, 0x80000000
# Where a launch's parameters begin in constant memory, by architecture.
PARAMETERS = {75: 0x160, 80: 0x160, 90: 0x210, 100: 0x380}
ARRAY = 1 << 40  # from one array of a launch to the next one's address
Value = int | None


class WalkError(Exception):
    """The walk cannot go on: a loop's end is not known, or the end never comes."""


class Launch(NamedTuple):
    """What a walk knows: the parameters' place, int32 arrays by parameter number, the thread."""

    parameters: int
    arrays: Mapping[int, Sequence[int]]
    thread: int = 0
    block: int = 0


def signed(v: int) -> int:
    return v - (1 << 32) if v & SIGN else v


class Walk:
    """The registers of a lane, and the instructions that it comes by."""

    def __init__(self, code: Sequence[Instruction], launch: Launch) -> None:
        self.code, self.launch = code, launch
        self.registers: dict[str, Value] = {}
        self.predicates: dict[str, bool | None] = {}
        self.counts: Counter[str] = Counter()
        self.trace: list[int] = []  # numbers of the instructions, in order
        self.guessed = 0  # forward branches that depend on what is not known

    def run(self, most: int = 10_000_000) -> Counter[str]:
        """Issued instructions by name. Raises WalkError."""
        at, steps = 0, [step_of(i) for i in self.code]
        trace = self.trace
        for _ in range(most):
            instruction = self.code[at]
            trace.append(at)
            taken = self.guard(instruction.guard)
            kind = instruction.name.partition(".")[0]
            if kind == "EXIT" and taken:
                self.counts.update(self.code[i].name for i in trace)
                return self.counts
            # The compiler leaves a loop by a call of what follows it, from which none returns.
            if (
                instruction.name != "BRA.DIV"
                and kind in ("BRA", "CALL")
                and instruction.target >= 0
            ):
                taken = taken and self.conditions(instruction)
                if taken is None:
                    if instruction.target <= at:
                        raise WalkError(f"unknown end of a loop: {instruction}")
                    self.guessed += 1
                at = instruction.target if taken else at + 1
                continue
            if kind in ("CALL", "RET", "BRX", "JMP"):
                raise WalkError(f"unknown way on: {instruction}")
            if taken or taken is None:
                steps[at](self, taken is None)
            at += 1
        raise WalkError("no end")

    def guard(self, text: str) -> bool | None:
        return self.predicate(text) if text else True

    def conditions(self, branch: Instruction) -> bool | None:
        """A branch may have one more predicate as its first operand."""
        first = branch.operands[0]
        return self.predicate(first) if re.fullmatch(r"!?U?P\w", first) else True

    def predicate(self, text: str) -> bool | None:
        plain = text.lstrip("!")
        value = True if plain in ("PT", "UPT") else self.predicates.get(plain)
        return value if value is None or text == plain else not value

    def value(self, text: str) -> Value:
        """An operand as 32 bits."""
        if text[0] == "-" and not text.startswith("-0x"):
            v = self.value(text[1:])
            return None if v is None else -v & MASK
        if text[0] == "~":
            v = self.value(text[1:])
            return None if v is None else ~v & MASK
        if text in ("RZ", "URZ", "SRZ"):
            return 0
        if text.startswith(("0x", "-0x")):
            return int(text, 16) & MASK
        if text.startswith("c["):
            return self.constant(text)
        return self.registers.get(text)

    def constant(self, text: str) -> Value:
        """Parameters are pointers to arrays that lie far apart; the rest is not known."""
        found = re.fullmatch(r"c\[0x0\]\[0x([0-9a-f]+)\]", text)
        offset = int(found[1], 16) - self.launch.parameters if found else -1
        if offset < 0:
            return None
        return ARRAY * (offset // 8 + 1) >> 32 * (offset % 8 // 4) & MASK

    def put(self, register: str, value: Value) -> None:
        if register not in ("RZ", "URZ"):
            self.registers[register] = None if value is None else value & MASK

    def put_wide(self, register: str, value: Value) -> None:
        low, high = register, following(register)
        self.put(low, value)
        if high:
            self.put(high, None if value is None else value >> 32)

    def wide(self, text: str) -> Value:
        """An operand of 64 bits: a register and the next, or two words of constants."""
        if text in ("RZ", "URZ") or text.startswith(("0x", "-0x")):
            return self.value(text)
        if text.startswith("c["):
            offset = int(text.rpartition("[")[2].rstrip("]"), 16)
            low, high = self.value(text), self.value(f"c[0x0][{offset + 4:#x}]")
        else:
            low, high = self.value(text), self.value(following(text) or "")
        return None if low is None or high is None else high << 32 | low

    def load(self, instruction: Instruction, word: int) -> Value:
        """A word from an array of int32 that the launch has; else not known."""
        found = re.search(r"\[(R\d+)(?:\.64|\.U32)?(?:\+(UR\d+))?(?:\+(-?0x[0-9a-f]+))?\]$",
                          instruction.operands[-1])  # fmt: skip
        if not found:
            return None
        base = self.wide(found[1])
        if base is None:
            return None
        address = base + int(found[3] or "0", 16)
        array = self.launch.arrays.get(address // ARRAY - 1)
        index = address % ARRAY // 4 + word
        return array[index] if array is not None and index < len(array) else None


def following(register: str) -> str:
    """The register after this one; empty for those that have none."""
    found = re.fullmatch(r"(U?R)(\d+)", register)
    return f"{found[1]}{int(found[2]) + 1}" if found else ""


Step = Callable[[Walk, bool], None]


def step_of(instruction: Instruction) -> Step:
    """What an instruction does to a walk; `unsure` says that its guard is not known."""
    from warp_arithmetic import ARITHMETIC, PREDICATES

    name, operands = instruction.name, instruction.operands
    kind = name.partition(".")[0]
    kind = (
        kind[1:] if kind[0] == "U" and kind[1:] in ARITHMETIC.keys() | PREDICATES.keys() else kind
    )
    made = [o for o in operands if re.fullmatch(r"U?R\d+", o)][:1]

    def known(walk: Walk, unsure: bool) -> None:
        (PREDICATES | ARITHMETIC)[kind](walk, instruction)
        if unsure:
            forget(walk, operands)

    def unknown(walk: Walk, unsure: bool) -> None:
        for register in made if operands and operands[0] in made else []:
            spread(walk, register, name)

    return known if kind in ARITHMETIC or kind in PREDICATES else unknown


def spread(walk: Walk, register: str, name: str) -> None:
    """Forgets what an instruction writes: up to four registers."""
    words = 4 if ".128" in name or "MMA" in name else 2 if ".64" in name or "WIDE" in name else 1
    for _ in range(words):
        walk.put(register, None)
        register = following(register)


def forget(walk: Walk, operands: Sequence[str]) -> None:
    for operand in operands[:3]:
        if re.fullmatch(r"U?P\d", operand):
            walk.predicates[operand] = None
        elif re.fullmatch(r"U?R\d+", operand):
            walk.put(operand, None)
            return
