"""The evolution strategy: credit, thresholds and updates as pure functions.

Letters: P members, N = P/2 pairs, T tokens, r rank, Z votes (int32, one array per leaf).
Noise is in noise.py, the votes Z themselves are formed by the engines; this page only turns
scores into credit and votes into new weights.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, isqrt, sqrt
from typing import Any, Literal, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from eggroll.fixed_point import LIMIT
from eggroll.program import Leaves

Rule = Literal["sign", "master", "whitened"]

MASTER_BITS = 16  # fraction bits of a master weight below the int8 weight's last bit
HALF = 1 << (MASTER_BITS - 1)
MASTER_LIMIT = (LIMIT << MASTER_BITS) + HALF - 1  # the largest that rounds to LIMIT


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


def _arrays() -> tuple[Any, Callable[[Any], Any]]:
    """The module to compute with, NumPy or MLX, and how it sees an MLX array.

    On a CPU an operation of MLX costs some 20 us however small it is; on a GPU arrays stay there.
    """
    return (np, np.asarray) if mx.default_device() == mx.cpu else (mx, lambda array: array)


class UpdateRule(Protocol):
    """Turns votes into weights; `master` is whatever the rule must remember between updates."""

    def start(self, weights: Leaves) -> Leaves: ...

    def __call__(
        self, weights: Leaves, master: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> Update:
        """decided: pairs whose fitness is not 0; None where pairs have no fitness."""
        ...


def mean_abs(z: Any) -> int:
    """max(1, floor of the mean of |Z|) of a leaf's int64 votes."""
    return max(int(abs(z).sum()) // int(z.size), 1)


class SignRule:
    """The paper's rule: a weight moves by sign(Z) where |Z| passes the z-test's threshold.

    measured: the votes' deviation is not the noise's own but that of the leaf's votes, sqrt(pi / 2)
    times their mean size; so it is with token credit, where no vote means no move. Either way it
    grows with sqrt(N). Pairs that tie add no noise, so once most do, N is the number of the others:
    against all pairs the few that still differ could not pass, and learning would stop short.
    """

    def __init__(
        self, *, alpha: float, decay: int, pairs: int, rank: int, clt: bool, measured: bool = False
    ) -> None:
        self.alpha, self.decay, self.pairs, self.rank, self.clt = alpha, decay, pairs, rank, clt
        self.measured = measured

    def start(self, weights: Leaves) -> Leaves:
        return {}

    def z_q4(self, step: int) -> int:
        return z_threshold_q4(alpha_at(self.alpha, step, self.decay))

    def voters(self, decided: int | None) -> int:
        """N of the threshold: all pairs, or those that decided where these are the fewer half."""
        few = decided is not None and 2 * decided < self.pairs
        return max(decided or 0, 1) if few else self.pairs

    def __call__(
        self, weights: Leaves, master: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> Update:
        xp, view = _arrays()
        new, counts, z_q4 = {}, [], self.z_q4(step)
        for name, leaf in weights.items():
            w, z, rank = view(leaf), view(votes[name]), self.rank if leaf.ndim == 2 else 1
            threshold = vote_threshold(z_q4, self.voters(decided), rank, self.clt)
            if self.measured:  # 321 / 256 = sqrt(pi / 2); 1/16 from z_q4. It may pass 2^31.
                z = z.astype(xp.int64)
                threshold = max(mean_abs(z) * z_q4 * 321 >> 12, 1)
            # Not abs(z): |-2^31| would wrap. Z = 0 at threshold 0 moves down, as the reference.
            up = (z >= max(threshold, 1)) & (w != LIMIT)
            down = (z <= -threshold) & (w != -LIMIT)
            new[name] = mx.array(w + up.astype(xp.int8) - down.astype(xp.int8))
            counts += [up.sum(), down.sum()]
        return Update(new, {}, int(sum(counts)) / sum(w.size for w in weights.values()))


def master_of(weights: Leaves) -> Leaves:
    """Master weights that are the int8 weights exactly, int32."""
    return {k: w.astype(mx.int32) << MASTER_BITS for k, w in weights.items()}


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
        return master_of(weights)

    def gain(self, step: int, rank: int) -> int:
        """lr / sigma_Z in units of 2^-24 master steps."""
        rate = self.rate / (1 + self.decay * step / self.steps)
        deviation_q16 = isqrt(self.pairs * rank << 32) * (256 if self.clt else 1)
        return (round(rate * (1 << 40)) << MASTER_BITS) // deviation_q16

    def __call__(
        self, weights: Leaves, master: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> Update:
        xp, view = _arrays()
        new, copy, moved = {}, {}, []
        for name, m in master.items():
            z, w = view(votes[name]).astype(xp.int64), view(weights[name])
            fine = view(m).astype(xp.int64)
            fine = fine + ((z * self.gain(step, self.rank if z.ndim == 2 else 1)) >> 24)
            fine = xp.clip(fine, -MASTER_LIMIT, MASTER_LIMIT).astype(xp.int32)
            rounded = ((fine + HALF) >> MASTER_BITS).astype(xp.int8)
            moved.append((rounded != w).sum())
            new[name], copy[name] = mx.array(rounded), mx.array(fine)
        return Update(new, copy, int(sum(moved)) / sum(w.size for w in new.values()))
