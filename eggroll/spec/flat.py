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
    """Leaves that are parts of one flat array, one after the other in flat_order.

    A leaf may be replaced, and is not to be changed in place: its array is not that of the whole.
    """

    def __init__(self, whole: mx.array, shapes: Shapes) -> None:
        self.order = order = flat_order(shapes)
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


def whole_of(leaves: Mapping[str, mx.array], shapes: Shapes) -> mx.array:
    """Leaves as one flat array, in the flat_order of these shapes."""
    order = flat_order(shapes)
    if isinstance(leaves, FlatLeaves) and leaves.order == order:
        whole = leaves.whole
        if whole is not None:
            return whole
    return mx.concatenate([leaves[name].reshape(-1) for name in order])


def added(total: Leaves, part: Leaves) -> Leaves:
    """Votes of some pairs added to those of the pairs before them, if there were any."""
    if not total:
        return part
    if isinstance(total, FlatLeaves) and isinstance(part, FlatLeaves):
        shapes = shapes_of(part)
        return FlatLeaves(whole_of(total, shapes) + whole_of(part, shapes), shapes)
    return {name: total[name] + z for name, z in part.items()}
