"""The shared noise table and the slices each pair cuts out of it.

Letters: N pairs, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.rng import SLICES, TABLE, counters, key, normal_bytes


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
        self.table = mx.array(normal_bytes(key(seed, TABLE), 1 << table_bits))
        self._last: tuple[tuple[int, int, int], Slices] | None = None

    def epoch(self, step: int) -> int:
        """The epoch of update `step`: its noise is drawn anew with every epoch."""
        return step // self.reuse if self.reuse else 0

    def slices(self, step: int, first_pair: int, pairs: int) -> Slices:
        """The slices of pairs first_pair .. first_pair + pairs - 1 in update `step`.

        Slices stay the same for `reuse` updates; reuse 0 freezes them for ever.
        """
        epoch = self.epoch(step)
        # Evaluation and votes of one update ask for the same.
        if self._last and self._last[0] == (epoch, first_pair, pairs):
            return self._last[1]
        starts = np.empty((len(self.shapes), pairs), np.int32)
        for i, shape in enumerate(self.shapes):
            words = counters(key(self.seed, SLICES, epoch, i), first_pair, pairs) >> np.uint64(32)
            room = np.uint64(self.table.size - slice_length(shape, self.rank) + 1)
            starts[i] = (words * room) >> np.uint64(32)
        slices = Slices(self.table, mx.array(starts), self.rank, self.shift)
        self._last = (epoch, first_pair, pairs), slices
        return slices
