"""NVRTC, the compiler that MLX uses at run time, called without a GPU.

It comes with the wheel nvidia-cuda-nvrtc (`pip install '.[nvrtc]'`), or EGGROLL_NVRTC names the
library. MLX's own headers are not in a CPU wheel, so HEADERS has what our kernels need of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from built import contents, folder_of, used, whole

HEADERS = {
    "mlx/backend/cuda/device/utils.cuh": """
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
""",
    "cooperative_groups.h": "namespace cooperative_groups {}\n",
}
# The warnings left out are those that a size known at compile time gives.
OPTIONS = ("--ptxas-options=-v", "--std=c++17", "--diag-suppress=186,128,177,550")


class Resources(NamedTuple):
    """Resources that the assembler reports: registers of a thread, bytes that it spills."""

    registers: int
    spilled: int


class CompileError(Exception):
    """NVRTC refused the text or warned of it; the message is its log."""


@cache
def library_path() -> Path | None:
    """libnvrtc.so, of EGGROLL_NVRTC or of the wheel; None where there is neither."""
    if named := os.environ.get("EGGROLL_NVRTC"):
        return Path(named)
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    found = [p for root in roots for p in Path(root).glob("*/lib/libnvrtc.so.*")]
    return min(found, default=None)


def unavailable_because() -> str:
    """The reason why nothing can be compiled here; empty if it can."""
    path = library_path()
    if path is None:
        return "NVRTC is not installed: pip install '.[nvrtc]'"
    return "" if path.exists() else f"EGGROLL_NVRTC names {path}, which is not there"


@cache
def library() -> ctypes.CDLL:
    path = library_path()
    assert path
    # NVRTC looks for these by name alone.
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def strings(texts) -> ctypes.Array:
    return (ctypes.c_char_p * len(texts))(*(text.encode("ascii") for text in texts))


def log_of(program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library().nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    library().nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")


def cubin_of(program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    library().nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library().nvrtcGetCUBIN(program, code)
    return code.raw


def compile(text: str, architecture: str, *options: str) -> Resources:
    """Compiles to machine code of e.g. sm_80, and says what it needs.

    Raises CompileError with NVRTC's log.
    """
    return compiled(text, architecture, *options)[0]


def compiled(text: str, architecture: str, *options: str) -> tuple[Resources, bytes]:
    """The same, and the machine code; kept in build/, as it takes a second or some to make."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    path = library_path()
    assert path
    means = f"{path} {path.stat().st_size} {major.value}.{minor.value}".encode()
    folder = folder_of("nvrtc", means + contents([Path(__file__)]))
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
    nvrtc, program = library(), ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode("ascii"), b"kernel.cu", len(HEADERS),
        strings(HEADERS.values()), strings(HEADERS),
    )  # fmt: skip
    assert created == 0
    words = [f"--gpu-architecture={architecture}", *OPTIONS, *options]
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(words), strings(words))
        log, cubin = log_of(program), b"" if failed else cubin_of(program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed or "warning" in log:
        raise CompileError(log)
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill", log)
    if not registers or not spills:
        raise CompileError(f"no resources in the log: {log}")
    return Resources(int(registers[1]), sum(map(int, spills))), cubin
