"""Counts what the emulated kernels execute: instructions of clang's optimised IR, and accesses.

A `Counting` emulator compiles a kernel as Apple's compiler would begin to, to LLVM's IR at -O2, and
puts a call into every basic block; ThreadSanitizer's hooks, which count.cpp defines, see each
access to an array of the kernel. A lane's own arrays that the optimiser leaves in memory are found
in the IR. IR instructions are a lane's: 32 of them are one of a simdgroup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
from emulator import FLAGS, FORWARD, HERE, Emulator, Kernel, build, clang, entry
from networks import random_case

from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.metal import MetalEngine

COUNTED = ("-O2", "-fno-vectorize", "-fno-slp-vectorize", "-DEMU_COUNT")
HOOKS = ("-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0")
WAITS = {1: "barrier", 2: "simdgroup barrier", 3: "sum", 4: "shuffle"}  # of Wait in metal_stdlib

# Cycles of a scheduler per instruction of a simdgroup, as philipturner/metal-benchmarks measured
# them on an M1: simple ones take 1, but 1.6 with eight simdgroups per core and ILP 4. A byte costs
# an extension and a conversion; an access a cycle that four schedulers share. Moves are free.
SIMPLE = "add sub and or xor icmp select abs smax smin umin umax br getelementptr"
CYCLES = dict.fromkeys((*SIMPLE.split(), "zext i8"), 1.6) | {
    **{"mul": 4, "shl": 4, "lshr": 4, "ashr": 4, "ctlz": 4, "sitofp": 4, "fptosi": 4, "sext i8": 4},
    **{"sitofp i8": 8, "udiv": 16, "sdiv": 16, "sum": 17, "shuffle": 2, "access": 4},
    **{"private": 4},  # of a lane's own array in memory: at least what another access takes
}
Edit = Callable[[KernelSource], KernelSource]  # of a kernel, before it is compiled
POINTERS = ("getelementptr", "bitcast", "select", "phi", "freeze", "addrspacecast")
NAME = re.compile(r"%[\w.]+")


class Counts(NamedTuple):
    """Counts over all lanes of a kernel's threadgroups and all its launches.

    instructions: by IR opcode, or what is called; read, written: bytes by the array's name.
    """

    instructions: Counter[str]
    read: Counter[str]
    written: Counter[str]

    def minus(self, other: Counts) -> Counts:
        for mine, theirs in zip(self, other, strict=True):
            mine.subtract(theirs)
        return self

    @property
    def products(self) -> float:
        """8 x 8 x 8 products of simdgroups."""
        return self.instructions["multiply"] / 32

    @property
    def private(self) -> int:
        """Accesses of lanes to arrays of their own that lie in memory."""
        return self.instructions["private"]

    @property
    def cycles(self) -> float:
        """Cycles of everything but the products."""
        return sum(CYCLES.get(op, 0) * n / 32 for op, n in self.instructions.items())


def opcode(line: str) -> str:
    """The name an IR instruction is counted by; empty if it is none of the kernel's."""
    words = line.split(" = ", 1)[-1].split()
    if words[0] in ("tail", "notail", "musttail"):
        words = words[1:]
    if words[0] != "call":
        kind = words[0]
        of_byte = kind in ("sitofp", "sext", "zext") and "i8" in words[1:3]
        return f"{kind} i8" if of_byte else kind
    name = re.search(r"@([\w.]+)\(", line)
    called = name[1] if name else "indirect"
    if called.startswith("llvm."):
        return called.split(".")[1]
    if "exchange" in called:
        packed = re.search(r"exchange\w*\(i64 (?:noundef )?(-?\d+)", line)
        return WAITS[int(packed[1]) & 0xFFFFFFFF] if packed else "exchange"
    if "emu8multiply" in called:
        return "multiply"
    return "" if called.startswith(("__tsan", "_ZN3emu")) else called


def private_names(function: list[str]) -> set[str]:
    """Names of the pointers into a lane's own arrays: its own, and those it is given."""
    given = re.findall(r"(?:byval|dereferenceable)\([^,]*? (%[\w.]+)[,)]", function[0])
    names, before = {*given}, -1
    while len(names) != before:
        before = len(names)
        for line in function[1:]:
            name, _, value = line.strip().partition(" = ")
            kind = value.partition(" ")[0]
            if kind == "alloca" or (kind in POINTERS and names & {*NAME.findall(value)}):
                names.add(name)
    return names


def private_accesses(line: str, names: set[str]) -> int:
    """Accesses of an instruction to a lane's own arrays; a fill or copy makes one per 4 bytes."""
    words = line.split(" = ", 1)[-1].split()
    pointer = NAME.findall(line)
    if words[0] in ("load", "store"):
        return int(re.split(r", align|, !", line)[0].split()[-1] in names)
    if moved := re.search(r"@(?:__tsan_|llvm\.)mem\w+[\w.]*\(.*?i64 (\d+)", line):
        return -(-int(moved[1]) // 4) * len(names & {*pointer})
    return 0


def with_calls(ir: str) -> tuple[str, list[Counter[str]]]:
    """The module with a call at the head of every basic block, and what each block holds."""
    out: list[str] = []
    blocks: list[Counter[str]] = []
    inside = fresh = False
    names: set[str] = set()
    lines = ir.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("define "):
            inside = fresh = True
            names = private_names(lines[number : lines.index("}", number)])
        elif line == "}":
            inside = False
        elif inside and re.match(r'[\w.$"-]+:', line):
            fresh = True
        elif inside and line.startswith("  ") and line[2] not in " ]":
            if fresh and " = phi " not in line:
                out.append(f"  call void @emu_block(i32 {len(blocks)})")
                blocks.append(Counter())
                fresh = False
            if blocks and not fresh:
                blocks[-1][opcode(line)] += 1
                blocks[-1]["private"] += private_accesses(line, names)
        out.append(line)
    return "\n".join([*out, "declare void @emu_block(i32)", ""]), blocks


@dataclass
class Counting(Emulator):
    """A launcher that counts; `counts` ends its processes and gives what they did."""

    orders: tuple[int, ...] = (FORWARD,)
    blocks: dict[Path, list[Counter[str]]] = field(default_factory=dict)

    def compile(self, msl: str, digest: str) -> Kernel:
        compiler = clang()
        assert compiler
        program = self.folder / f"{digest}.count"
        common = [compiler, "-std=c++17", *FLAGS, *COUNTED]
        runtime = self.folder / "runtime.count.o"
        if not runtime.exists():
            build([*common, "-c", str(HERE / "runtime.cpp"), "-o", str(runtime)])
        source, ir = program.with_suffix(".cpp"), program.with_suffix(".ll")
        if not program.exists():
            source.write_text(msl + entry(msl), "ascii")
            build([*common, *HOOKS, "-S", "-emit-llvm", str(source), "-o", str(ir)])
        text, self.blocks[program] = with_calls(ir.read_text())
        if not program.exists():
            counted = program.with_suffix(".counted.ll")
            counted.write_text(text)
            objects = ["-x", "c++", str(HERE / "count.cpp"), "-x", "none", str(runtime)]
            flags = ["-O1", "-Wno-override-module", "-x", "ir", str(counted)]
            build([compiler, *flags, *objects, "-o", str(program)])
        return Kernel(program)

    def counts(self) -> list[Counts]:
        """Counts of each kernel since the last call; inputs and outputs are named by position."""
        out = []
        for kernel in self.kernels.values():
            if kernel.process is not None:
                kernel.end()
                out.append(self.read(kernel.program))
        return out

    def read(self, program: Path) -> Counts:
        counts = Counts(Counter(), Counter(), Counter())
        for line in Path(f"{program}.counts").read_text().splitlines():
            kind, name, number = line.split(" ")
            if kind == "block":
                for op, times in self.blocks[program][int(name)].items():
                    counts.instructions[op] += times * int(number)
            elif kind == "access":
                counts.instructions[kind] += int(number)
            else:
                (counts.read if kind == "read" else counts.written)[name] += int(number)
        del counts.instructions[""]
        return counts


def token_counts(
    folder: Path, *, D: int, V: int, members: int, rank: int, edit: Edit = lambda source: source
) -> list[Counts]:
    """Counts of a threadgroup's second token: embedding, layer, head."""
    found = []
    for T in (1, 2):
        case = random_case(1, D=D, V=V, T=T, P=members, rank=rank)
        launcher = Counting(folder, edit=edit)
        engine = MetalEngine(case.program, launcher=launcher, members=members)
        prepared = engine.prepare(case.leaves)
        launcher.counts()  # of packing
        engine.evaluate(prepared, case.slices, case.batch)
        found.append(launcher.counts())
    return [two.minus(one) for one, two in zip(*found, strict=True)]


def vote_counts(folder: Path, *, D: int, V: int, rank: int) -> list[Counts]:
    """Counts of 64 more pairs in the kernels of votes: matrices, vectors."""
    found = []
    for pairs in (64, 128):
        case = random_case(1, D=D, V=V, T=1, P=2 * pairs, rank=rank)
        launcher = Counting(folder)
        engine = MetalEngine(case.program, launcher=launcher)
        mx.eval(engine.votes(mx.ones(pairs, mx.int8), case.slices, True))
        found.append(launcher.counts())
    return [two.minus(one) for one, two in zip(*found, strict=True)]
