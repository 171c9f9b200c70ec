"""Kernel sources: a kernel as MLX takes it, and the text of kernel files."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from eggroll.errors import InputError

IN_TREE = Path(__file__).parents[3] / "extensions" / "int8_gemm"


class Source(NamedTuple):
    """A kernel as mx.fast takes it: names of its arrays, header and body.

    shared: bytes of threadgroup memory that the body declares; a CUDA launch asks for them. blocks:
    of CUDA, of `threads` each, for which a multiprocessor must have registers; 0 if none is said.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str
    shared: int = 0
    blocks: int = 0
    threads: int = 0


@cache
def kernel_text(*files: str) -> str:
    """Text of the first of some kernel files that is there, e.g. gpu/mix.h; installed or in-tree.

    Raises InputError if none is.
    """
    installed = resources.files("eggroll").joinpath("kernels")
    for place in (root.joinpath(file) for root in (installed, IN_TREE) for file in files):
        if place.is_file():
            return place.read_text("ascii")
    raise InputError(f"the kernel {files[0]} is missing: run `make build`, then try again.")
