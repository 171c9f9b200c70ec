"""Machine code of a kernel, read back by nvdisasm: instructions, their operands and their targets.

nvdisasm comes with the wheel nvidia-cuda-nvdisasm (`pip install '.[nvrtc]'`), or EGGROLL_NVDISASM
names the program. It needs no GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

LABEL = re.compile(r"^([.$\w]+):")
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*(?:\.\w+)*)\s*(.*?)\s*;")
WORD = re.compile(r"/\* 0x([0-9a-f]{16}) \*/\s*$")


class Control(NamedTuple):
    """What an instruction tells the scheduler: in bits 105 to 121 of its 128.

    stall: cycles until the warp's next one; writes, reads: the scoreboard that its result, or its
    reading, clears (7: none); waits: bits of the scoreboards that must be clear before it.
    """

    stall: int
    writes: int
    reads: int
    waits: int


class Instruction(NamedTuple):
    """guard: the predicate before it, or empty; name: with its modifiers; target: of a branch."""

    guard: str
    name: str
    operands: tuple[str, ...]
    target: int
    control: Control


@cache
def program() -> Path | None:
    """nvdisasm, of EGGROLL_NVDISASM or of the wheel; None where there is neither."""
    if named := os.environ.get("EGGROLL_NVDISASM"):
        return Path(named)
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return min((p for root in roots for p in Path(root).glob("*/bin/nvdisasm")), default=None)


def unavailable_because() -> str:
    """The reason why no machine code can be read here; empty if it can."""
    path = program()
    if path is None:
        return "nvdisasm is not installed: pip install '.[nvrtc]'"
    return "" if path.exists() else f"EGGROLL_NVDISASM names {path}, which is not there"


def control_of(word: int) -> Control:
    """From the upper half of an instruction."""
    bits = word >> 41
    return Control(bits & 15, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63)


def operands_of(text: str) -> tuple[str, ...]:
    """The operands, without hints for the operand cache."""
    parts = [part.strip() for part in text.replace(".reuse", "").split(",")]
    return tuple(part for part in parts if part)


def parsed(text: str) -> list[Instruction]:
    """The instructions of nvdisasm's text of one kernel."""
    labels: dict[str, int] = {}
    lines: list[tuple[str, str, str, int]] = []
    for line in text.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(lines)
        elif found := LINE.match(line):
            lines.append((found[1] or "", found[2], found[3], 0))
        elif lines and not lines[-1][3] and (word := WORD.search(line)):
            lines[-1] = (*lines[-1][:3], int(word[1], 16))
    out = []
    for guard, name, rest, word in lines:
        label = re.search(r"`\(([.$\w]+)\)", rest)
        target = labels.get(label[1], -1) if label else -1
        out.append(Instruction(guard, name, operands_of(rest), target, control_of(word)))
    return out


@cache
def disassembled(cubin: bytes) -> list[Instruction]:
    """The instructions of a kernel's machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program()), "-c", "-hex", file.name]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
    return parsed(made.stdout)
