"""Many draws of rng.py's words at a time, by the extension where it is built."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import _extension
from eggroll.errors import InputError
from eggroll.rng import counters

WHOLE = 1 << 32  # the room of all 32-bit numbers


def draws(
    streams: Sequence[int],
    rooms: Sequence[int],
    first: int,
    shape: tuple[int, ...],
    threads: int = 1,
) -> mx.array:
    """Numbers below each stream's room, from the upper halves of its words: int32 [shape].

    The rows are dealt to the streams in equal shares; element i of a stream is from position
    first + i. A stream of room WHOLE has the 32 bits themselves, one of room 0 has zeros.
    threads: 0 takes all cores.
    """
    native = native_module()
    if native is None:
        return mx.array(draws_numpy(streams, rooms, first, shape))
    drawn: mx.array = native.draws(streams, rooms, first, shape, threads)
    return drawn


def draws_numpy(
    streams: Sequence[int], rooms: Sequence[int], first: int, shape: tuple[int, ...]
) -> NDArray[np.int32]:
    """The definition of `draws`, for which the extension takes a fraction of the time."""
    out = np.zeros(shape, np.int32)
    flat = out.reshape(len(streams), out.size // max(len(streams), 1))
    for row, stream, room in zip(flat, streams, rooms, strict=True):
        if room:
            upper = counters(stream, first, len(row)) >> np.uint64(32)
            row[:] = ((upper * np.uint64(room)) >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return out


@cache
def native_module() -> ModuleType | None:
    """The extension; engines other than cpu do without it."""
    try:
        return _extension.load()
    except InputError:
        return None
