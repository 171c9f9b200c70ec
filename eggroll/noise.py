"""The shared noise table and the slices each pair cuts out of it.

Letters: N pairs, r rank. Everything is counter-based integer arithmetic (SplitMix64 finalizer,
Steele et al. 2014), so a seed gives the same bytes on every machine and library version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.fixed_point import normal_quantiles

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer, elementwise: a bijection of 64-bit words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key(*words: int) -> int:
    """Hashes integers (seed, purpose, index ...) to a 64-bit stream key."""
    h = 0
    for word in words:
        h = int(mix(np.array([(h ^ (word & _MASK)) + _GOLDEN & _MASK], np.uint64))[0])
    return h


def counters(stream: int, first: int, count: int) -> NDArray[np.uint64]:
    """`count` pseudo-random 64-bit words of a stream, from position `first` on."""
    index = np.arange(first, first + count, dtype=np.uint64)
    return mix(np.uint64(stream) + index * np.uint64(_GOLDEN))


def normal_bytes(stream: int, count: int) -> NDArray[np.int8]:
    """int8 [count] normal values of standard deviation 16; a prefix of every longer draw."""
    words = counters(stream, 0, -(-count // 4)).astype("<u8", copy=False)
    return normal_quantiles()[words.view("<u2")[:count]]


class Slices(NamedTuple):
    """The noise of some consecutive pairs: what evaluation adds and the votes credit.

    table: int8 [size]; starts: int32 [leaves, pairs], first table index of each slice;
    rank: r; shift: the right shift Q + sigma_shift of every perturbation.
    """

    table: mx.array
    starts: mx.array
    rank: int
    shift: int


def slice_length(shape: tuple[int, ...], rank: int) -> int:
    """Bytes a pair's slice takes: B then A for [out, in], two bytes an element for a vector."""
    return rank * sum(shape) if len(shape) == 2 else 2 * shape[0]


class Noise:
    """Shared noise: a table of `1 << table_bits` normal bytes, and (epoch, leaf, pair) -> slice.

    `shapes` are those of the leaves in declared order; a leaf's index there names it in the hash.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        *,
        seed: int,
        rank: int,
        shift: int,
        reuse: int = 1,
        table_bits: int = 24,
    ) -> None:
        self.shapes, self.seed, self.rank, self.shift, self.reuse = shapes, seed, rank, shift, reuse
        self.table = mx.array(normal_bytes(key(seed, 1), 1 << table_bits))

    def slices(self, epoch: int, first_pair: int, pairs: int) -> Slices:
        """The slices of pairs first_pair .. first_pair + pairs - 1 in update `epoch`.

        Slices stay the same for `reuse` updates; reuse 0 freezes them for ever.
        """
        epoch = epoch // self.reuse if self.reuse else 0
        starts = np.empty((len(self.shapes), pairs), np.int32)
        for i, shape in enumerate(self.shapes):
            words = counters(key(self.seed, 2, epoch, i), first_pair, pairs) >> np.uint64(32)
            room = np.uint64(self.table.size - slice_length(shape, self.rank) + 1)
            starts[i] = (words * room) >> np.uint64(32)
        return Slices(self.table, mx.array(starts), self.rank, self.shift)
