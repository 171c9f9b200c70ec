"""What a kernel's machine code asks of a GPU: registers, blocks, instructions.

A kernel is compiled by NVRTC, read back by nvdisasm and walked through by each warp of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import nvrtc
import sass
from sass import Instruction
from warp_walk import PARAMETERS, Launch, Walk

from eggroll.engines.cuda import WARPS
from eggroll.engines.gpu.dialect import KernelSource

REGISTERS = 1 << 16  # of a multiprocessor
THREADS = {75: 1024, 86: 1536, 89: 1536, 120: 1536}  # of a multiprocessor; else 2048
SHARED = {75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228}  # KiB of a multiprocessor
PAIRS = 1 << 11  # of a walk's launch: more than a block has


class Machine(NamedTuple):
    """A kernel's code for an architecture such as sm_90a."""

    architecture: str
    resources: nvrtc.Resources
    code: list[Instruction]


def unavailable_because() -> str:
    return nvrtc.unavailable_because() or sass.unavailable_because()


@cache
def machine(text: str, architecture: str) -> Machine:
    """Compiled and read back. Raises nvrtc.CompileError."""
    resources, cubin = nvrtc.compiled(text, architecture)
    return Machine(architecture, resources, sass.disassembled(cubin))


def number_of(architecture: str) -> int:
    return int(architecture.removeprefix("sm_").removesuffix("a"))


def blocks(resources: nvrtc.Resources, shared: int, threads: int, architecture: str) -> int:
    """Blocks that a multiprocessor holds at a time.

    A warp's registers are given out by 256, and from sm_80 on a block's shared memory has 1 KiB for
    the system.
    """
    number = number_of(architecture)
    warp = -(-32 * resources.registers // 256) * 256
    by_registers = REGISTERS // (warp * (threads // 32))
    reserved = 1024 if number >= 80 else 0
    by_shared = (SHARED[number] << 10) // (shared + reserved) if shared else by_registers
    return min(by_registers, by_shared, THREADS.get(number, 2048) // threads)


def traces(made: Machine, source: KernelSource, T: int) -> list[list[int]]:
    """The instructions that each warp of a stage's block issues for T tokens."""
    sizes = source.inputs.index("sizes")
    out = []
    for warp in range(WARPS):
        arrays = {sizes: [T, 2 * PAIRS, PAIRS]}
        launch = Launch(PARAMETERS[number_of(made.architecture)], arrays, 32 * warp)
        walk = Walk(made.code, launch)
        walk.run()
        out.append(walk.trace)
    return out


class Issued(NamedTuple):
    """Warp instructions of a member: of a token, and once a launch."""

    token: float
    launch: float


def issued(made: Machine, source: KernelSource, members: int) -> Issued:
    """Counted from launches of one and of two tokens."""
    one, two = (total(traces(made, source, T)) for T in (1, 2))
    return Issued((two - one) / members, (2 * one - two) / members)


def total(found: Sequence[Sequence[int]]) -> int:
    return sum(map(len, found))
