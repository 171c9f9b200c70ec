"""Kernel sources: a kernel as MLX takes it, and the text of kernel files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from eggroll.errors import InputError

IN_TREE = Path(__file__).parents[3] / "extensions" / "int8_gemm"


class Source(NamedTuple):
    """A kernel as mx.fast takes it: names of its arrays, header and body.

    shared: bytes of threadgroup memory that the body declares; a CUDA launch asks for them.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str
    shared: int = 0


@cache
def kernel_text(folder: str, file: str) -> str:
    """Text of a kernel file in folder "gpu", "metal" or "cuda", installed or in the source tree.

    Raises InputError if it is in neither.
    """
    for place in (files("eggroll").joinpath("kernels", folder, file), IN_TREE / folder / file):
        if place.is_file():
            return place.read_text("ascii")
    raise InputError(f"the {folder} kernel {file} is missing: run `make build`, then try again.")
