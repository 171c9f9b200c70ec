"""NVRTC as the engine calls it, without a GPU, and what its assembler says of a kernel.

It comes with the wheel nvidia-cuda-nvrtc (`pip install '.[nvrtc]'`), or EGGROLL_NVRTC names the
library.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from built import contents, folder_of, used, whole

from eggroll.engines import nvrtc as engine
from eggroll.engines.nvrtc import CompileError

__all__ = ["CompileError", "Resources", "compile", "compiled", "unavailable_because"]

# The warnings left out are those that a size known at compile time gives.
OPTIONS = ("--ptxas-options=-v", "--diag-suppress=186,128,177,550")


class Resources(NamedTuple):
    """Resources that the assembler reports: registers of a thread, bytes that it spills."""

    registers: int
    spilled: int


def unavailable_because() -> str:
    """The reason why nothing can be compiled here; empty if it can."""
    return engine.unavailable_because() and "NVRTC is not installed: pip install '.[nvrtc]'"


def compile(text: str, architecture: str, *options: str) -> Resources:
    """Compiles to machine code of e.g. sm_80, and says what it needs.

    Raises CompileError with NVRTC's log, of a warning too.
    """
    return compiled(text, architecture, *options)[0]


def compiled(text: str, architecture: str, *options: str) -> tuple[Resources, bytes]:
    """The same, and the machine code; kept in build/, as it takes a second or some to make."""
    means = engine.version().encode()
    folder = folder_of("nvrtc", means + contents([Path(__file__), Path(engine.__file__)]))
    key = hashlib.sha256("\0".join((text, architecture, *options)).encode("ascii")).hexdigest()
    kept = folder / key[:24]
    if used(kept):
        numbers, _, code = kept.read_bytes().partition(b"\n")
        return Resources(*map(int, numbers.split())), code
    resources, code = fresh(text, architecture, *options)
    with whole(kept) as file:
        file.write_bytes(f"{resources.registers} {resources.spilled}\n".encode() + code)
    return resources, code


def fresh(text: str, architecture: str, *options: str) -> tuple[Resources, bytes]:
    """`compiled`, made anew."""
    cubin, log = engine.compiled(text, architecture, *OPTIONS, *options)
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill", log)
    if "warning" in log or not registers or not spills:
        raise CompileError(log)
    return Resources(int(registers[1]), sum(map(int, spills))), cubin
