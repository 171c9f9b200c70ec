"""The operations of the float twin in MLX, whose automatic gradient is theirs.

Values are float32 in real units: an int8 value u stands for u / 16.
Letters: S streams, T rows, K inputs of an operation, n values.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import fixed_point as fx
from eggroll.program import Op, Program, Rows

Leaves = dict[str, mx.array]

ONE = 1 << fx.Q  # 1.0 in Q4
LIMIT = fx.LIMIT / ONE


def clip(v: mx.array) -> mx.array:
    """Clamp to +-127/16; the gradient passes inside and is zero outside."""
    return mx.clip(v, -LIMIT, LIMIT)


class Reading(NamedTuple):
    """Arguments of an operation beside its inputs: tokens int32 [T, S], and rows [T, S, n]."""

    program: Program
    weights: Leaves
    tokens: mx.array
    rows: Rows

    def leaf(self, op: Op) -> mx.array:
        return self.weights[self.program.leaves[op.leaf].name]


def embed(read: Reading, op: Op) -> mx.array:
    return clip(read.leaf(op)[read.tokens])


def linear(read: Reading, op: Op, x: mx.array) -> mx.array:
    return clip(x @ read.leaf(op).T * (1 / isqrt(x.shape[-1])))


def norm(read: Reading, op: Op, x: mx.array) -> mx.array:
    mean = mx.maximum(mx.abs(x).mean(axis=-1, keepdims=True), 1 / ONE)
    return clip(x * read.leaf(op) / mean)


def add(read: Reading, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return clip(a + b)


def add_bias(read: Reading, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return clip(a + b + read.leaf(op))


def lookup(read: Reading, op: Op, x: mx.array) -> mx.array:
    function = TABLES.get(op.table)
    return function(x) if function else through_points(read.program.tables[op.table], x)


def through_points(table: NDArray[np.int8], x: mx.array) -> mx.array:
    """The table's 255 points joined by straight lines; the gradient is the slope to the right."""
    points = mx.array(table.astype(np.float32) / ONE)
    at = x * ONE
    low = mx.stop_gradient(mx.clip(mx.floor(at), -fx.LIMIT, fx.LIMIT - 1))
    left = low.astype(mx.int32) + fx.LIMIT
    return points[left] + (at - low) * (points[left + 1] - points[left])


def share(f: mx.array) -> mx.array:
    """A gate f as a factor: (f + 127) / 256 of the int8 value."""
    return (f + LIMIT) * (ONE / 256)


def forget(read: Reading, op: Op, f: mx.array, s: mx.array) -> mx.array:
    return share(f) * s


def mix(read: Reading, op: Op, f: mx.array, h: mx.array, s: mx.array) -> mx.array:
    return s + share(f) * (h - s)


def score(read: Reading, op: Op, x: mx.array) -> mx.array:
    """Logits in bits, [.., V]; `Twin.bits` makes log-likelihoods of them."""
    return linear(read, op, x)


def show(read: Reading, op: Op) -> mx.array:
    assert read.rows.inputs is not None
    return mx.maximum(read.rows.inputs.astype(mx.float32) / ONE, -LIMIT)


def features(read: Reading, op: Op) -> mx.array:
    (lists, active, first, shift), E = op.numbers, read.leaf(op)
    assert read.rows.features is not None
    index = read.rows.features[..., first : first + lists * active]
    rows = mx.concatenate([E, mx.zeros((1, E.shape[1]))])  # index -1: the last one, nothing
    sums = rows[index.reshape(*index.shape[:2], lists, active)].sum(axis=-2)
    return clip(sums.reshape(*index.shape[:2], lists * E.shape[1]) * 2.0**-shift)


def bias(read: Reading, op: Op, x: mx.array) -> mx.array:
    return clip(x + read.leaf(op))


def relu(read: Reading, op: Op, x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def concat(read: Reading, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return mx.concatenate([a, b], axis=-1)


def output(read: Reading, op: Op, x: mx.array) -> mx.array:
    return x


def sums(read: Reading, op: Op, x: mx.array) -> mx.array:
    return x @ read.leaf(op).T


# What the integer tables of fixed_point.gate_tables round, in real units.
TABLES: dict[str, Callable[[mx.array], mx.array]] = {
    "sigmoid": lambda v: (254 * mx.sigmoid(v) - fx.LIMIT) / ONE,
    "tanh": lambda v: 4 * mx.tanh(v / 4),
}

OPERATIONS: dict[str, Callable[..., mx.array]] = {
    "embed": embed,
    "linear": linear,
    "norm": norm,
    "add": add,
    "add_bias": add_bias,
    "lookup": lookup,
    "forget": forget,
    "mix": mix,
    "score": score,
    "input": show,
    "features": features,
    "bias": bias,
    "relu": relu,
    "concat": concat,
    "output": output,
    "sums": sums,
}
