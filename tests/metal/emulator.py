"""Metal kernels on this CPU: the MSL that MLX generates, compiled by clang through include/.

`Emulator` is a launcher for MetalEngine. A kernel becomes a process that runs its grids and checks
every access to memory; a launch may also run in several orders of the threads, and all must agree.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from built import contents, folder_of, used, whole
from metal_lint import unnamed_spaces
from metal_parse import refused

from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.launch import launcher
from eggroll.engines.metal import compiled

HERE = Path(__file__).parent
# Processes of kernels; each takes three pipes and some MB. Whoever imports mlx_lm may have no more
# than 2,048 files open from then on, as that sets the limit.
MOST_RUNNING = 32
FORWARD, REVERSE, SHUFFLED = range(3)
INPUT, OUTPUT, SCRATCH = range(3)
LEFT_OUT = (".json", ".pyc")  # files of the emulators that no program is made of
# What an access touches memory.cpp checks, and no pointer is looked at before it is used.
UNDEFINED = (
    *("-fsanitize=undefined", "-fno-sanitize=pointer-overflow,null,object-size"),
    "-fno-sanitize-recover=all",
)
# ThreadSanitizer's hooks at every access, which memory.cpp defines.
HOOKS = ("-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0")
COPIES = ("--wrap=memcpy", "--wrap=memmove", "--wrap=memset")
FLAGS = (
    *("-x", "c++", "-fsigned-char", "-Wall", "-Wextra", "-Werror"),
    *("-Wno-unknown-attributes", "-Wno-duplicate-decl-specifier", "-Wno-unused-parameter"),
    *("-Wno-sign-compare", "-Wno-unused-const-variable", "-Wno-unused-function"),
    *("-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-ignored-qualifiers"),
    f"-I{HERE / 'include'}",
)
POSITIONS = {
    "thread_index_in_simdgroup": "emu::position.lane",
    "simdgroup_index_in_threadgroup": "emu::position.simdgroup",
    "threadgroup_position_in_grid": "group",
    "thread_position_in_grid": "group_thread",
}


def clang() -> str | None:
    """The compiler's path; None where there is none."""
    named = [os.environ.get("EGGROLL_CLANG", ""), "clang++"]
    named += [f"clang++-{version}" for version in range(22, 13, -1)]
    return next((path for name in named if name and (path := shutil.which(name))), None)


def unavailable_because() -> str:
    """The reason why kernels cannot be emulated here; empty if they can."""
    if sys.platform != "linux":
        return "the Metal kernels are emulated on Linux only"
    compiler = clang()
    if not compiler:
        return "clang++, with which the Metal kernels are emulated, is not installed"
    command = [compiler, *UNDEFINED, "-x", "c++", "-", "-o", os.devnull]
    if subprocess.run(command, input=b"int main() {}", capture_output=True, check=False).returncode:
        return f"{compiler}, with which the Metal kernels are emulated, has no sanitizers"
    return ""


def generated(source: KernelSource, inputs: Sequence[mx.array], outputs) -> str:
    """The MSL that MLX generates for these arrays, as its verbose mode prints it."""

    def call(*arrays: mx.array):
        return launcher(compiled, verbose=True)(source, arrays, outputs, (1, 1, 1), (1, 1, 1))

    with tempfile.TemporaryDirectory() as folder, standard_output() as text:
        mx.export_function(str(Path(folder) / "call"), call, *inputs)
    msl = text().partition("```\n")[2].rpartition("```")[0]
    if "EGG_SHARED(" in msl and "#define EGG_SHARED(" not in msl:
        raise EmulationError("EGG_SHARED, which the emulation has, is not defined for Metal")
    return msl


@contextlib.contextmanager
def standard_output():
    """Catches what C++ prints; yields a function that gives it afterwards."""
    with tempfile.TemporaryFile() as caught:
        kept = os.dup(1)
        os.dup2(caught.fileno(), 1)
        try:
            yield lambda: text
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            caught.seek(0)
            text = caught.read().decode("ascii")


def entry(msl: str) -> str:
    """A function that calls the kernel for the running thread, from its signature."""
    name, parameters = re.search(r"\[\[kernel\]\] void (\w+)\((.*?)\) \{", msl, re.S).groups()  # type: ignore[union-attr]
    arguments = []
    for parameter in parameters.split(",\n"):
        words = re.fullmatch(r"\s*(.*?)\s*(\w+) \[\[(\w+)(?:\((\d+)\))?\]\]\s*", parameter)
        kind, _, attribute, number = words.groups()  # type: ignore[union-attr]
        if attribute == "buffer":
            arguments.append(f"({kind})arrays[{number}]")
        else:
            arguments.append(POSITIONS[attribute])
    return f"""
#include "{HERE / "runtime.h"}"
void emu::entry(void** arrays) {{
  uint3 group, group_thread;
  group.x = emu::position.group[0];
  group.y = emu::position.group[1];
  group.z = emu::position.group[2];
  group_thread = group;
  group_thread.x = group.x * emu::position.size + emu::position.index;
  {name}({", ".join(arguments)});
}}
"""


def named(said: str, source: KernelSource) -> str:
    """A message with the names of a kernel's arrays in place of their numbers."""
    names = [*source.inputs, *source.outputs]
    return re.sub(r" byte (\d+) of (\d+)", lambda m: f" byte {m[1]} of {names[int(m[2])]}", said)


@dataclass(eq=False)
class Kernel:
    """A compiled kernel as a process, which runs while it is among the last ones used.

    host: the program that loads it; none where the kernel is a program itself.
    """

    program: Path
    host: Path | None = None
    process: subprocess.Popen | None = None

    def start(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*([self.host] if self.host else ()), self.program]
        self.process = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
        running[self] = None
        while len(running) > MOST_RUNNING:
            next(iter(running)).end()

    def end(self) -> str:
        """Ends the process, closes its pipes and returns what it has said of a failure."""
        running.pop(self, None)
        process, self.process = self.process, None
        return process.communicate()[1].decode(errors="replace") if process else ""

    def run(self, source: KernelSource, order: int, inputs, outputs, grid, threadgroup):
        """The outputs. Raises EmulationError for what a kernel must not do."""
        if self.process is None:
            self.start()
        running[self] = running.pop(self)  # the last one used
        head = order, *grid, *threadgroup, len(inputs) + len(outputs), source.shared
        request = [struct.pack("9I", *head)]
        for array in inputs:
            request += [struct.pack("2Q", INPUT, array.nbytes), array.tobytes()]
        sizes = [int(np.prod(shape)) * dtype.size for shape, dtype in outputs]
        kinds = [SCRATCH if name == "scratch" else OUTPUT for name in source.outputs]
        request += [struct.pack("2Q", *pair) for pair in zip(kinds, sizes, strict=True)]
        try:
            self.process.stdin.write(b"".join(request))
            self.process.stdin.flush()
            answers = [self.process.stdout.read(size) for size in sizes]
        except BrokenPipeError:
            answers = []
        if [len(answer) for answer in answers] != sizes:
            raise EmulationError(named(self.end(), source))
        return [
            np.frombuffer(answer, np.dtype(str(dtype).rpartition(".")[2])).reshape(shape)
            for answer, (shape, dtype) in zip(answers, outputs, strict=True)
        ]


running: dict[Kernel, None] = {}  # the last one used comes last


@atexit.register
def end_all() -> None:
    for kernel in list(running):
        kernel.end()


class EmulationError(Exception):
    """A kernel did what it must not: out of bounds, undefined, divergent, inexact."""


@dataclass
class Emulator:
    """A launcher. orders: every launch runs once in each; alternate: in one of them, in turn."""

    folder: Path
    orders: tuple[int, ...] = (FORWARD,)
    alternate: bool = False
    optimize: str = "-O0"  # compiling takes most of the time
    # Puts a fault in, to see it found.
    edit: Callable[[KernelSource], KernelSource] = lambda source: source
    kernels: dict[str, Kernel] = field(default_factory=dict)
    launches: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    def __call__(self, source: KernelSource, inputs, outputs, grid, threadgroup) -> list[mx.array]:
        source = self.edit(source)
        kernel = self.kernel(self.text(source, inputs, outputs))
        self.launches.append(source.name)
        orders = self.orders
        if self.alternate:
            orders = (orders[len(self.launches) % len(orders)],)
        arrays = [np.array(a) for a in inputs]
        rest = arrays, outputs, grid, threadgroup
        results = [kernel.run(source, order, *rest) for order in orders]
        for other in results[1:]:
            for name, a, b in zip(source.outputs, results[0], other, strict=True):
                if name != "scratch" and not np.array_equal(a, b):
                    raise EmulationError(f"{source.name}: {name} depends on the order of threads")
        return [mx.array(a) for a in results[0]]

    def kernel(self, msl: str) -> Kernel:
        digest = hashlib.sha256((self.optimize + msl).encode("ascii")).hexdigest()[:24]
        if digest not in self.kernels:
            self.sources[digest] = msl
            self.kernels[digest] = self.compile(msl, digest)
        return self.kernels[digest]

    @property
    def units(self) -> list[tuple[Path, tuple[str, ...]]]:
        """Units of the host, with flags of their own."""
        return [(HERE / "runtime.cpp", ("-O2",)), (HERE / "memory.cpp", ("-O2",))]

    def host(self, common: list[str]) -> Path:
        """The program that loads kernels, compiled by whoever needs it first."""
        program = self.folder / "host"
        if used(program):
            return program
        with whole(program) as made:
            objects = []
            for path, flags in self.units:
                objects.append(str(made.with_name(f"{path.stem}.o")))
                build([*common, *flags, "-c", str(path), "-o", objects[-1]])
            linked = [common[0], *UNDEFINED, f"-Wl,{','.join(COPIES)}", "-rdynamic"]
            build([*linked, *objects, "-ldl", "-o", str(made)])
        return program

    def text(self, source: KernelSource, inputs, outputs) -> str:
        """The text to compile."""
        return generated(source, inputs, outputs)

    def program(self, text: str) -> str:
        """The text as C++, with the function that calls it."""
        return text + entry(text)

    def flags(self, text: str) -> list[str]:
        # Metal takes a descriptor as a template argument, C++ from 2020 on.
        standard = "-std=c++20" if "MetalPerformancePrimitives" in text else "-std=c++17"
        return [standard, *FLAGS]

    def check(self, compiler: str, text: str, folder: Path) -> None:
        """Address spaces: what Metal would refuse."""
        said = unnamed_spaces(text) or refused(compiler, {"kernel": text}, folder)
        if said:
            raise EmulationError(str(said))

    def compile(self, msl: str, digest: str) -> Kernel:
        compiler = clang()
        assert compiler
        program = self.folder / digest
        common = [compiler, *self.flags(msl)]
        host = self.host(common)
        if not used(program):
            with whole(program) as made:
                text, kernel = made.with_name("kernel.cpp"), made.with_name("kernel.o")
                text.write_text(self.program(msl), "ascii")
                self.check(compiler, msl, made.parent)
                checked = [*UNDEFINED, *HOOKS, self.optimize, "-fPIC"]
                build([*common, *checked, "-c", str(text), "-o", str(kernel)])
                build(["ld", "-shared", *COPIES, str(kernel), "-o", str(made)])
        return Kernel(program, host)


def built_folder() -> Path:
    """The folder of programs that earlier tests have compiled by the same means."""
    compiler = clang()
    assert compiler
    said = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    files = [*HERE.rglob("*"), *(HERE.parent / "cuda").rglob("*")]
    parts = (path for path in files if path.is_file() and path.suffix not in LEFT_OUT)
    return folder_of("emulated", compiler.encode() + said + contents(parts))


def build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(done.stderr)
