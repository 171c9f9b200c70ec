"""Back-propagation: the options of eggroll.adamw, one update of its weights, and its checkpoints.

Gradients go back through the T tokens of an update; the state is carried on to the next one, as in
eggroll.train. Letters: S streams, T tokens per update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from numpy.typing import NDArray

from eggroll.baseline.twin import ONE, Twin, by_token, dequantise
from eggroll.baseline.twin_numpy import twin_for
from eggroll.cli.command import Range
from eggroll.cli.help import Group
from eggroll.errors import InputError
from eggroll.networks import initial_weights
from eggroll.spec.program import Batch, Leaves, Program
from eggroll.training import checkpoint
from eggroll.training.checkpoint import Arrays
from eggroll.training.config import Common, options_of

FORMAT = "eggroll-adamw"  # of checkpoints
DIMENSIONS = {"matrices": 2, "vectors": 1}  # of kinds of leaves


@dataclass(frozen=True)
class AdamwOptions(Common):
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
        share = {
            "cosine": (1 + math.cos(math.pi * progress)) / 2,
            "linear": 1 - progress,
            "none": 1.0,
        }[self.decay]
        return self.learning_rate * (self.floor + (1 - self.floor) * share)


class AdamwTrainer:
    """Weights, AdamW's memory and the recurrent state, and one update of all three.

    weights: float32 leaves in declared order, of any size, where int8 ends at +-127/16; state:
    float32 [S, state_size]; step: updates done. A run repeats bit for bit on one machine with equal
    threads, not across machines: these are floats.
    """

    def __init__(self, options: AdamwOptions, twin: Twin) -> None:
        self.options, self.twin, self.step = options, twin, 0
        self.weights = dequantise(initial_weights(twin.program, options.seed))
        self.state = mx.zeros((options.streams, twin.program.state_size))
        betas = options.beta1, options.beta2
        self.optimizer = AdamW(self.weights, betas, options.weight_decay)

    def update(self, batch: Batch) -> float:
        """Makes one update from tokens and targets, int32 [S, T]; returns bits per token before."""
        loss, self.state, gradient = self.twin.gradient(
            self.weights, by_token(batch._replace(state=self.state))
        )
        rate = self.options.rate(self.step)
        self.weights = self.optimizer.update(self.weights, gradient, rate, self.options.clip_norm)
        self.step += 1
        mx.eval(loss, self.weights, self.state, self.optimizer.state)
        return float(np.array(loss))

    def arrays(self) -> Arrays:
        """All that changes, float32: weights/ by leaf, state, and AdamW's memory, m/ and v/."""
        arrays = {"state": np.array(self.state)}
        arrays |= {f"weights/{name}": np.array(w) for name, w in self.weights.items()}
        return arrays | self.optimizer.arrays()

    def restore(self, arrays: Mapping[str, Any], step: int, source: str) -> None:
        """Goes back to what `arrays` gave after `step` updates.

        Raises:
            InputError: the arrays do not fit the network.
        """
        needed = {name: a.shape for name, a in self.arrays().items()}
        shapes = {name: a.shape for name, a in arrays.items() if a.dtype == np.float32}
        for name in sorted(needed.keys() | arrays.keys()):
            if needed.get(name) != shapes.get(name):
                raise InputError(
                    f"{source} has {shapes.get(name, 'no float32 array')} as {name!r} where its "
                    f"options need {needed.get(name, 'none')}: it is not from this version of the "
                    "network, so start a new run."
                )
        self.step, self.state = step, mx.array(arrays["state"])
        self.weights = {name: mx.array(arrays[f"weights/{name}"]) for name in self.weights}
        self.optimizer.restore(arrays, step)


class AdamW:
    """AdamW with its memory for float32 leaves; weight_decay is of matrices alone.

    All matrices are one array there, and all vectors another, as many small operations would cost
    more.
    """

    def __init__(self, weights: Leaves, betas: tuple[float, float], weight_decay: float) -> None:
        names = {k: [n for n, w in weights.items() if w.ndim == d] for k, d in DIMENSIONS.items()}
        self.names = {kind: names_of_kind for kind, names_of_kind in names.items() if names_of_kind}
        self.optimizers = {
            kind: optim.AdamW(
                0.0,
                betas=list(betas),
                weight_decay=weight_decay if kind == "matrices" else 0.0,
                bias_correction=True,
            )
            for kind in self.names
        }
        for kind, optimizer in self.optimizers.items():
            optimizer.init({kind: self._join(weights, kind)})

    def update(self, weights: Leaves, gradient: Leaves, rate: float, clip_norm: float) -> Leaves:
        """The weights after one update; a gradient longer than clip_norm is shortened to it.

        rate: the learning rate; clip_norm: 0 never shortens.
        """
        gradients = {kind: self._join(gradient, kind) for kind in self.names}
        if clip_norm:
            clip: Any = optim.clip_grad_norm  # ships no types
            gradients, _ = clip(gradients, clip_norm)
        new: Leaves = {}
        for kind, optimizer in self.optimizers.items():
            optimizer.learning_rate = rate
            old = {kind: self._join(weights, kind)}
            stepped = optimizer.apply_gradients({kind: gradients[kind]}, old)
            new |= self._split(stepped[kind], kind, weights)
        return {name: new[name] for name in weights}

    @property
    def state(self) -> list[Any]:
        """The arrays that MLX computes for it, to be evaluated with the weights."""
        return [optimizer.state for optimizer in self.optimizers.values()]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The memory, float32: moments m/ and v/ by kind."""
        return {
            f"{moment}/{kind}": np.array(optimizer.state[kind][moment])
            for kind, optimizer in self.optimizers.items()
            for moment in ("m", "v")
        }

    def restore(self, arrays: Mapping[str, Any], step: int) -> None:
        """Goes back to what `arrays` gave after `step` updates."""
        for kind, optimizer in self.optimizers.items():
            optimizer.state[kind] = {p: mx.array(arrays[f"{p}/{kind}"]) for p in ("m", "v")}
            optimizer.state["step"] = mx.array(step, mx.uint64)

    def _join(self, leaves: Leaves, kind: str) -> mx.array:
        return mx.concatenate([leaves[name].reshape(-1) for name in self.names[kind]])

    def _split(self, joined: mx.array, kind: str, weights: Leaves) -> Leaves:
        leaves = [weights[name] for name in self.names[kind]]
        ends = np.cumsum([w.size for w in leaves]).tolist()
        split = zip(self.names[kind], leaves, mx.split(joined, ends[:-1]), strict=True)
        return {name: leaf.reshape(w.shape) for name, w, leaf in split}


def gradient(program: Program, weights: Mapping[str, Any], batch: Batch) -> dict[str, NDArray[Any]]:
    """The true gradient of the twin's loss, bits per token, at given int8 weights.

    weights: int8 leaves by name, Q4; batch: of S streams. Returns float32 leaves: the slope of the
    loss for a weight's last bit (1/16). Evolution's votes estimate its opposite, as they are for a
    higher likelihood.
    """
    state = dequantise({"state": batch.state})["state"]
    read_run = by_token(batch._replace(state=state))
    leaves = twin_for(program).gradient(dequantise(weights), read_run)[2]
    return {name: np.array(g) / np.float32(ONE) for name, g in leaves.items()}


# Runs, read from their checkpoints.


def read_run(path: Path) -> tuple[AdamwOptions, int, Any, Arrays]:
    """Options, updates made, facts of the data and tensors of a run's checkpoint.

    Raises:
        InputError: it cannot be read, or is of another network.
    """
    metadata, arrays = checkpoint.read(path, FORMAT)
    config = options_of(
        AdamwOptions, checkpoint.json_of(metadata, "config", path), f"checkpoint {str(path)!r}"
    )
    config.check()
    checkpoint.check_network(metadata, config, path)
    step = checkpoint.step_of(metadata, config.steps, path)
    return config, step, checkpoint.json_of(metadata, "corpus", path), arrays


def load_run(path: Path, threads: int) -> tuple[AdamwOptions, Any, TwinReader, Leaves]:
    """Options, facts of the data, twin and weights of a checkpoint; threads: 0 is all cores.

    Raises:
        InputError: it cannot be read, or is of another network.
    """
    options, step, facts, arrays = read_run(path)
    trainer = AdamwTrainer(options, twin_for(options.program(), threads))
    trainer.restore(arrays, step, f"checkpoint {str(path)!r}")
    return options, facts, TwinReader(trainer.twin), trainer.weights


class TwinReader:
    """The twin as `inference.sample` takes an engine: logits rounded to Q4, int8 [P, V]."""

    def __init__(self, twin: Twin) -> None:
        self.twin, self.program = twin, twin.program
        self.description = twin.description

    def prepare(self, weights: Leaves) -> Leaves:
        return weights

    def logits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        batch_in_float = batch._replace(state=batch.state.astype(mx.float32))
        logits, after = self.twin.logits(weights, by_token(batch_in_float))
        return mx.round(logits[0] * ONE).astype(mx.int8), after
