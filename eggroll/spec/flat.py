"""Leaves that lie one after the other in one array, so that a GPU handles all of them at once.

An operation costs the host of a GPU some 10 us, and a network has dozens of leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod

import mlx.core as mx

from eggroll.spec.program import Leaves

Shapes = Mapping[str, tuple[int, ...]]  # of leaves, in declared order


class FlatLeaves(Leaves):
    """Leaves that are parts of one flat array, one after the other in flat_order."""

    def __init__(self, whole: mx.array, shapes: Shapes) -> None:
        order = flat_order(shapes)
        ends = list(accumulate(prod(shapes[name]) for name in order))
        self._whole, self._parts = whole, dict(zip(order, mx.split(whole, ends[:-1]), strict=True))
        for name, shape in shapes.items():
            self._parts[name] = self._parts[name].reshape(shape)
        super().__init__({name: self._parts[name] for name in shapes})

    @property
    def whole(self) -> mx.array | None:
        """The flat array; None once a leaf was replaced."""
        same = len(self) == len(self._parts)
        same = same and all(self.get(name) is part for name, part in self._parts.items())
        return self._whole if same else None


def flat_order(shapes: Shapes) -> list[str]:
    """The names of leaves, matrices first, as their votes are counted apart."""
    return sorted(shapes, key=lambda name: len(shapes[name]) != 2)


def shapes_of(leaves: Mapping[str, mx.array]) -> Shapes:
    return {name: leaf.shape for name, leaf in leaves.items()}


def whole_of(leaves: Mapping[str, mx.array]) -> mx.array:
    """Leaves as one flat array, in flat_order."""
    if isinstance(leaves, FlatLeaves) and (whole := leaves.whole) is not None:
        return whole
    order = flat_order(shapes_of(leaves))
    return mx.concatenate([leaves[name].reshape(-1) for name in order])


def added(total: Leaves, part: Leaves) -> Leaves:
    """Votes of some pairs added to those of the pairs before them, if there were any."""
    if not total:
        return part
    if isinstance(total, FlatLeaves) and isinstance(part, FlatLeaves):
        return FlatLeaves(whole_of(total) + whole_of(part), shapes_of(part))
    return {name: total[name] + z for name, z in part.items()}
