"""Fitness: token scores of members -> one sign per pair.

Letters: P members, N = P/2 pairs, T tokens.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np


def pair_fitness(scores: mx.array) -> mx.array:
    """Token scores [P, T] -> int8 [N]: sign of member 2i's total minus member 2i+1's."""
    total = scores.astype(mx.int32).sum(axis=1)
    return mx.sign(total[0::2] - total[1::2]).astype(mx.int8)


def decided(fitness: mx.array) -> int:
    """Pairs that did not tie, of fitness int8 [N]."""
    return int(np.count_nonzero(np.asarray(fitness)))
