"""Random bytes from counters: the same for a seed on every machine and library version.

All in integers (SplitMix64's finalizer, Steele et al. 2014); a draw is a prefix of any longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eggroll import _extension
from eggroll.errors import InputError
from eggroll.spec.fixed_point import normal_quantiles

if TYPE_CHECKING:
    import mlx.core as mx

# What a stream of words is for: the second word of its key, so that no two purposes share one.
TABLE, SLICES, WEIGHTS, SAMPLES, COUNT, SIGNS, DRAWS, CALLER, FEEDBACK, PROJECTION = range(1, 11)
BLOCK = 1 << 18  # bytes drawn at a time, a multiple of the four of a word
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(*words: int, after: int = 0) -> int:
    """Hashes integers of any size and sign (seed, purpose, index ...) to a 64-bit stream key.

    after: the key of the words before these: key(a, b) == key(b, after=key(a)).
    """
    h = after
    for word in words:
        h = _mix_one((h ^ (word & _MASK)) + _GOLDEN & _MASK)
    return h


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer, elementwise: a bijection of 64-bit words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FACTORS[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return z ^ (z >> np.uint64(31))


def _mix_one(z: int) -> int:
    """`mix` of one word; an update makes dozens of keys, and arrays of one are slow."""
    z = (z ^ (z >> 30)) * _FACTORS[0] & _MASK
    z = (z ^ (z >> 27)) * _FACTORS[1] & _MASK
    return z ^ (z >> 31)


def counters(stream: int, first: int, count: int) -> NDArray[np.uint64]:
    """`count` pseudo-random 64-bit words of a stream, from position `first` on."""
    return words(stream, np.arange(first, first + count, dtype=np.uint64))


def words(stream: int, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The pseudo-random 64-bit words of a stream at these positions."""
    return mix(np.uint64(stream) + index * np.uint64(_GOLDEN))


def normal_bytes(stream: int, count: int) -> NDArray[np.int8]:
    """int8 [count] normal values of standard deviation 16; a prefix of every longer draw."""
    out = np.empty(count, np.int8)
    quantiles = normal_quantiles()
    for first in range(0, count, BLOCK):  # bounds the memory of the words
        part = out[first : first + BLOCK]
        words = counters(stream, first // 4, -(-len(part) // 4)).astype("<u8", copy=False)
        part[:] = quantiles[words.view("<u2")[: len(part)]]
    return out


def random_matrix(stream: int, shape: tuple[int, ...]) -> mx.array:
    """Int8 round(16 N(0, 1)) of this shape, from a stream of py."""
    import mlx.core as mx

    return mx.array(normal_bytes(stream, int(np.prod(shape))).reshape(shape))


WHOLE = 1 << 32  # the room of all 32-bit numbers


def draws(
    streams: Sequence[int],
    rooms: Sequence[int],
    first: int,
    shape: tuple[int, ...],
    threads: int = 1,
    *,
    unsigned: bool = False,
) -> mx.array:
    """Numbers below each stream's room, from the upper halves of its words: int32 [shape].

    The rows are dealt to the streams in equal shares; element i of a stream is from position
    first + i. A stream of room WHOLE has the 32 bits themselves, one of room 0 has zeros.
    threads: 0 takes all cores; unsigned: the same bits as uint32.
    """
    native = native_module()
    if native is None:
        import mlx.core as mx

        found = draws_numpy(streams, rooms, first, shape)
        return mx.array(found.view(np.uint32) if unsigned else found)
    drawn: mx.array = native.draws(streams, rooms, first, shape, threads, unsigned)
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
