"""CUDA kernels on this CPU: the text that the engine compiles, in C++ by clang through include/.

Metal's emulator runs it; here is what CUDA has in place of MSL.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parents[1] / "metal"))
import emulator as metal
from emulator import FORWARD, REVERSE, SHUFFLED, EmulationError

from eggroll.engines.cuda import SHARED
from eggroll.engines.cuda_launch import PRELUDE, cuda_text
from eggroll.engines.gpu.dialect import KernelSource

HERE = Path(__file__).parent
METAL = HERE.parent / "metal"
__all__ = ["FORWARD", "REVERSE", "SHUFFLED", "CudaEmulator", "EmulationError", "written"]

FLAGS = [
    *("-std=c++17", "-Wno-unknown-pragmas", "-Wno-pass-failed", "-Wno-unused-but-set-parameter"),
    *metal.FLAGS,
    f"-I{HERE / 'include'}",
    f"-DEMU_SHARED_BYTES={max(SHARED.values())}",
]
ENTRY = re.compile(r"__global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\((.*?)\) \{", re.S)
AGAIN = re.compile(r'"" : "\+r"\(\w+\)')  # a value that the compiler is to take as new
HALVES = re.compile(  # result; high, low
    r'"cvt\.pack\.sat\.s16\.s32 %0, %1, %2;"\s*'
    r': "=r"\((\w+)\)\s*: "r"\((\w+)\), "r"\((\w+)\)'
)
ASM = re.compile(r"\basm(?: volatile)?\((.*?)\);", re.S)
PACK = re.compile(  # result; high, low, above
    r'"cvt\.pack\.sat\.s8\.s32\.b32 %0, %1, %2, %3;"\s*'
    r': "=r"\((\w+)\)\s*: "r"\((\w+)\), "r"\((\w+)\), "r"\((\w+)\)'
)


def written(source: KernelSource, inputs: Sequence[mx.array], outputs) -> str:
    """The text that the engine compiles for these arrays, with what stands for CUDA before it."""
    dtypes = (*(a.dtype for a in inputs), *(dtype for _, dtype in outputs))
    text = cuda_text(source, dtypes, source.name)
    assert text.startswith(PRELUDE)
    return f'#include "mlx/backend/cuda/device/utils.cuh"\n{text.removeprefix(PRELUDE)}'


def without_asm(text: str) -> str:
    """The text with every mma.sync and cvt.pack as a call of its emulation, operands as they stand.

    Raises EmulationError for a statement of another kind.
    """

    def call(found: re.Match[str]) -> str:
        if AGAIN.fullmatch(found[1].strip()):
            return ""
        if halves := HALVES.fullmatch(found[1].strip()):
            return f"{halves[1]} = emu::halves({halves[2]}, {halves[3]});"
        if pack := PACK.fullmatch(found[1].strip()):
            return f"{pack[1]} = emu::pack({pack[2]}, {pack[3]}, {pack[4]});"
        template, *operands = re.split(r"\s:\s", found[1])
        code = "".join(re.findall(r'"(.*?)"', template))
        shape = re.match(r"mma\.sync\.aligned\.(\w+)\.row\.col\.s32\.s8\.s8\.s32 ", code)
        out, into = (re.findall(r'"(\+?r)"\((.*?)\)(?=,|\s*$)', part) for part in operands)
        if not shape or {k for k, _ in out} != {"+r"} or {k for k, _ in into} != {"r"}:
            raise EmulationError(f"cannot emulate {found[0]}")
        groups = [re.findall(r"%(\d+)", group) for group in re.findall(r"\{(.*?)\}", code)]
        numbers = [int(n) for group in groups[:3] for n in group]
        if groups[3] != groups[0] or numbers != list(range(len(out) + len(into))):
            raise EmulationError(f"operands out of order: {found[0]}")
        return f"emu::{shape[1]}({', '.join(expression for _, expression in out + into)});"

    return ASM.sub(call, text)


def entry(text: str) -> str:
    """Functions that call the kernel for the running thread, and tell it where it stands."""
    name, parameters = ENTRY.search(text).groups()  # type: ignore[union-attr]
    kinds = [p.strip().rpartition(" ")[0] for p in parameters.split(",\n")]
    arguments = ", ".join(f"({kind})arrays[{i}]" for i, kind in enumerate(kinds))
    return f"""
#include "{METAL / "runtime.h"}"
uint3 emu::thread_index() {{
  uint3 at;
  at.x = position.index;
  at.y = at.z = 0;
  return at;
}}
uint3 emu::block_index() {{
  uint3 at;
  at.x = position.group[0];
  at.y = position.group[1];
  at.z = position.group[2];
  return at;
}}
void emu::entry(void** arrays) {{ {name}({arguments}); }}
"""


class CudaEmulator(metal.Emulator):
    """A launcher for CudaEngine."""

    @property
    def units(self) -> list[tuple[Path, tuple[str, ...]]]:
        return [*super().units, (HERE / "warp.cpp", ("-O2",))]

    def text(self, source: KernelSource, inputs, outputs) -> str:  # type: ignore[override]
        return written(source, inputs, outputs)

    def program(self, text: str) -> str:
        return without_asm(text) + entry(text)

    def flags(self, text: str) -> list[str]:
        return FLAGS

    def check(self, compiler: str, text: str, folder: Path) -> None:
        """CUDA's second reading is that of its machine code, by machine_code.py."""
