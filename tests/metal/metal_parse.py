"""Metal kernels read by upstream clang as C++ for OpenCL, with the headers in opencl/.

Address spaces are part of types there, as in Metal: `device` is __global, `threadgroup` __local,
`constant` __constant and `thread` __private; what names none is generic, as from Metal 4.1 on. That
Metal asks for a name where C++ for OpenCL takes the generic one is for metal_lint.py to see.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

HEADERS = Path(__file__).parent / "opencl"
FLAGS = (
    *("-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only", f"-I{HEADERS}"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-attributes", "-Wno-unused-parameter"),
    *("-Wno-unused-variable", "-Wno-unused-const-variable", "-Wno-sign-compare"),
    *("-Wno-unused-but-set-variable",),
)
OPENING = "#include <metal_stdlib>\nusing namespace metal;\n"  # what MLX puts before a kernel


def as_opencl(msl: str) -> str:
    """The text with its entry marked as OpenCL wants it; lines keep their numbers but for two."""
    return OPENING + re.sub(r"\[\[kernel\]\]\s+void", "kernel void", msl)


def refused(compiler: str, kernels: Mapping[str, str], folder: Path) -> str:
    """What the compiler says against kernels, by name; empty if it takes all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{re.sub(r'[^0-9A-Za-z.-]+', '-', name)}.cl" for name in kernels}
    assert len(set(files.values())) == len(kernels)
    for name, path in files.items():
        path.write_text(as_opencl(kernels[name]), "ascii")
    command = [compiler, *FLAGS, *map(str, files.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""
