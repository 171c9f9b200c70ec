"""Rule whitened: matrices' votes turned until they are equally loud in every direction.

A vote's noise lies along the inputs that were seen, and these are far from round: of 64 directions
one has 60 times the mean power, a dozen next to none. A step that the loud ones just bear is far
too short for the others. So votes u [O, K] become y = u P with P = R^-1/2, R the mean of u'u, as
in one-sided Shampoo (arXiv 1802.09568). P is learnt without a root: while y is not yet round, P
becomes M P M with M = 1 - (y'y + P P / 10 - 1) / 128; that is never negative, whatever y.

Inputs are taken in blocks of at most 64, so the cost grows as the width times 64. All numbers are
integers; they are held in float64, where sums and products below 2^53 are exact, and so is a
quotient of two such once rounded to an integer, as NumPy is fast with floats only.

Letters: O outputs and K inputs of a matrix; a vector is one row, an embedding has one per token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import sqrt
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.program import Leaves, Program
from eggroll.rules import HALF, MASTER_BITS, MASTER_LIMIT, Update, master_of

Whole = NDArray[np.float64]  # integers below 2^53

BLOCK = 64  # inputs that are made round together
ONE = 1 << 16  # P is Q16
EVERY = 4  # updates between two looks at how round the votes are
TOP = (1 << 15) - 1  # of a vote in Q8: 128 times the mean
PART = 1 << 16  # votes handled at a time, so that they stay in the cache
LIMIT_P, LIMIT_X = (1 << 19) - 1, 1 << 22  # 8 and 64 in Q16; P ends below sqrt(10)


def shape(inputs: int) -> tuple[int, int, int]:
    """Of P: a symmetric matrix for each block of inputs, of which the last may have fewer."""
    blocks = -(-inputs // BLOCK)
    size = -(-inputs // blocks)
    return blocks, size, size


def start(inputs: int) -> NDArray[np.int32]:
    """P at the start, where nothing is turned: int32 [blocks, size, size] in Q16."""
    blocks, size, _ = shape(inputs)
    return np.tile(ONE * np.eye(size, dtype=np.int32), (blocks, 1, 1))


def _tiles(votes: Whole, size: int) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
    """(block of inputs, inputs in it, where) of the tiles of votes [O, K], at most 64 x 64 each.

    Products of these a BLAS library computes on the calling thread; for larger ones it wakes
    threads of its own, which then spin beside those of the engine.
    """
    outputs, inputs = votes.shape
    for block, first in enumerate(range(0, inputs, size)):
        columns = slice(first, min(first + size, inputs))
        for row in range(0, outputs, BLOCK):
            yield block, columns.stop - first, (slice(row, row + BLOCK), columns)


def turned(u: Whole, p: NDArray[np.int32]) -> Whole:
    """y = u P, [O, K] in Q8, within TOP as u is."""
    y, squares = np.empty_like(u), p / ONE
    for block, count, tile in _tiles(u, p.shape[1]):
        np.matmul(u[tile], squares[block, :count, :count], out=y[tile])
    return np.clip(np.rint(y, out=y), -TOP, TOP, out=y)


def power(y: Whole, size: int) -> Whole:
    """y'y of every block of `size` inputs, [blocks, size, size] in Q16, of votes y [O, K] in Q8."""
    total = np.zeros((-(-y.shape[1] // size), size, size))
    for block, count, tile in _tiles(y, size):
        total[block, :count, :count] += y[tile].T @ y[tile]
    return total


def learnt(p: NDArray[np.int32], seen: Whole, mean: float) -> NDArray[np.int32]:
    """The next P. seen: y'y as `power` has it; mean: what u'u has on its diagonal in the mean, Q8.

    With a mean of 0 there was nothing to learn from.
    """
    if mean < 1:
        return p
    before = p.astype(np.float64)
    excess = np.floor(seen / (mean / 256)) + np.floor(np.rint(before @ before / ONE) / 10)
    identity = ONE * np.eye(p.shape[1])
    m = identity - np.floor((np.clip(excess, -LIMIT_X, LIMIT_X) - identity) / 128)
    new = np.rint(np.rint(m @ before / ONE) @ m / ONE)
    new = np.clip(np.floor((new + new.swapaxes(1, 2)) / 2), -LIMIT_P, LIMIT_P)
    after: NDArray[np.int32] = new.astype(np.int32)
    return after


def turnable(program: Program) -> list[str]:
    """Leaves whose rows have inputs in common: all matrices but embeddings."""
    lookups = {op.leaf for stage in program.stages for op in stage.ops if op.kind == "embed"}
    leaves = enumerate(program.leaves)
    return [leaf.name for i, leaf in leaves if len(leaf.shape) == 2 and i not in lookups]


def memory(program: Program) -> dict[str, tuple[int, ...]]:
    """What the rule keeps between updates, int32: fine copies of all leaves, and every P."""
    shapes: dict[str, tuple[int, ...]] = {leaf.name: leaf.shape for leaf in program.leaves}
    return shapes | {_turn(name): shape(shapes[name][1]) for name in turnable(program)}


class WhitenedRule:
    """As the master rule, but matrices' votes are whitened and every row has a scale of its own.

    A row is the weights of one output, or of one token in an embedding; a vector is one row. So a
    rare token's row moves as far per vote as a frequent one's: the mean vote moves a weight by lr
    of its last bit, an eighth of that in a vector. Whitening turns a row and leaves its mean
    size. lr rises over 20 updates and falls linearly with progress, to a twentieth; its
    size is rate * sqrt(200 / steps), as noise adds up with the root of the number of updates.
    floors: the least mean size that is taken for a signal, per leaf, so that what is learnt is not
    undone by the few pairs that still differ; turned: the matrices whose votes are whitened.
    """

    def __init__(
        self, *, rate: float, steps: int, floors: Mapping[str, int], turned: Collection[str]
    ) -> None:
        self.rate, self.steps, self.floors, self.turned = rate, steps, floors, turned

    def start(self, weights: Leaves) -> Leaves:
        turns = {_turn(k): mx.array(start(weights[k].shape[1])) for k in self.turned}
        return master_of(weights) | turns

    def gain(self, step: int) -> int:
        """lr in units of 2^-8 master steps; at most 64 bits of a weight."""
        falling = 1 - 0.95 * min(step / self.steps, 1)
        rate = self.rate * sqrt(200 / self.steps) * falling * min(1, (step + 1) / 20)
        return round(min(rate, 64) * (1 << (MASTER_BITS + 8)))

    def __call__(
        self, weights: Leaves, master: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> Update:
        new, kept, moved, look = {}, {}, 0, step % EVERY == 0
        full = self.gain(step)
        for name, leaf in weights.items():
            w, fine = np.array(leaf), np.array(master[name])
            p = np.asarray(master[_turn(name)]) if name in self.turned else None
            gain, floor = full >> (3 if w.ndim == 1 else 0), self.floors.get(name, 1)
            inputs, seen, mean = w.shape[-1], np.zeros(1), 0.0
            whole = [array.reshape(-1, inputs) for array in (w, fine, np.asarray(votes[name]))]
            count = max(1, PART // inputs)
            for first in range(0, len(whole[0]), count):
                w_rows, fine_rows, z = (array[first : first + count] for array in whole)
                u, size = _scaled(z, floor)
                if p is None:
                    change = u * (gain / ONE)
                else:
                    y = turned(u, p)
                    if look:
                        seen, mean = seen + power(y, p.shape[1]), mean + (u * u).sum()
                    change = y * _share(y, size, gain)
                moved += _move(w_rows, fine_rows, np.rint(change, out=change))
            new[name], kept[name] = mx.array(w), mx.array(fine)
            if p is not None:
                p = learnt(p, seen, mean // (256 * inputs)) if look else p
                kept[_turn(name)] = mx.array(p)
        return Update(new, kept, moved / sum(w.size for w in weights.values()))


def _scaled(z: Any, floor: int) -> tuple[Whole, Whole]:
    """Votes int32 [O, K] over the mean size of their row, if that is not below the floor, in Q8.

    And the size that they then have in the mean, [O, 1].
    """
    u = z.astype(np.float64)
    mean = np.ceil(abs(u).sum(axis=1, keepdims=True) / z.shape[1])
    scale = np.maximum(mean, floor)
    np.rint(np.divide(u, scale / 256, out=u), out=u)  # floors would add up to a drift
    return np.clip(u, -TOP, TOP, out=u), np.floor(256 * mean / scale)


def _share(y: Whole, size: Whole, gain: int) -> Whole:
    """What y is multiplied by to be of that mean size and then by the gain, [O, 1] in Q16."""
    total = np.maximum(abs(y).sum(axis=1, keepdims=True), 1)
    share: Whole = np.floor(gain * y.shape[1] * size / total) / ONE  # gain * K * size < 2^53
    return share


def _move(w: Any, fine: Any, step: Whole) -> int:
    """Moves fine int32 by a step and w int8 to its rounding, in place; how many of w moved."""
    step += fine
    fine[:] = np.clip(step, -MASTER_LIMIT, MASTER_LIMIT, out=step)
    rounded = (fine + HALF) >> MASTER_BITS
    moved = int(np.count_nonzero(rounded != w))
    w[:] = rounded
    return moved


def _turn(leaf: str) -> str:
    """What the whitening of a leaf is called among a rule's memory."""
    return f"{leaf}/whitening"
