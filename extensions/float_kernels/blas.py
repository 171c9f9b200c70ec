"""The choice between own products and those of a BLAS, by measurement.

FLOAT_KERNELS_BLAS is `own`, `auto` (the first of KNOWN that opens, if it is the faster one) or the
path of a library. Unset it is `auto` on macOS, whose Accelerate reaches matrix units that no other
code does, and `own` elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from float_kernels.library import Table, fastest, load

OPTION, OWN = "FLOAT_KERNELS_BLAS", "own kernels"
KNOWN = (
    "/System/Library/Frameworks/Accelerate.framework/Accelerate",
    "libmkl_rt.so.2", "libopenblas.so.0", "libblis.so.4", "libcblas.so.3",
)  # fmt: skip
# transposed, m, n, k of the products of PPO's hidden layer at batch 64, forward and backward.
SHAPES = ((1, 64, 256, 256), (0, 64, 256, 256), (2, 256, 256, 64))
ROUNDS, CALLS = 7, 4
MARGIN = 1.05  # by which a BLAS must be faster, as it is a library more


class Products(NamedTuple):
    """The table in use. name: who computes its plain products; why: what was measured."""

    name: str
    table: Table
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


@cache
def products() -> Products:
    """The table in use, chosen on the first call.

    Raises ValueError if FLOAT_KERNELS_BLAS names no library with cblas_sgemm, or one whose
    products are wrong.
    """
    own = fastest()
    wanted = os.environ.get(OPTION) or ("auto" if sys.platform == "darwin" else "own")
    if wanted == "own":
        return Products(OWN, own)
    if wanted != "auto":
        return _named(own, wanted)
    for path in KNOWN:
        if found := over(own, path):
            speed_up = measured(own, found)
            name = os.path.basename(path)
            if speed_up >= MARGIN:
                return Products(name, found, f"{speed_up:.2f} times as fast as {OWN}")
            slower = f"is {speed_up:.2f} times as fast" if speed_up else "gives wrong products"
            return Products(OWN, own, f"{name} {slower}")
    return Products(OWN, own, "no BLAS was found")


def _named(own: Table, path: str) -> Products:
    """The products of the BLAS that was asked for, however fast it is."""
    found = over(own, path)
    if found is None:
        raise ValueError(
            f"{OPTION} is {path!r}, which is no library with cblas_sgemm: own, auto or the path of "
            "one is needed"
        )
    speed_up = measured(own, found)
    if not speed_up:
        raise ValueError(f"{OPTION} is {path!r}, whose products are wrong: set it to own")
    return Products(os.path.basename(path), found, f"{speed_up:.2f} times as fast as {OWN}")


def over(own: Table, path: str) -> Table | None:
    """The table with the products of a BLAS; None if there is none at that path."""
    pointer = load().float_kernels_over_blas(ctypes.byref(own), os.fsencode(path))
    return pointer.contents if pointer else None


def measured(own: Table, other: Table) -> float:
    """Seconds of the own products over those of another table; 0 if its results are wrong.

    Each product's seconds are the least of some rounds, in turn.
    """
    tables, seconds = (own, other), [0.0, 0.0]
    for transposed, m, n, k in SHAPES:
        a = _ramp((k, m) if transposed == 2 else (m, k))
        b = _ramp((n, k) if transposed == 1 else (k, n))
        operands = a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1]
        results = [np.full((m, n), np.nan, np.float32) for _ in tables]
        least = [np.inf, np.inf]
        for _ in range(ROUNDS):
            for i, table in enumerate(tables):
                began = time.perf_counter()
                for _ in range(CALLS):
                    table.sgemm(transposed, m, n, k, *operands, results[i].ctypes.data, n, 0, 1)
                least[i] = min(least[i], time.perf_counter() - began)
        if not np.allclose(*results, rtol=1e-4):
            return 0.0
        seconds = [total + one for total, one in zip(seconds, least, strict=True)]
    return seconds[0] / seconds[1]


def _ramp(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Numbers from 0 to 1 that differ along both axes."""
    return np.linspace(0, 1, shape[0] * shape[1], dtype=np.float32).reshape(shape)
