"""The library, and the tables that this processor can run."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

NAME = "libfloat_kernels.so"
ABI = 3

_I, _P, _F, _D, _L = c_int32, c_void_p, c_float, c_double, c_int64
_PRODUCT = [_I, _I, _I, _P, _I, _P, _I, _P, _I, _I]
_LINEAR = [_I, _I, _I, _P, _I, _P, _I, _P, _P, _I, _I, _P, _I]
_MASK = [_I, _I, _P, _I, _P, _I, _P, _I, _P]
_MAP = [_L, _P, _P]
_BACKWARD = [_P, _I, _P, _P, c_size_t, _P, _I]  # dy and what follows it

# The functions of float_kernels.h in its order: result, arguments.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "sgemm_nn": (None, _PRODUCT),
    "sgemm_nt": (None, _PRODUCT),
    "sgemm_tn": (None, _PRODUCT),
    "sgemm": (None, [_I, *_PRODUCT, _I]),
    "packed_floats": (c_size_t, [_I, _I]),
    "pack": (None, [_I, _I, _P, _I, _I, _P]),
    "sgemm_packed": (None, [_I, _I, _I, _P, _I, _P, _P, _I, _I, _I]),
    "linear": (None, _LINEAR),
    "linear_packed": (None, [_I, _I, _I, _P, _I, _P, *_LINEAR[7:]]),
    "linear_backward": (
        None,
        [_I, _I, _I, _P, _I, _P, _I, _P, _I, _P, _I, _P, _P, _I, _P, _P, _I, _I, _I],
    ),
    "bias_relu": (None, [_I, _I, _P, _I, _P, _P]),
    "relu_backward": (None, _MASK),
    "relu_backward_bits": (None, [_I, _I, _P, *_MASK[4:]]),
    "column_sums": (None, [_I, _I, _P, _I, _P, _I]),
    "gelu": (None, [_I, _L, _P, _P, _P]),
    "gelu_backward": (None, [_I, _L, _P, _P, _P]),
    "exp": (None, _MAP),
    "tanh": (None, _MAP),
    "erf": (None, _MAP),
    "softmax": (None, [_I, _I, _P, _I, _P, _I]),
    "cross_entropy": (c_double, [_I, _I, _P, _I, _P, _P, _I]),
    "adam": (None, [_L, _P, _P, _P, _P, _D, _D, _D, _D, _D, _L]),
    "sum_squares": (c_double, [_L, _P]),
    "axpy": (None, [_L, _F, _P, _P]),
    "mlp_forward": (None, [_P, _P, _I, _P, _P, _I, _I]),
    "mlp_backward": (_I, [_P, _P, _I, _P, *_BACKWARD]),
    "ffn_forward": (None, [_I, _P, _P, _P, _I, _P, _I, _I, _I]),
    "ffn_backward": (_I, [_I, _P, _P, _P, _I, *_BACKWARD]),
    "workspace_floats": (c_size_t, [_I, _I]),
    "peak": (_L, [_L]),
}


class Table(ctypes.Structure):
    """float_kernels of float_kernels.h."""

    _fields_ = (
        ("abi", _I),
        ("width", _I),
        ("isa", c_char_p),
        *((name, ctypes.CFUNCTYPE(result, *given)) for name, (result, given) in FUNCTIONS.items()),
    )


def include() -> Path:
    """The folder of float_kernels.h."""
    return Path(__file__).parent


@cache
def load(path: str | None = None) -> ctypes.CDLL:
    """The library, built with the package, or that at `path`.

    Raises ImportError in one sentence if it was not built.
    """
    if path is None:
        found = [str(p) for p in _candidates() if p.is_file()]
        if not found:
            raise ImportError(f"{NAME} is missing: `make build` or `pip install .` builds it.")
        path = found[0]
    library = ctypes.CDLL(path)
    library.float_kernels_best.restype = POINTER(Table)
    library.float_kernels_usable.restype = POINTER(Table)
    library.float_kernels_usable.argtypes = [c_int32]
    library.float_kernels_over_blas.restype = POINTER(Table)
    library.float_kernels_over_blas.argtypes = [POINTER(Table), c_char_p]
    return library


def _candidates() -> list[Path]:
    """Where the library may be: beside the sources, or in site-packages of an editable install."""
    import float_kernels

    return [Path(folder) / NAME for folder in float_kernels.__path__]


@cache
def best(isa: str | None = None) -> Table:
    """The table of an instruction set, or that which is in use (blas.products).

    Raises ValueError if this processor or this build has none of that name.
    """
    if isa is None:
        from float_kernels.blas import products

        return products().table
    for found in _tables():
        if found.isa == isa.encode():
            return found
    raise ValueError(f"instruction set {isa!r} is none of those usable here: {isas()}")


def fastest() -> Table:
    """The own table of the fastest instruction set, or of that which FLOAT_KERNELS_ISA names."""
    pointer = load().float_kernels_best()
    if not pointer:
        named = os.environ.get("FLOAT_KERNELS_ISA")
        raise ValueError(f"FLOAT_KERNELS_ISA is {named!r}, which is none of those usable: {isas()}")
    if pointer.contents.abi != ABI:
        raise ImportError(f"{NAME} has ABI {pointer.contents.abi}, not {ABI}: `make build` again.")
    found: Table = pointer.contents
    return found


def _tables() -> list[Table]:
    tables: list[Table] = []
    while pointer := load().float_kernels_usable(len(tables)):
        tables.append(pointer.contents)
    return tables


def isas() -> list[str]:
    """Instruction sets that this processor runs, fastest first."""
    return [table.isa.decode() for table in _tables()]


def table(isa: str | None = None) -> int:
    """The address of the table, `const float_kernels*`, for native code."""
    return ctypes.addressof(best(isa))


def isa() -> str:
    """The instruction set that `table()` uses."""
    return str(best().isa.decode())
