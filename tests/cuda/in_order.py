"""Cycles that a multiprocessor takes for the traces of its warps, each of which issues in order.

A model with the few causes of waiting that machine code shows: the stall counts and scoreboards in
every instruction, pipes that take several cycles for a warp, latencies of what has no fixed one,
barriers. Each of four schedulers issues one instruction a cycle, of the warp that waited longest.
Caches always hit at one latency and shared memory has no conflicts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sass import Instruction

SCHEDULERS = 4
# Cycles from issue until a scoreboard is clear. Measured by others on an H100 (arXiv 2402.13499):
# 23 for shared memory and about 260 for the second cache; the rest are assumed alike.
SHARED, GLOBAL, OTHERS = 30, 280, 25
# Cycles that a scheduler's pipe is busy with a warp: 16 lanes for integers, as the table of
# throughputs in the CUDA programming guide has 64 results a cycle and multiprocessor.
ALU = FMA = 2
TENSOR = 6.4  # m16n8k32 at 62.9 % of the 4 of the peak, as for mma.sync in the same paper
SLOW = 8  # conversions, reciprocals, special registers
LINE = 128  # bytes a cycle between a multiprocessor's lanes and its memories
FAR = 28.7  # bytes a cycle from the second cache: 6.65 TB/s for 132 multiprocessors

WIDE = ("IMAD.HI", "IMAD.WIDE")  # assumed to take two turns, as their products have 64 bits
FMA_KINDS = {"IMAD", "IDP", "FFMA", "FMUL", "FADD"}
SLOW_KINDS = {"MUFU", "I2F", "F2I", "S2R", "S2UR", "POPC", "FLO"}
MEMORY_KINDS = {"LDS", "STS", "LDG", "STG", "SHFL", "LDC", "LDCU"}
FREE_KINDS = {"BRA", "EXIT", "BAR", "BSSY", "BSYNC", "NOP", "WARPSYNC", "CALL"}


class Work(NamedTuple):
    """What an instruction asks for: a pipe, cycles of it, and when its result is there."""

    pipe: str
    busy: float
    latency: float


def bytes_of(instruction: Instruction) -> int:
    """That a warp's load or store of memory moves; 0 for other instructions."""
    if not instruction.name.startswith(("LDS", "STS", "LDG", "STG")):
        return 0
    bits = re.search(r"\.(64|128)\b", instruction.name)
    return 32 * ({"64": 8, "128": 16}[bits[1]] if bits else 4)


def work_of(instruction: Instruction) -> Work:
    """By its name."""
    name = instruction.name
    kind = name.partition(".")[0]
    if moved := bytes_of(instruction):
        return Work("memory", moved / LINE, SHARED if "S." in f"{kind}." else GLOBAL)
    if kind in MEMORY_KINDS:
        return Work("memory", 1, OTHERS)
    if kind in FREE_KINDS or name.startswith("U"):
        return Work("issue", 1, OTHERS)
    if "MMA" in kind:
        return Work("tensor", TENSOR, OTHERS)
    if kind in SLOW_KINDS:
        return Work("slow", SLOW, OTHERS)
    if kind in FMA_KINDS:
        return Work("fma", FMA * (2 if name.startswith(WIDE) else 1), OTHERS)
    return Work("alu", ALU, OTHERS)


class Warp:
    """A warp's place in its trace, and what it waits for."""

    def __init__(self, trace: Sequence[int], block: int) -> None:
        self.trace, self.block, self.at = trace, block, 0
        self.ready = 0.0  # cycle from which the next instruction may issue
        self.boards = [0.0] * 6
        self.barrier = False


def cycles(
    code: Sequence[Instruction], traces: Sequence[Sequence[int]], blocks: int, far: float
) -> float:
    """Cycles until `blocks` blocks with these traces of their warps are done.

    far: bytes of a block that come from the second cache; every load brings its share of them.
    """
    works = [work_of(i) for i in code]
    loads = sum(bytes_of(code[i]) for t in traces for i in t if code[i].name.startswith("LDG"))
    share = far / loads / FAR if loads else 0.0
    warps = [Warp(trace, block) for block in range(blocks) for trace in traces]
    groups = [warps[n::SCHEDULERS] for n in range(SCHEDULERS)]
    pipes = [dict.fromkeys(("alu", "fma", "tensor", "slow", "issue"), 0.0) for _ in groups]
    shared = {"memory": 0.0, "far": 0.0}
    now, left = 0.0, len(warps)
    clock = [0.0] * SCHEDULERS
    while left:
        mine = min(range(SCHEDULERS), key=lambda n: clock[n] if groups[n] else float("inf"))
        now = clock[mine]
        best, soonest = None, float("inf")
        for warp in groups[mine]:
            if warp.barrier:
                continue
            i = warp.trace[warp.at]
            control, work = code[i].control, works[i]
            at = warp.ready
            for n in range(6):
                if control.waits >> n & 1 and warp.boards[n] > at:
                    at = warp.boards[n]
            # What leaves the multiprocessor's four parts queues up; only their own pipes hold back.
            at = max(at, pipes[mine].get(work.pipe, 0.0))
            if at < soonest:
                best, soonest = warp, at
        if best is None:
            clock[mine] = min(c for n, c in enumerate(clock) if n != mine and groups[n]) + 1
            continue
        if soonest > now:
            clock[mine] = soonest
            if any(clock[n] < soonest for n in range(SCHEDULERS) if groups[n] and n != mine):
                continue
            now = soonest
        left -= issue(best, code, works, now, pipes[mine], shared, warps, share)
        clock[mine] = now + 1
        if best.at == len(best.trace):
            groups[mine].remove(best)
    return max(clock)


def issue(
    warp: Warp, code: Sequence[Instruction], works: Sequence[Work], now: float,
    pipes: dict[str, float], shared: dict[str, float], warps: Sequence[Warp], share: float,
) -> int:  # fmt: skip
    """Issues a warp's next instruction; 1 if it was its last."""
    i = warp.trace[warp.at]
    control, work = code[i].control, works[i]
    begin = now
    if work.pipe in shared:
        begin = max(now, shared[work.pipe])
        shared[work.pipe] = begin + work.busy
        if code[i].name.startswith("LDG"):
            shared["far"] = max(now, shared["far"]) + share * bytes_of(code[i])
            begin = max(begin, shared["far"])
    else:
        pipes[work.pipe] = now + work.busy
    for board in (control.writes, control.reads):
        if board < 6:
            warp.boards[board] = begin + work.busy + work.latency
    warp.at += 1
    warp.ready = now + max(1, control.stall)
    if code[i].name.startswith("BAR."):
        warp.barrier = True
        block = [other for other in warps if other.block == warp.block]
        if all(other.barrier for other in block):
            for other in block:
                other.barrier, other.ready = False, now + OTHERS
    return int(warp.at == len(warp.trace))
