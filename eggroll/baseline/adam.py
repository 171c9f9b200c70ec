"""AdamW over the leaves of a network, by mlx.optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from numpy.typing import NDArray

from eggroll.baseline.operations_mlx import Leaves

KINDS = {"matrices": 2, "vectors": 1}  # and their dimensions


class AdamW:
    """AdamW's memory of float32 leaves; weight_decay is of matrices alone.

    All matrices are one array there, and all vectors another, as many small operations would cost
    more.
    """

    def __init__(self, weights: Leaves, betas: tuple[float, float], weight_decay: float) -> None:
        names = {k: [n for n, w in weights.items() if w.ndim == d] for k, d in KINDS.items()}
        self.names = {kind: of_kind for kind, of_kind in names.items() if of_kind}
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
            optimizer.init({kind: self._joined(weights, kind)})

    def _joined(self, leaves: Leaves, kind: str) -> mx.array:
        return mx.concatenate([leaves[name].reshape(-1) for name in self.names[kind]])

    def _parted(self, joined: mx.array, kind: str, weights: Leaves) -> Leaves:
        old = [weights[name] for name in self.names[kind]]
        ends = np.cumsum([w.size for w in old]).tolist()
        parts = zip(self.names[kind], old, mx.split(joined, ends[:-1]), strict=True)
        return {name: part.reshape(w.shape) for name, w, part in parts}

    def update(self, weights: Leaves, gradient: Leaves, rate: float, clip_norm: float) -> Leaves:
        """The weights after one update; a gradient longer than clip_norm is shortened to it.

        rate: the learning rate; clip_norm: 0 never shortens.
        """
        slopes = {kind: self._joined(gradient, kind) for kind in self.names}
        if clip_norm:
            clip: Any = optim.clip_grad_norm  # ships no types
            slopes, _ = clip(slopes, clip_norm)
        moved: Leaves = {}
        for kind, optimizer in self.optimizers.items():
            optimizer.learning_rate = rate
            before = {kind: self._joined(weights, kind)}
            after = optimizer.apply_gradients({kind: slopes[kind]}, before)
            moved |= self._parted(after[kind], kind, weights)
        return {name: moved[name] for name in weights}

    @property
    def state(self) -> list[Any]:
        """All that MLX computes for it, to be evaluated with the weights."""
        return [optimizer.state for optimizer in self.optimizers.values()]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The memory, float32: m/ and v/ by kind."""
        return {
            f"{part}/{kind}": np.array(optimizer.state[kind][part])
            for kind, optimizer in self.optimizers.items()
            for part in ("m", "v")
        }

    def restore(self, arrays: Mapping[str, Any], step: int) -> None:
        """Goes back to what `arrays` gave after `step` updates."""
        for kind, optimizer in self.optimizers.items():
            optimizer.state[kind] = {p: mx.array(arrays[f"{p}/{kind}"]) for p in ("m", "v")}
            optimizer.state["step"] = mx.array(step, mx.uint64)
