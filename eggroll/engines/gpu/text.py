"""What Metal sources are made of: kernel files, constants and tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from eggroll.errors import InputError

IN_TREE = Path(__file__).parents[3] / "extensions" / "int8_gemm"


class Source(NamedTuple):
    """A kernel as mx.fast takes it: names of its arrays, header and body.

    shared: bytes of shared memory that a launch asks for, with CUDA.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str
    shared: int = 0


class CreditKernels(NamedTuple):
    """What runs after the stages: credits, their sums with inputs, votes, sums by row."""

    gains: Source
    traces: Source
    matrices: Source
    vectors: Source
    embedded: Source
    read: Source


@cache
def text_of(gpu: str, file: str) -> str:
    """Text of a kernel file of "metal" or "cuda", installed or in the source tree.

    Raises InputError if it is in neither.
    """
    for place in (files("eggroll").joinpath("kernels", gpu, file), IN_TREE / gpu / file):
        if place.is_file():
            return place.read_text("ascii")
    raise InputError(f"the {gpu} kernel {file} is missing: run `make build`, then try again.")


def kernel_file(name: str) -> str:
    """Text of `name`.metal; see `text_of`."""
    return text_of("metal", f"{name}.metal")


def constants(**values: int) -> str:
    return "".join(f"constant constexpr int {k} = {int(v)};\n" for k, v in values.items())


def array(kind: str, name: str, values: Sequence[int], suffix: str = "") -> str:
    text = ", ".join(f"{v}{suffix}" for v in values)
    return f"constant {kind} {name}[{len(values)}] = {{{text}}};\n"


INCLUDES = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
