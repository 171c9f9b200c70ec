"""CUDA kernels on this CPU a second time: the machine code that NVRTC makes, executed by lanes.py.

`MachineLauncher` is a launcher for CudaEngine, as cuda_emulator.py has another. What it reads is
what a GPU runs: registers, addresses and shared memory are those of the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import mlx.core as mx
import numpy as np
import nvrtc
import sass
from cubin import Cubin, cubin_of
from lane_arithmetic import steps_of
from lanes import BLOCK, GRID, STACK, STACK_POINTERS, Blocks, MachineError, Memory, Step, Threads
from machine import number_of
from numpy.typing import NDArray
from warp_walk import PARAMETERS

from eggroll.engines.cuda_launch import cuda_text
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.launch import Shape

BOUNDARY = 1 << 39  # addresses of a launch lie on both sides, so that their low words overflow
GAP = 256  # bytes between arrays
TOGETHER = 2048  # threads that run at a time, of as many blocks
SHARED_BEGIN = {90: 1024, 100: 1024}  # bytes that the system has before those of a launch


@cache
def compiled(text: str, architecture: str) -> tuple[list[Step], Cubin]:
    _, cubin = nvrtc.compiled(text, architecture)
    return steps_of(sass.disassembled(cubin)), cubin_of(cubin)


class Placed:
    """The arrays of a launch in the device's memory: parameters, then what the kernel brings."""

    def __init__(self, inputs: Sequence[NDArray], outputs: Sequence[int], cubin: Cubin) -> None:
        given = [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in inputs]
        brought = {name: np.frombuffer(data, np.uint8) for name, data in cubin.arrays.items()}
        sizes = [*map(len, given), *outputs, *map(len, brought.values())]
        self.begins, at = [], GAP
        for size in sizes:
            self.begins.append(at)
            at += -(-size // GAP) * GAP + GAP
        self.memory = Memory(BOUNDARY - -(-at // 2 // GAP) * GAP, at, "device")
        written_to = range(len(given), len(given) + len(outputs))
        for n, (begin, size) in enumerate(zip(self.begins, sizes, strict=True)):
            self.memory.add(begin, size, n in written_to)
        held = [*enumerate(given), *enumerate(brought.values(), written_to.stop)]
        for n, data in held:
            self.memory.bytes[self.begins[n] : self.begins[n] + len(data)] = data
        self.parameters = self.begins[: written_to.stop]
        self.brought = dict(zip(brought, self.begins[written_to.stop :], strict=True))


def banks_of(cubin: Cubin, placed: Placed, parameters: int, sizes: Sequence[int]) -> dict:
    """Constant banks for a launch. sizes: of a block and of the grid, along x, y and z."""
    bank = np.zeros(1024, np.uint32)
    bank[BLOCK // 4 : BLOCK // 4 + 3], bank[GRID // 4 : GRID // 4 + 3] = sizes[:3], sizes[3:]
    bank[[at // 4 for at in STACK_POINTERS]] = STACK
    base = placed.memory.base
    for n, begin in enumerate(placed.parameters):
        bank[parameters // 4 + 2 * n :][:2] = (base + begin) & 0xFFFFFFFF, (base + begin) >> 32
    banks = {0: bank}
    for number, data in cubin.banks.items():
        if number != 0:
            words = np.zeros(-(-len(data) // 4), np.uint32)
            words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
            banks[number] = words
    for of in cubin.addresses:
        address = base + placed.brought[of.array] + of.at
        banks[of.bank][of.offset // 4 :][:2] = address & 0xFFFFFFFF, address >> 32
    return banks


@dataclass
class MachineLauncher:
    """Runs every launch in machine code of an architecture such as sm_90a."""

    architecture: str
    edit: Callable[[KernelSource], KernelSource] = lambda source: source
    launches: list[str] = field(default_factory=list)
    issued: int = 0  # instructions of warps

    def __call__(
        self, source: KernelSource, inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]], grid: Shape, threadgroup: Shape,
    ) -> list[mx.array]:  # fmt: skip
        """The outputs. Raises MachineError for what a kernel must not do."""
        source = self.edit(source)
        dtypes = (*(a.dtype for a in inputs), *(dtype for _, dtype in outputs))
        steps, cubin = compiled(cuda_text(source, dtypes, source.name), self.architecture)
        self.launches.append(source.name)
        kinds = [np.dtype(str(dtype).rpartition(".")[2]) for _, dtype in outputs]
        shapes = [shape for shape, _ in outputs]
        counts = [int(np.prod(shape)) * k.itemsize for shape, k in zip(shapes, kinds, strict=True)]
        placed = Placed([np.array(a) for a in inputs], counts, cubin)
        number = number_of(self.architecture)
        blocks = [-(-n // of) for n, of in zip(grid, threadgroup, strict=True)]
        banks = banks_of(cubin, placed, PARAMETERS[number], (*threadgroup, *blocks))
        shared = SHARED_BEGIN.get(number, 0), source.shared + cubin.shared
        every = np.stack(np.unravel_index(np.arange(int(np.prod(blocks))), blocks[::-1])[::-1], 1)
        threads = threadgroup[0]
        step = max(1, TOGETHER // threads)
        for first in range(0, len(every), step):
            some = Blocks(every[first : first + step].astype(np.uint32), threads)
            running = Threads(some, banks, placed.memory, shared)
            try:
                running.run(steps)
            except MachineError as error:
                raise MachineError(f"{source.name} on {self.architecture}: {error}") from error
            self.issued += running.issued
        return self.results(source, placed, counts, kinds, shapes)

    def results(
        self, source: KernelSource, placed: Placed, counts: Sequence[int],
        kinds: Sequence[np.dtype], shapes: Sequence[Shape],
    ) -> list[mx.array]:  # fmt: skip
        """The outputs, of which every byte must have been written."""
        out = []
        begins = placed.parameters[len(source.inputs) :]
        for name, begin, size, kind, shape in zip(
            source.outputs, begins, counts, kinds, shapes, strict=True
        ):
            if name != "scratch" and not placed.memory.written[begin : begin + size].all():
                raise MachineError(f"{source.name}: nobody writes a byte of {name}")
            data = placed.memory.bytes[begin : begin + size]
            out.append(mx.array(np.frombuffer(data.tobytes(), kind).reshape(shape)))
        return out
