"""Runs of eggroll.adamw, read from their checkpoints: options, tensors, and the twin to sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx

from eggroll import checkpoint
from eggroll.baseline.backprop import Options, Trainer
from eggroll.baseline.float_numpy import twin_for
from eggroll.baseline.float_twin import ONE, Leaves, Twin
from eggroll.checkpoint import Arrays
from eggroll.options import options_of

FORMAT = "eggroll-adamw"  # of checkpoints


class Reader:
    """The twin as `sampling.sample` takes an engine: logits rounded to Q4, int8 [P, V]."""

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


def read(path: Path) -> tuple[Options, int, Any, Arrays]:
    """Options, updates made, facts of the data and tensors of a run's checkpoint.

    Raises:
        InputError: it cannot be read, or is of another network.
    """
    metadata, arrays = checkpoint.read(path, FORMAT)
    config = options_of(
        Options, checkpoint.json_of(metadata, "config", path), f"checkpoint {str(path)!r}"
    )
    config.check()
    checkpoint.check_network(metadata, config, path)
    step = checkpoint.step_of(metadata, config.steps, path)
    return config, step, checkpoint.json_of(metadata, "corpus", path), arrays


def load(path: Path, threads: int) -> tuple[Options, Any, Reader, Leaves]:
    """Options, facts of the data, twin and weights of a checkpoint; threads: 0 is all cores.

    Raises:
        InputError: it cannot be read, or is of another network.
    """
    options, step, facts, arrays = read(path)
    trainer = Trainer(options, twin_for(options.program(), threads))
    trainer.restore(arrays, step, f"checkpoint {str(path)!r}")
    return options, facts, Reader(trainer.twin), trainer.weights
