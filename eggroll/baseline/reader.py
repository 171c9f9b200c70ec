"""The float twin in the place of an engine, where samples are drawn."""

from __future__ import annotations

import mlx.core as mx

from eggroll.baseline.float_twin import ONE, Leaves, Twin


class Reader:
    """The twin as `generate.sample` takes an engine: logits rounded to Q4, int8 [P, V]."""

    def __init__(self, twin: Twin) -> None:
        self.twin, self.program = twin, twin.program
        self.description = twin.description

    def prepare(self, weights: Leaves) -> Leaves:
        return weights

    def logits(
        self, weights: Leaves, tokens: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        logits, after = self.twin.logits(weights, tokens[None], state.astype(mx.float32))
        return mx.round(logits[0] * ONE).astype(mx.int8), after
