"""The shared noise table and the slices each pair cuts out of it.

Letters: N pairs, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from eggroll.spec.rng import SLICES, TABLE, draws, key, normal_bytes

KEPT = 1 << 28  # bytes of slices that are kept for the votes and for later updates of an epoch


class Slices(NamedTuple):
    """The noise of some consecutive pairs: what evaluation adds and the votes credit.

    table: int8 [size]; starts: int32 [leaves, pairs], first table index of each slice, which does
    not change once it was given to an engine; rank: r; shift: the right shift Q + sigma_shift of
    every perturbation.
    """

    table: mx.array
    starts: mx.array
    rank: int
    shift: int


def slice_length(shape: tuple[int, ...], rank: int) -> int:
    """Bytes a pair's slice takes: B then A for [out, in], two bytes an element for a vector."""
    return rank * sum(shape) if len(shape) == 2 else 2 * shape[0]


def rooms_of(table: mx.array, shapes: Sequence[tuple[int, ...]], rank: int) -> list[int]:
    """The number of places in a table where a slice of each leaf may begin."""
    return [table.size - slice_length(shape, rank) + 1 for shape in shapes]


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
        self._epoch, self._kept = -1, dict[tuple[int, int], Slices]()
        self._ahead = -1, dict[tuple[int, int], Slices]()  # the same of a later epoch

    def epoch(self, step: int) -> int:
        """The epoch of update `step`: its noise is drawn anew with every epoch."""
        return step // self.reuse if self.reuse else 0

    def slices(self, step: int, first_pair: int, pairs: int, draw: Draw | None = None) -> Slices:
        """The slices of pairs first_pair .. first_pair + pairs - 1 in update `step`.

        Slices stay the same for `reuse` updates; reuse 0 freezes them for ever. draw: an engine's
        way to draw them; None draws them here by one thread.
        """
        if self._epoch != self.epoch(step):
            self._epoch, (ahead, drawn_ahead) = self.epoch(step), self._ahead
            self._kept = drawn_ahead if ahead == self._epoch else {}
        # Evaluation and votes of one update ask for the same chunks.
        if (first_pair, pairs) not in self._kept:
            drawn = self._drawn(self._epoch, first_pair, pairs, draw)
            room = KEPT - drawn.starts.nbytes
            # The last goes first, as an update asks for its chunks from the first on.
            while self._kept and sum(kept.starts.nbytes for kept in self._kept.values()) > room:
                self._kept.popitem()
            self._kept[first_pair, pairs] = drawn
        return self._kept[first_pair, pairs]

    def draw_ahead(self, step: int, first_pair: int, pairs: int, draw: Draw | None = None) -> None:
        """Draws the slices that a later update will ask for first, unless they are there."""
        epoch = self.epoch(step)
        if epoch != self._epoch and self._ahead[0] != epoch:
            drawn = self._drawn(epoch, first_pair, pairs, draw)
            self._ahead = epoch, {(first_pair, pairs): drawn}

    def forget(self) -> None:
        """Lets all slices be drawn again, as those of an engine that fails may be wrong."""
        self._epoch, self._kept, self._ahead = -1, {}, (-1, {})

    def _drawn(self, epoch: int, first_pair: int, pairs: int, draw: Draw | None) -> Slices:
        starts = (draw or Noise.starts)(self, epoch, first_pair, pairs)
        return Slices(self.table, starts, self.rank, self.shift)

    def starts(self, epoch: int, first_pair: int, pairs: int, threads: int = 1) -> mx.array:
        """First table index of every leaf's slice in an epoch, int32 [leaves, pairs].

        threads: that draw them, 0 takes all cores.
        """
        common = self.stream(epoch)
        streams = [key(leaf, after=common) for leaf in range(len(self.shapes))]
        return draws(streams, self.rooms, first_pair, (len(self.shapes), pairs), threads)

    def stream(self, epoch: int) -> int:
        """The key that those of all leaves follow in an epoch."""
        return key(self.seed, SLICES, epoch)

    @property
    def rooms(self) -> list[int]:
        """`rooms_of` its leaves."""
        return rooms_of(self.table, self.shapes, self.rank)


# (noise, epoch, first pair, pairs) -> `Noise.starts` of them.
Draw = Callable[[Noise, int, int, int], mx.array]
