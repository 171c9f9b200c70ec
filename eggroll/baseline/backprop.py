"""Back-propagation: the options of eggroll.adamw and one update of its weights.

Gradients go back through the T tokens of an update; the state is carried on to the next one, as in
eggroll.train. Letters: S streams, T tokens per update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.baseline.adam import AdamW
from eggroll.baseline.float_numpy import twin_for
from eggroll.baseline.float_twin import ONE, Twin, by_token, real
from eggroll.checkpoint import Arrays
from eggroll.cli import Range
from eggroll.config import Common
from eggroll.errors import InputError
from eggroll.help import Group
from eggroll.networks import initial_weights
from eggroll.program import Program


@dataclass(frozen=True)
class Options(Common):
    """Options of a run of the baseline; those that eggroll.train has mean the same here."""

    streams: Annotated[int, Group.GRADIENTS, Range(1, 1 << 20)] = 128
    """Streams read side by side: the batch."""
    learning_rate: Annotated[float, Group.GRADIENTS, Range(0, 64, above=True)] = 0.1
    """Highest learning rate; initial weights are N(0, 1)."""
    warmup: Annotated[float, Group.GRADIENTS, Range(0, 1)] = 0.02
    """Share of the updates in which the learning rate rises to it."""
    decay: Annotated[Literal["cosine", "linear", "none"], Group.GRADIENTS] = "cosine"
    """Shape of the learning rate's fall over the other updates."""
    floor: Annotated[float, Group.GRADIENTS, Range(0, 1)] = 0.01
    """Share of the highest learning rate that is left at the end."""
    weight_decay: Annotated[float, Group.GRADIENTS, Range(0, 64)] = 0.01
    """Decay of matrices per update, times the learning rate."""
    beta1: Annotated[float, Group.GRADIENTS, Range(0, 0.99999)] = 0.9
    """AdamW's beta1: how much of the gradient's mean an update keeps."""
    beta2: Annotated[float, Group.GRADIENTS, Range(0, 0.99999)] = 0.95
    """AdamW's beta2: how much of the mean of the gradient's square an update keeps."""
    clip_norm: Annotated[float, Group.GRADIENTS, Range(0, 10**6)] = 1.0
    """Largest norm of the gradient of all leaves together; 0 never shortens it."""

    def check(self) -> None:
        super().check()
        self.check_memory(self.memory(self.program()), ("width", "layers", "streams", "seq_len"))

    def memory(self, program: Program) -> int:
        """A low estimate of the bytes a run takes at its height."""
        weights = sum(math.prod(leaf.shape) for leaf in program.leaves)
        values = sum(sum(stage.registers) for stage in program.stages) + program.vocabulary
        return 4 * (4 * weights + self.streams * self.seq_len * values)

    def rate(self, step: int) -> float:
        """The learning rate of update `step` (0, 1, ...): rises, then falls to its floor."""
        warm = self.warmup * self.steps
        if step + 1 < warm:
            return self.learning_rate * (step + 1) / warm
        progress = min((step + 1 - warm) / max(self.steps - warm, 1), 1)
        left = {
            "cosine": (1 + math.cos(math.pi * progress)) / 2,
            "linear": 1 - progress,
            "none": 1.0,
        }[self.decay]
        return self.learning_rate * (self.floor + (1 - self.floor) * left)


class Trainer:
    """Weights, AdamW's memory and the recurrent state, and one update of all three.

    weights: float32 leaves in declared order, of any size, where int8 ends at +-127/16; state:
    float32 [S, state_size]; step: updates done. A run repeats bit for bit on one machine with equal
    threads, not across machines: these are floats.
    """

    def __init__(self, options: Options, twin: Twin) -> None:
        self.options, self.twin, self.step = options, twin, 0
        self.weights = real(initial_weights(twin.program, options.seed))
        self.state = mx.zeros((options.streams, twin.program.state_size))
        betas = options.beta1, options.beta2
        self.optimizer = AdamW(self.weights, betas, options.weight_decay)

    def update(self, tokens: NDArray[np.int32], targets: NDArray[np.int32]) -> float:
        """Makes one update from tokens and targets, int32 [S, T]; returns bits per token before."""
        loss, self.state, gradient = self.twin.gradient(
            self.weights, by_token(tokens), by_token(targets), self.state
        )
        rate = self.options.rate(self.step)
        self.weights = self.optimizer.update(self.weights, gradient, rate, self.options.clip_norm)
        self.step += 1
        mx.eval(loss, self.weights, self.state, self.optimizer.state)
        return float(np.array(loss))

    def arrays(self) -> Arrays:
        """All that changes, float32: weights/ by leaf, state, and AdamW's memory, m/ and v/."""
        out = {"state": np.array(self.state)}
        out |= {f"weights/{name}": np.array(w) for name, w in self.weights.items()}
        return out | self.optimizer.arrays()

    def restore(self, arrays: Mapping[str, Any], step: int, source: str) -> None:
        """Goes back to what `arrays` gave after `step` updates.

        Raises:
            InputError: the arrays do not fit the network.
        """
        needed = {name: a.shape for name, a in self.arrays().items()}
        found = {name: a.shape for name, a in arrays.items() if a.dtype == np.float32}
        for name in sorted(needed.keys() | arrays.keys()):
            if needed.get(name) != found.get(name):
                raise InputError(
                    f"{source} has {found.get(name, 'no float32 array')} as {name!r} where its "
                    f"options need {needed.get(name, 'none')}: it is not from this version of the "
                    "network, so start a new run."
                )
        self.step, self.state = step, mx.array(arrays["state"])
        self.weights = {name: mx.array(arrays[f"weights/{name}"]) for name in self.weights}
        self.optimizer.restore(arrays, step)


def gradient(
    program: Program,
    weights: Mapping[str, Any],
    tokens: NDArray[Any],
    targets: NDArray[Any],
    state: Any,
) -> dict[str, NDArray[Any]]:
    """The true gradient of the twin's loss, bits per token, at given int8 weights.

    weights: int8 leaves by name, Q4; tokens, targets: int32 [S, T]; state: int8 [S, state_size],
    Q4. Returns float32 leaves: the slope of the loss for a weight's last bit (1/16). Evolution's
    votes estimate its opposite, as they are for a higher likelihood.
    """
    start = real({"state": state})["state"]
    batch = by_token(tokens), by_token(targets)
    leaves = twin_for(program).gradient(real(weights), batch[0], batch[1], start)[2]
    return {name: np.array(g) / np.float32(ONE) for name, g in leaves.items()}
