"""The operations of the float twin in NumPy, each with its gradient by hand.

Values are float in real units: an int8 value u stands for u / 16; float32 in runs, and whatever the
leaves are elsewhere.
Letters: S streams, T rows, D width, K inputs of an operation, n values, R rows of a list.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll import fixed_point as fx
from eggroll.baseline.operations_mlx import LIMIT, ONE

Array = NDArray[Any]

GATHERED = 1 << 16  # rows of a leaf of features that are added at once


class Operation(NamedTuple):
    """An operation's value and gradient; w is its leaf (divided already where it is linear).

    forward(w, *inputs) -> y;
    back(g, y, w, *inputs) -> h, the gradient before the clip, and that of every input;
    leaf(h, *inputs) -> the leaf's gradient from all tokens, None where there is no leaf.
    What embed, input and features read are their inputs, which have no gradient.
    """

    forward: Callable[..., Array]
    back: Callable[..., tuple[Array, tuple[Array, ...]]]
    leaf: Callable[..., Array] | None = None


def clip(v: Array) -> Array:
    """Clamps v, a fresh array, in place."""
    return np.clip(v, -LIMIT, LIMIT, out=v)


def inside(g: Array, y: Array) -> Array:
    """The gradient before a clip whose result is y."""
    out: Array = np.abs(y)
    np.less(out, LIMIT, out=out)
    out *= g
    return out


def rows(v: Array) -> Array:
    return v.reshape(-1, v.shape[-1])


def linear_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h = inside(g, y)
    return h, (h @ w,)


def linear_leaf(h: Array, x: Array) -> Array:
    return product(h, x) * np.float32(1 / isqrt(x.shape[-1]))


def product(h: Array, x: Array) -> Array:
    out: Array = rows(h).T @ rows(x)
    return out


def halves(g: Array, y: Array, w: Array, a: Array, b: Array) -> tuple[Array, tuple[Array, ...]]:
    size = a.shape[-1]
    return g, (g[..., :size], g[..., size:])


def mean_size(x: Array) -> tuple[Array, Array]:
    """A norm's divisor, and whether it depends on x."""
    mean = np.abs(x).mean(axis=-1, keepdims=True)
    return np.maximum(mean, np.float32(1 / ONE)), mean > 1 / ONE


def norm_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h, (mean, free) = inside(g, y), mean_size(x)
    dr = h * w
    along = (dr * x).sum(axis=-1, keepdims=True) * free / (mean * x.shape[-1])
    return h, ((dr - np.sign(x) * along) / mean,)


def norm_leaf(h: Array, x: Array) -> Array:
    out: Array = rows(h * (x / mean_size(x)[0])).sum(axis=0)
    return out


def bias_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h = inside(g, y)
    return h, (h,)


def total(h: Array, *inputs: Array) -> Array:
    out: Array = rows(h).sum(axis=0)
    return out


def sum_back(g: Array, y: Array, w: Array, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    h = inside(g, y)
    return h, (h, h)


def share(f: Array) -> Array:
    return (f + np.float32(LIMIT)) * np.float32(ONE / 256)


def forget_back(
    g: Array, y: Array, w: Array, f: Array, s: Array
) -> tuple[Array, tuple[Array, ...]]:
    return g, (g * s * np.float32(ONE / 256), g * share(f))


def mix(w: Array, f: Array, h: Array, s: Array) -> Array:
    out: Array = s + share(f) * (h - s)
    return out


def mix_back(
    g: Array, y: Array, w: Array, f: Array, h: Array, s: Array
) -> tuple[Array, tuple[Array, ...]]:
    dh = g * share(f)
    return g, (g * (h - s) * np.float32(ONE / 256), dh, g - dh)


def embed_leaf(h: Array, tokens: Array, vocabulary: int) -> Array:
    """Sums the rows of h [T, S, D] that belong to one token, for every token."""
    flat, out = tokens.reshape(-1), np.zeros((vocabulary, h.shape[-1]), h.dtype)
    by_token = np.argsort(flat, kind="stable")
    seen, first = np.unique(flat[by_token], return_index=True)
    out[seen] = np.add.reduceat(rows(h)[by_token], first, axis=0)
    return out


def read_back(g: Array, y: Array, w: Array, *read: Any) -> tuple[Array, tuple[Array, ...]]:
    return inside(g, y), ()


def features(E: Array, index: Array, scale: Any) -> Array:
    """index: int32 [T, S, lists, active], -1 for none; scale: 2^-shift."""
    extended = np.concatenate([E, np.zeros((1, E.shape[1]), E.dtype)])  # index -1: nothing
    sums = np.zeros((*index.shape[:3], E.shape[1]), E.dtype)
    for i in range(index.shape[3]):  # all at once would take `active` times the memory
        sums += extended[index[..., i]]
    sums *= scale
    return clip(sums.reshape(*index.shape[:2], -1))


def features_leaf(h: Array, index: Array, scale: Any, count: int) -> Array:
    """The gradient of a leaf [count, D], block of rows by block."""
    lists, active = index.shape[2:]
    parts, flat = h.reshape(-1, h.shape[-1] // lists) * scale, index.reshape(-1, active)
    out, block = np.zeros((count, parts.shape[1]), h.dtype), max(1, GATHERED // active)
    for start in range(0, len(flat), block):
        some = flat[start : start + block]
        row, column = np.nonzero(some >= 0)
        if len(row):
            active_rows = some[row, column]
            order = np.argsort(active_rows, kind="stable")
            seen, first = np.unique(active_rows[order], return_index=True)
            out[seen] += np.add.reduceat(parts[start + row[order]], first, axis=0)
    return out


def through_points(table: NDArray[np.int8]) -> Operation:
    """A table's 255 points joined by straight lines; the gradient is the slope to the right."""
    points = table.astype(np.float32) / np.float32(ONE)

    steps = np.diff(points)

    def left(v: Array) -> Array:
        out: Array = np.clip(np.floor(v * ONE), -fx.LIMIT, fx.LIMIT - 1)
        return out

    def forward(w: Array, v: Array) -> Array:
        low = left(v)
        i = low.astype(np.int32) + fx.LIMIT
        out: Array = points[i] + (v * ONE - low) * steps[i]
        return out

    def back(g: Array, y: Array, w: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
        return g, (g * steps[left(v).astype(np.int32) + fx.LIMIT] * ONE,)

    return Operation(forward, back)


LINEAR = Operation(lambda w, x: clip(x @ w.T), linear_back, linear_leaf)

OPERATIONS: dict[str, Operation] = {
    "embed": Operation(lambda w, tokens, V: clip(w[tokens]), read_back, embed_leaf),
    "linear": LINEAR,
    "score": LINEAR,
    "norm": Operation(lambda w, x: clip(x * w / mean_size(x)[0]), norm_back, norm_leaf),
    "add": Operation(lambda w, a, b: clip(a + b), sum_back),
    "add_bias": Operation(lambda w, a, b: clip(a + b + w), sum_back, total),
    "forget": Operation(lambda w, f, s: share(f) * s, forget_back),
    "mix": Operation(mix, mix_back),
    "input": Operation(lambda w, shown: shown, read_back),
    "features": Operation(
        lambda w, index, scale, count: features(w, index, scale), read_back, features_leaf
    ),
    "bias": Operation(lambda w, x: clip(x + w), bias_back, total),
    "relu": Operation(lambda w, x: np.maximum(x, 0), lambda g, y, w, x: (g, (g * (y > 0),))),
    "concat": Operation(lambda w, a, b: np.concatenate([a, b], axis=-1), halves),
    "output": Operation(lambda w, x: x, lambda g, y, w, x: (g, (g,))),
    "sums": Operation(lambda w, x: x @ w.T, lambda g, y, w, x: (g, (g @ w,)), product),
}

# The tables that fixed_point.gate_tables rounds; any other is `through_points`.
LOOKUPS: dict[str, Operation] = {
    "sigmoid": Operation(
        lambda w, v: (254 / (1 + np.exp(-v)) - fx.LIMIT) / ONE,
        lambda g, y, w, v: (g, (g * (y + LIMIT) * (254 / ONE - LIMIT - y) * (ONE / 254),)),
    ),
    "tanh": Operation(
        lambda w, v: 4 * np.tanh(v / 4),
        lambda g, y, w, v: (g, (g * (1 - np.square(y / 4)),)),
    ),
}
