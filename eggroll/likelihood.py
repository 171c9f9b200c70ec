"""The exact loss of the unperturbed model, from integers. Letters: S streams, T tokens."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines import Engine, zero_state
from eggroll.fixed_point import total_bits
from eggroll.program import Weights


def model_loss(
    engine: Engine,
    weights: Weights,
    batches: Iterable[tuple[NDArray[np.int32], NDArray[np.int32]]],
    warmup: int = 0,
) -> float:
    """Exact cross-entropy of the unperturbed model, in bits per token, from its int8 logits.

    batches: (tokens, targets), each int32 [S, T]. The state begins at zero and is carried from
    batch to batch; the first `warmup` predictions of every stream are not scored.
    """
    prepared, state, count = engine.prepare(weights), None, 0
    bits: list[float] = []
    for i, (tokens, targets) in enumerate(batches):
        if state is None:
            state = zero_state(engine.program, len(tokens))
        given = mx.array(tokens), mx.array(targets)
        totals, hits, state = engine.likelihoods(prepared, *given, state)
        mx.eval(totals, hits, state)
        first = warmup if i == 0 else 0
        bits.append(total_bits(np.array(totals)[:, first:], np.array(hits)[:, first:]))
        count += len(tokens) * (tokens.shape[1] - first)
    return fsum(bits) / count
