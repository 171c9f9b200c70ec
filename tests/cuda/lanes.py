"""Machine code of NVIDIA's GPUs, executed: the threads of some blocks, with all their registers.

A register is a row of NumPy, an element for every thread, so that an instruction is one for all
threads that have come to it. Those that are farthest behind go first; what needs a whole warp, and
a barrier, waits for the others. lane_arithmetic.py says what each instruction does. An instruction
or an operand that is not known there raises MachineError, so nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]
LANES, ZERO, TRUE = 32, 255, 7  # RZ, PT
RUNS, WAITS, ENDED = range(3)
STACK = 1 << 12  # bytes of a thread's own memory
# Places in constant bank 0 beside the parameters: sizes of a block and of the grid, and where a
# stack begins, by the two places that architectures have for it.
BLOCK, GRID, STACK_POINTERS = 0x0, 0xC, (0x28, 0x37C)


class MachineError(Exception):
    """A kernel did what it must not, or an instruction is not known here."""


class Memory:
    """Bytes with an address, of arrays that have gaps between them.

    owner: of each byte, the number of its array or -1; writable: of each array.
    """

    def __init__(self, base: int, size: int, what: str) -> None:
        self.base, self.what = base, what
        self.bytes = np.full(-(-size // 16) * 16, 0xA5, np.uint8)
        self.owner = np.full(len(self.bytes), -1, np.int16)
        self.written = np.zeros(len(self.bytes), np.bool_)
        self.writable: list[bool] = []

    def add(self, at: int, size: int, writable: bool) -> None:
        """An array of `size` bytes, `at` bytes from the beginning."""
        self.owner[at : at + size] = len(self.writable)
        self.writable.append(writable)

    def places(self, address: NDArray[np.uint64], size: int, write: bool) -> NDArray[np.int64]:
        """Offsets of accesses, which must be aligned and within one array. Raises MachineError."""
        at = (address - np.uint64(self.base)).astype(np.int64)
        verb = "write" if write else "read"
        if (at % size).any():
            raise MachineError(f"a {verb} of {size} bytes of {self.what} memory is misaligned")
        inside = (at >= 0) & (at <= len(self.bytes) - size)
        if not inside.all():
            wrong = hex(int(at[~inside][0]))
            raise MachineError(f"a {verb} outside {self.what} memory, {wrong} from its beginning")
        owner = self.owner[at]
        if (owner < 0).any() or (owner != self.owner[at + size - 1]).any():
            wrong = at[(owner < 0) | (owner != self.owner[at + size - 1])][0]
            raise MachineError(f"a {verb} outside every array of {self.what} memory, at {wrong}")
        if write and not np.array(self.writable)[owner].all():
            raise MachineError(f"a write into an array of {self.what} memory that is only read")
        return at

    def load(self, address: NDArray[np.uint64], size: int) -> list[Words]:
        """Words of what lies at addresses; fewer bytes than a word are extended with zeros."""
        at = self.places(address, size, False)
        if size < 4:
            kind = np.uint8 if size == 1 else np.uint16
            return [self.bytes.view(kind)[at // size].astype(np.uint32)]
        words = self.bytes.view(np.uint32)
        return [words[at // 4 + i] for i in range(size // 4)]

    def store(self, address: NDArray[np.uint64], size: int, values: Sequence[Words]) -> None:
        """Writes words, or their lowest bytes; two threads must not write different ones."""
        at = self.places(address, size, True)
        kind = {1: np.uint8, 2: np.uint16}.get(size, np.uint32)
        view, unit = self.bytes.view(kind), min(size, 4)
        for i, value in enumerate(values):
            view[at // unit + i] = value.astype(kind)
        for i, value in enumerate(values):
            if (view[at // unit + i] != value.astype(kind)).any():
                raise MachineError(f"threads write different values to one place in {self.what}")
        for i in range(size):
            self.written[at + i] = True


class Blocks(NamedTuple):
    """The blocks that run together: their numbers along x, y and z, and the threads of each."""

    numbers: NDArray[np.uint32]  # [blocks, 3]
    threads: int


class Threads:
    """The threads of some blocks, and what they share.

    banks: bytes of constant memory by the bank's number; memory: of the device, with the arrays of
    the launch; shared: where a block's shared memory begins, and its bytes.
    """

    def __init__(
        self, of: Blocks, banks: dict[int, Words], memory: Memory, shared: tuple[int, int]
    ) -> None:
        blocks, n = len(of.numbers), len(of.numbers) * of.threads
        self.n, self.warps, self.of = n, n // LANES, of
        self.banks, self.memory = banks, memory
        self.lane = (np.arange(n) % LANES).astype(np.uint32)
        self.warp, self.block = np.arange(n) // LANES, np.arange(n) // of.threads
        self.thread = (np.arange(n) % of.threads).astype(np.uint32)
        self.registers = np.full((ZERO + 1, n), 0xA5A5A5A5, np.uint32)
        self.registers[ZERO] = 0
        self.uniform = np.full((ZERO + 1, self.warps), 0xA5A5A5A5, np.uint32)
        self.uniform[ZERO] = 0
        self.predicates = np.zeros((TRUE + 1, n), np.bool_)
        self.uniform_predicates = np.zeros((TRUE + 1, self.warps), np.bool_)
        self.predicates[TRUE] = self.uniform_predicates[TRUE] = True
        self.joins: dict[str, Words] = {}  # B0 .. -> the lanes that meet there
        self.at = np.zeros(n, np.int64)
        self.state = np.full(n, RUNS, np.int8)
        self.shared_begin, self.shared_size = shared
        size = self.shared_size
        self.stride = -(-size // 16) * 16 + 16
        self.shared = Memory(0, max(self.stride * blocks, 16), "shared")
        for block in range(blocks):
            self.shared.add(block * self.stride, size, True)
        self.stacks = Memory(0, STACK * n, "a thread's own")
        self.stacks.add(0, STACK * n, True)
        self.own = np.arange(n, dtype=np.uint64) * np.uint64(STACK)  # where a stack begins
        self.doing = np.arange(n)  # threads of the access to memory under way
        self.issued = 0  # by warps

    # Values of operands.

    def of_warps(self, values: NDArray) -> NDArray:
        """Values of warps for their lanes."""
        return values[self.warp]

    def put(self, register: int, value: NDArray, mask: Mask | None) -> None:
        if register == ZERO:
            return
        if mask is None:
            self.registers[register] = value
        else:
            np.copyto(self.registers[register], value, where=mask)

    def put_uniform(self, register: int, value: NDArray, mask: Mask | None) -> None:
        if register == ZERO:
            return
        warps = None if mask is None else mask.reshape(-1, LANES).any(axis=1)
        if warps is None:
            self.uniform[register] = value
        else:
            np.copyto(self.uniform[register], value, where=warps)

    def put_predicate(self, number: int, value: NDArray, mask: Mask | None) -> None:
        if number != TRUE:
            np.copyto(self.predicates[number], value, where=True if mask is None else mask)

    def put_uniform_predicate(self, number: int, value: NDArray, mask: Mask | None) -> None:
        if number != TRUE:
            warps = True if mask is None else mask.reshape(-1, LANES).any(axis=1)
            np.copyto(self.uniform_predicates[number], value, where=warps)

    # Who goes on.

    def lanes_of(self, mask: Mask) -> Words:
        """Bits of the lanes in a mask, for each lane of their warp."""
        bits = np.where(mask, np.uint32(1) << self.lane, np.uint32(0)).reshape(-1, LANES)
        return np.repeat(np.bitwise_or.reduce(bits, axis=1), LANES)

    def whole_warps(self, mask: Mask) -> Mask:
        """The threads of a mask whose warp has no other that is not at its end."""
        rest = (self.state != ENDED) & ~mask
        return mask & ~np.repeat(rest.reshape(-1, LANES).any(axis=1), LANES)

    def whole_blocks(self, mask: Mask) -> Mask:
        rest = ((self.state != ENDED) & ~mask).reshape(-1, self.of.threads).any(axis=1)
        return mask & ~np.repeat(rest, self.of.threads)

    def joined(self, name: str, mask: Mask) -> Mask:
        """The threads of a mask that have all those there which BSSY named."""
        missing = self.joins[name] & self.lanes_of(self.state != ENDED) & ~self.lanes_of(mask)
        return mask & (missing == 0)

    def run(self, steps: Sequence[Step]) -> None:
        """Runs all threads to their end. Raises MachineError."""
        while True:
            running = self.state == RUNS
            if not running.any():
                if (self.state == ENDED).all():
                    return
                self.release(steps)
                continue
            at = int(self.at[running].min())
            group = running & (self.at == at)
            rest = running & ~group
            until = int(self.at[rest].min()) if rest.any() else len(steps)
            self.advance(steps, at, until, group)

    def advance(self, steps: Sequence[Step], at: int, until: int, group: Mask) -> None:
        """Runs a group of threads from an instruction up to one where others are, or a branch."""
        every = bool(group.all())
        warps = int(group.reshape(-1, LANES).any(axis=1).sum())
        while at < until:
            step = steps[at]
            self.issued += warps
            mask = group if step.guard is None else step.guard(self) & group
            at += 1
            if step.control is not None:
                self.at[group] = at
                step.control(self, at - 1, mask)
                return
            if (every and step.guard is None) or mask.all():
                step.compute(self, None)
            elif mask.any():
                step.compute(self, mask)
        self.at[group] = at

    def wait(self, at: int, waiting: Mask) -> None:
        self.at[waiting] = at
        self.state[waiting] = WAITS

    def release(self, steps: Sequence[Step]) -> None:
        """Lets those go on who wait and have all the others there. Raises MachineError if none."""
        for at in np.unique(self.at[self.state == WAITS]):
            group = (self.state == WAITS) & (self.at == at)
            self.state[group] = RUNS
            step = steps[at]
            assert step.control
            self.at[group] = at + 1
            step.control(self, int(at), group)
        if not (self.state == RUNS).any():
            places = sorted({int(at) for at in self.at[self.state == WAITS]})
            raise MachineError(f"threads wait for each other at instructions {places}")


class Step(NamedTuple):
    """What an instruction does: `compute`, or where it decides who goes on, `control`.

    guard: the threads that do it; they are what both get, None being all, and `control` also gets
    the instruction's number, behind which all that came to it are.
    """

    guard: Callable[[Threads], Mask] | None
    compute: Callable[[Threads, Mask | None], None]
    control: Callable[[Threads, int, Mask], None] | None = None


# Operands.


def predicate(text: str) -> Callable[[Threads], Mask]:
    """A predicate of lanes, e.g. !P0 or UP1."""
    found = re.fullmatch(r"(!?)(U?)P(\d|T)", text)
    if not found:
        raise MachineError(f"{text!r} is no predicate")
    number = TRUE if found[3] == "T" else int(found[3])
    flip, uniform = bool(found[1]), bool(found[2])

    def value(t: Threads) -> Mask:
        v = t.of_warps(t.uniform_predicates[number]) if uniform else t.predicates[number]
        return ~v if flip else v

    return value


def register(text: str) -> int:
    """The number of a register, e.g. R12, RZ, UR4."""
    found = re.fullmatch(r"U?R(\d+|Z)", text)
    if not found:
        raise MachineError(f"{text!r} is no register")
    return ZERO if found[1] == "Z" else int(found[1])
