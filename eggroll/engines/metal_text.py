"""What Metal sources are made of: kernel files, constants and tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from eggroll.errors import InputError

INSTALLED = ("kernels", "metal")  # below the package
IN_TREE = Path(__file__).parents[2] / "extensions" / "int8_gemm" / "metal"


class Source(NamedTuple):
    """A kernel as mx.fast.metal_kernel takes it: names of its arrays, header and body."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str


@cache
def kernel_file(name: str) -> str:
    """Text of `name`.metal, installed with the package or in the source tree.

    Raises InputError if it is in neither.
    """
    found = files("eggroll").joinpath(*INSTALLED, f"{name}.metal")
    for place in (found, IN_TREE / f"{name}.metal"):
        if place.is_file():
            return place.read_text("ascii")
    raise InputError(f"the Metal kernel {name}.metal is missing: run `make build`, then try again.")


def constants(**values: int) -> str:
    return "".join(f"constant constexpr int {k} = {int(v)};\n" for k, v in values.items())


def array(kind: str, name: str, values: Sequence[int], suffix: str = "") -> str:
    text = ", ".join(f"{v}{suffix}" for v in values)
    return f"constant {kind} {name}[{len(values)}] = {{{text}}};\n"


INCLUDES = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
