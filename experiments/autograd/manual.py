"""The networks' steps without a tape: the same calls in the same order, on buffers made once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.autograd.buffers import Workspace
from experiments.autograd.kernels import Gelu, Gradients, Kernels, Parts, TwoLayers, words


class ManualMlp:
    """Linear, ReLU, linear, cross-entropy, SGD: forward(), backward(), descend() in turn."""

    def __init__(
        self, kernels: Kernels, x: NDArray, labels: NDArray, layers: list[NDArray],
        mask: str = "output", workspace: Workspace | None = None,
    ) -> None:  # fmt: skip
        place = (workspace or Workspace()).place
        rows, hidden, outputs = len(x), len(layers[0]), len(layers[2])

        def make(*shape: int, dtype: type = np.float32) -> NDArray:
            return place(shape, dtype)

        self.kernels, self.labels = kernels, labels
        self.weights = [make(*w.shape) for w in layers]
        for own, given in zip(self.weights, layers, strict=True):
            own[...] = given
        self.net = TwoLayers(x, *self.weights)
        self.out = Gradients(*(make(*w.shape) for w in layers), None)
        self.a1, self.logits = make(rows, hidden), make(rows, outputs)
        self.bits = make(rows, words(hidden), dtype=np.uint32) if mask == "bits" else None
        self.slopes = make(rows, outputs)
        self.room = make(kernels.workspace_floats(rows, hidden))

    def forward(self) -> float:
        self.kernels.mlp_forward(self.net, self.a1, self.bits, self.logits)
        return self.kernels.cross_entropy(self.logits, self.labels, self.slopes)

    def backward(self, parts: Parts | None = None) -> None:
        self.kernels.mlp_backward(
            self.net, self.a1, self.bits, self.slopes, self.out, self.room, parts
        )

    def descend(self, rate: float) -> None:
        for w, g in zip(self.weights, self.out, strict=False):
            if g is not None:
                self.kernels.descend(w, g, rate)


class ManualFfn:
    """Linear, GELU, linear: forward(), then backward() from dy."""

    def __init__(
        self, kernels: Kernels, kind: Gelu, x: NDArray, layers: list[NDArray], slope: bool
    ) -> None:
        place = Workspace().place
        rows, hidden = len(x), len(layers[0])
        self.kernels, self.kind, self.slope = kernels, kind, slope
        self.net = TwoLayers(x, *layers)
        self.out = Gradients(*(place(array.shape, np.float32) for array in (*layers, x)))
        self.pre, self.act = (place((rows, hidden), np.float32) for _ in range(2))
        self.y = place((rows, len(layers[2])), np.float32)
        self.room = place((kernels.workspace_floats(rows, hidden),), np.float32)

    def forward(self) -> None:
        self.kernels.ffn_forward(self.kind, self.net, self.pre, self.act, self.y, self.slope)

    def backward(self, dy: NDArray) -> None:
        self.kernels.ffn_backward(
            self.kind, self.net, self.pre, self.act, dy, self.out, self.room, self.slope
        )
