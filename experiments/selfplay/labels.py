"""Errors of the policy and the value, in integers: what outputs lack of visits and results.

An error is 127 for a probability that is off by one, as in docs/estimators.md. Letters: B
positions, A actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.spec.fixed_point import exp2_table
from eggroll.spec.losses import mix32

ERROR = 127
FRACTION = 16  # bits below the point of a share before chance rounds it
WHOLE = 1 << 15  # a value of 1.0

Ints = NDArray[np.int64]


def value_units(values: NDArray[Any]) -> Ints:
    """Values as whole 32,768ths, held within [-1, 1]; a result of -1, 0 or 1 is exact."""
    return np.clip(np.rint(values.astype(np.float64) * WHOLE), -WHOLE, WHOLE).astype(np.int64)


def policy_errors(
    logits: NDArray[np.int8],
    visits: NDArray[Any],
    legal: NDArray[np.bool_],
    words: NDArray[np.uint32],
) -> NDArray[np.int8]:
    """127 (share of the visits - probability), int8 [B, A], rounded by chance; 0 where not legal.

    logits: in 1/16 bit; visits: whole numbers [B, A]; words: random, uint32 [B, A]. A position
    without visits has no error.
    """
    powers = np.where(legal, exp2_table()[logits.astype(np.int64) + 128], 0).astype(np.int64)
    counts = np.where(legal, visits, 0).astype(np.int64)
    taken = counts.sum(axis=1, keepdims=True)
    lacking = shares(counts, taken) - shares(powers, powers.sum(axis=1, keepdims=True))
    found = (lacking + (words >> np.uint32(16)).astype(np.int64)) >> FRACTION
    return np.where(legal & (taken > 0), found, 0).astype(np.int8)


def value_errors(
    value: NDArray[np.int8], units: Ints, words: NDArray[np.uint32]
) -> NDArray[np.int8]:
    """127 (wanted - found chance to win), int8 [B, 1]; a value v is a chance of (1 + v) / 2.

    value: the log-odds in 1/16 bit, int8 [B, 1]; units: of `value_units`, [B]; words: random,
    uint32 [B, 1].
    """
    table = exp2_table()
    win = table[value.astype(np.int64) + 128].astype(np.int64)
    wanted = (WHOLE + units)[:, None] * ERROR
    lacking = wanted - shares(win, win + table[128])
    found: NDArray[np.int8] = (
        (lacking + (words >> np.uint32(16)).astype(np.int64)) >> FRACTION
    ).astype(np.int8)
    return found


def shares(parts: Ints, whole: Ints) -> Ints:
    """127 parts / whole with FRACTION bits below the point, rounded down; 0 of an empty whole."""
    return (ERROR << FRACTION) * parts // np.maximum(whole, 1)


def chance(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint32]:
    """Random words uint32 [B, count] of a position's key."""
    low = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    return mix32(low + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9))


def visit_shares(visits: NDArray[Any], legal: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Shares of the visits [..., A]; 0 where there are none."""
    counts = np.where(legal, visits, 0).astype(np.float64)
    return counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)


def log_likelihood(
    logits: NDArray[Any],
    value: NDArray[Any],
    visits: NDArray[Any],
    units: Ints,
    legal: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bits by which a position's visits and its result are expected, two arrays [..., B]: never
    above 0, larger is better.

    logits [..., B, A] and value, the log-odds, [..., B, 1] in bits.
    """
    u = np.where(legal, logits.astype(np.float64), -np.inf)
    most = u.max(axis=-1, keepdims=True)
    lost = np.log2(np.exp2(u - most).sum(axis=-1)) + most[..., 0]
    wanted = visit_shares(visits, legal)
    of_policy = (wanted * np.where(legal, u, 0)).sum(axis=-1) - lost * wanted.sum(axis=-1)
    v, chance_to_win = value[..., 0].astype(np.float64), (WHOLE + units) / (2 * WHOLE)
    of_value = -chance_to_win * np.log2(1 + np.exp2(-v)) - (1 - chance_to_win) * np.log2(
        1 + np.exp2(v)
    )
    return of_policy, of_value
