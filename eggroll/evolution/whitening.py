"""Whitening: makes a matrix's votes equally large in every direction of its inputs.

The noise of votes lies along the inputs that occurred, and these are far from isotropic: of 64
directions one has 60 times the mean power, a dozen next to none. A step that the large ones just
bear is far too short for the others. So votes u [O, K] become y = u P with P = R^-1/2, R the mean
of u'u, as in one-sided Shampoo (arXiv 1802.09568). P is learnt without a root: while y is not yet
white, P becomes M P M with M = 1 - (y'y + P P / 10 - 1) / 128; that is never negative, whatever y.

Inputs are taken in blocks of at most 64, so the cost grows as the width times 64. All numbers are
integers; they are held in float64, where sums and products below 2^53 are exact, and so is a
quotient of two such once rounded to an integer, as NumPy is fast with floats only. Where the
extension is built, it does the same (rules_isa.h).

Letters: O outputs and K inputs of a matrix; a vector is one row, an embedding has one per token.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eggroll.spec.program import Program

Whole = NDArray[np.float64]  # integers below 2^53

BLOCK = 64  # inputs that are whitened together
ONE = 1 << 16  # P is Q16
EVERY = 4  # updates between two steps of learning P
TOP = (1 << 15) - 1  # of a vote in Q8: 128 times the mean
LIMIT_P, LIMIT_X = (1 << 19) - 1, 1 << 22  # 8 and 64 in Q16; P ends below sqrt(10)


def shape(inputs: int) -> tuple[int, int, int]:
    """Of P: a symmetric matrix for each block of inputs, of which the last may have fewer."""
    blocks = -(-inputs // BLOCK)
    size = -(-inputs // blocks)
    return blocks, size, size


def start(inputs: int) -> NDArray[np.int32]:
    """P at the start, the identity: int32 [blocks, size, size] in Q16."""
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


def whitened(u: Whole, p: NDArray[np.int32]) -> Whole:
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


def updated(p: NDArray[np.int32], power: Whole, mean: float) -> NDArray[np.int32]:
    """The next P. power: y'y, of the function `power`; mean: mean of the diagonal of u'u, in Q8.

    With a mean of 0 there was nothing to learn from.
    """
    if mean < 1:
        return p
    before = p.astype(np.float64)
    excess = np.floor(power / (mean / 256)) + np.floor(np.rint(before @ before / ONE) / 10)
    identity = ONE * np.eye(p.shape[1])
    m = identity - np.floor((np.clip(excess, -LIMIT_X, LIMIT_X) - identity) / 128)
    new = np.rint(np.rint(m @ before / ONE) @ m / ONE)
    new = np.clip(np.floor((new + new.swapaxes(1, 2)) / 2), -LIMIT_P, LIMIT_P)
    after: NDArray[np.int32] = new.astype(np.int32)
    return after


def impossible(p: NDArray[np.int32]) -> str:
    """Names what P, int32 [blocks, size, size], can never have; empty if all is possible."""
    if (p != p.swapaxes(1, 2)).any():
        return "is not symmetric"
    beyond = max(int(p.max()), -int(p.min())) > LIMIT_P
    return f"is not within -{LIMIT_P} and {LIMIT_P}" if beyond else ""


def whitenable(program: Program) -> list[str]:
    """Leaves whose rows have inputs in common: all matrices but embeddings and features."""
    rows = ("embed", "features")
    lookups = {op.leaf for stage in program.stages for op in stage.ops if op.kind in rows}
    leaves = enumerate(program.leaves)
    return [leaf.name for i, leaf in leaves if len(leaf.shape) == 2 and i not in lookups]
