"""A run of eggroll.adamw as a model that `generate.sample` can draw from.

Letters: P samples drawn side by side, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx

from eggroll import checkpoint, config
from eggroll.baseline.backprop import Options, Trainer
from eggroll.baseline.float_numpy import twin_for
from eggroll.baseline.float_twin import ONE, Leaves, Twin

FORMAT = "eggroll-adamw"  # of checkpoints


class Reader:
    """The float twin in the place of an engine: logits rounded to Q4, int8 [P, V]."""

    def __init__(self, twin: Twin) -> None:
        self.twin, self.program = twin, twin.program

    def prepare(self, weights: Leaves) -> Leaves:
        return weights

    def logits(
        self, weights: Leaves, tokens: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        logits, after = self.twin.logits(weights, tokens[None], state.astype(mx.float32))
        return mx.round(logits[0] * ONE).astype(mx.int8), after


def load(path: Path, threads: int) -> tuple[Options, Reader, Leaves]:
    """The options, the twin and the weights of a checkpoint; threads: 0 is all cores.

    Raises:
        InputError: it is missing, unreadable, damaged, or of another network.
    """
    metadata, arrays = checkpoint.read(path, FORMAT)
    source = f"checkpoint {str(path)!r}"
    options = config.options_of(Options, json.loads(metadata["config"]), source)
    trainer = Trainer(options, twin_for(options.program(), threads))
    trainer.restore(arrays, int(metadata["step"]), source)
    return options, Reader(trainer.twin), trainer.weights
