"""The evolution strategy: credit, thresholds and updates as pure functions.

Letters: P members, N = P/2 pairs, T tokens, r rank, Z votes (int32, one array per leaf).
Noise is in noise.py, the votes Z themselves are formed by the engines; this page only turns
scores into credit and votes into new weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erfc, isqrt, sqrt
from typing import Literal, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from eggroll.fixed_point import LIMIT

Rule = Literal["sign", "master"]
Leaves = dict[str, mx.array]

MASTER_BITS = 16  # fraction bits of a master weight below the int8 weight's last bit


def pair_fitness(scores: mx.array) -> mx.array:
    """Token scores [P, T] (1/16 bit) -> int8 [N]: sign of member 2i's total minus member 2i+1's."""
    total = scores.astype(mx.int32).sum(axis=1)
    return mx.sign(total[0::2] - total[1::2]).astype(mx.int8)


def alpha_at(alpha: float, step: int, decay: int) -> float:
    """Share of weights a pure-noise vote would move: alpha, or for alpha > 1 a falling schedule."""
    return alpha if alpha <= 1 else 1 / ((2**alpha - 1) * step / decay + 1)


def z_threshold_q4(alpha: float) -> int:
    """floor(16 * PHI^-1(1 - alpha/2)): the two-sided z-test's threshold in sixteenths of sigma."""
    q = 0
    while erfc((q + 1) / 16 / sqrt(2)) >= alpha:
        q += 1
    return q


def vote_threshold(z_q4: int, pairs: int, rank: int, clt: bool) -> int:
    """The least |Z| that moves a weight: |Z| >= z_q4/16 * floor(sqrt N) * (256 | 1) * sqrt(r).

    Exact in integers. 256 = 16 * 16 is the deviation of one product of two noise bytes; without
    CLT the votes are of signs. Vector leaves have rank 1 whatever r is.
    """
    bound = (z_q4 * isqrt(pairs) * (256 if clt else 1)) ** 2 * rank  # (16 |Z|)^2 must reach this
    root = isqrt(bound)
    return -(-(root + (root * root < bound)) // 16)


class Update(NamedTuple):
    """New int8 weights, new master weights (empty for the sign rule), and the share that moved."""

    weights: Leaves
    master: Leaves
    rate: float


def _moved(old: Mapping[str, mx.array], new: Leaves) -> float:
    changed = mx.stack([mx.sum(old[k] != new[k]) for k in new]).sum()
    return float(np.array(changed)) / sum(v.size for v in new.values())


class UpdateRule(Protocol):
    """Turns votes into weights; `master` is whatever the rule must remember between updates."""

    def start(self, weights: Leaves) -> Leaves: ...

    def __call__(self, weights: Leaves, master: Leaves, votes: Leaves, step: int) -> Update: ...


class SignRule:
    """The paper's rule: a weight moves by sign(Z) where |Z| passes the z-test's threshold."""

    def __init__(self, *, alpha: float, decay: int, pairs: int, rank: int, clt: bool) -> None:
        self.alpha, self.decay, self.pairs, self.rank, self.clt = alpha, decay, pairs, rank, clt

    def start(self, weights: Leaves) -> Leaves:
        return {}

    def z_q4(self, step: int) -> int:
        return z_threshold_q4(alpha_at(self.alpha, step, self.decay))

    def __call__(self, weights: Leaves, master: Leaves, votes: Leaves, step: int) -> Update:
        new, counts, z_q4 = {}, [], self.z_q4(step)
        for name, w in weights.items():
            z, rank = votes[name], self.rank if w.ndim == 2 else 1
            threshold = vote_threshold(z_q4, self.pairs, rank, self.clt)
            # Not mx.abs(z): |-2^31| would wrap. Z = 0 at threshold 0 moves down, as the reference.
            up = (z >= max(threshold, 1)) & (w != LIMIT)
            down = (z <= -threshold) & (w != -LIMIT)
            new[name] = w + up.astype(mx.int8) - down.astype(mx.int8)
            counts += [up.sum(), down.sum()]
        size = sum(w.size for w in weights.values())
        return Update(new, {}, int(np.array(mx.stack(counts).sum())) / size)


class MasterRule:
    """Votes add up in a fixed-point master copy; the int8 weight is its rounding.

    master (int32, Q20) += lr * Z / (sigma_Z), sigma_Z = (256 | 1) * sqrt(N r), so a vote of one
    standard deviation moves a weight by lr of its last bit. lr falls as 1 / (1 + decay * progress)
    over the run. Integers throughout: every machine takes the same steps.
    """

    def __init__(
        self, *, rate: float, decay: float, steps: int, pairs: int, rank: int, clt: bool
    ) -> None:
        self.rate, self.decay, self.steps = rate, decay, steps
        self.pairs, self.rank, self.clt = pairs, rank, clt

    def start(self, weights: Leaves) -> Leaves:
        return {k: w.astype(mx.int32) << MASTER_BITS for k, w in weights.items()}

    def gain(self, step: int, rank: int) -> int:
        """lr / sigma_Z in units of 2^-24 master steps."""
        rate = self.rate / (1 + self.decay * step / self.steps)
        deviation_q16 = isqrt(self.pairs * rank << 32) * (256 if self.clt else 1)
        return (round(rate * (1 << 40)) << MASTER_BITS) // deviation_q16

    def __call__(self, weights: Leaves, master: Leaves, votes: Leaves, step: int) -> Update:
        new, copy = {}, {}
        bound = (LIMIT << MASTER_BITS) + (1 << (MASTER_BITS - 1)) - 1
        for name, m in master.items():
            gain = self.gain(step, self.rank if m.ndim == 2 else 1)
            delta = (votes[name].astype(mx.int64) * gain) >> 24
            copy[name] = mx.clip(m.astype(mx.int64) + delta, -bound, bound).astype(mx.int32)
            half = 1 << (MASTER_BITS - 1)
            new[name] = ((copy[name] + half) >> MASTER_BITS).astype(mx.int8)
        return Update(new, copy, _moved(weights, new))
