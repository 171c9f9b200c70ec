"""The native loader, extensions/nnue_loader, bound by ctypes and compiled once."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from eggroll import native
from eggroll.errors import InputError

FOLDER = Path(__file__).parents[2] / "extensions" / "nnue_loader"
SOURCES = [
    FOLDER / f"{name}.cpp" for name in ("loader", "active_rows", "record", "plain", "binpack")
]
ABI = 2  # NNUE_LOADER_ABI
ERROR_BYTES = 400  # NNUE_ERROR_BYTES


class Lists(ctypes.Structure):
    """nnue_lists."""

    _fields_ = (
        ("active", c_int32), ("starts", c_void_p), ("index", c_void_p), ("counts", c_void_p),
    )  # fmt: skip


class Batch(ctypes.Structure):
    """nnue_batch."""

    _fields_ = (
        ("size", c_int32), ("white", Lists), ("black", Lists), ("stm", c_void_p),
        ("score", c_void_p), ("result", c_void_p),
    )  # fmt: skip


class Settings(ctypes.Structure):
    """nnue_settings."""

    _fields_ = (
        *((name, c_uint64) for name in ("offset", "records", "seed")),
        ("epochs", c_int64),
        *((name, c_int32) for name in ("features", "batch", "threads", "split", "shuffle")),
    )


class Plain(ctypes.Structure):
    """nnue_plain."""

    _fields_ = (
        *((name, c_int64) for name in ("offset", "line", "record", "ply")), ("game", c_uint32),
    )  # fmt: skip


class Binpack(ctypes.Structure):
    """nnue_binpack."""

    _fields_ = (
        *((name, c_int64) for name in ("offset", "chunk_end", "record", "ply")), ("game", c_uint32),
    )  # fmt: skip


# The functions of nnue_loader.h: result, arguments.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "nnue_loader_abi": (c_int32, []),
    "nnue_rows": (c_int32, [c_int32]),
    "nnue_loader_create": (c_void_p, [c_char_p, POINTER(Settings), c_char_p]),
    "nnue_loader_positions": (c_int64, [c_void_p]),
    "nnue_loader_next": (c_int32, [c_void_p, POINTER(POINTER(Batch)), c_char_p]),
    "nnue_loader_destroy": (None, [c_void_p]),
    "nnue_batch_destroy": (None, [POINTER(Batch)]),
    "nnue_check": (c_int64, [c_void_p, c_int64, c_char_p]),
    "nnue_plain_read": (
        c_int64,
        [c_void_p, c_int64, POINTER(Plain), c_void_p, c_int64, c_char_p],
    ),
    "nnue_binpack_read": (
        c_int64,
        [c_void_p, c_int64, POINTER(Binpack), c_void_p, c_int64, c_char_p],
    ),
}


@cache
def library() -> Any:
    """The functions of the library.

    Raises:
        InputError: the sources or a compiler are missing, or the cache cannot be written.
    """
    calls: Any = native.build(*SOURCES, flags=["-pthread"]).handle
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
    if calls.nnue_loader_abi() != ABI:
        raise InputError(
            f"{FOLDER} has ABI {calls.nnue_loader_abi()}, not {ABI}: check it out anew."
        )
    return calls


def error_text() -> Any:
    """Room for a sentence of the library."""
    return ctypes.create_string_buffer(ERROR_BYTES)
