"""The networks that are compared: an MLP with ReLU and a feed-forward block with GELU."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from eggroll.errors import InputError
from experiments.autograd import fused, nodes
from experiments.autograd.kernels import Gelu
from experiments.autograd.tape import Tape, Tensor

PATHS = ("plain", "linear+relu", "two-layer")


def initial(
    inputs: int, hidden: int, outputs: int, seed: int = 0, dtype: DTypeLike = np.float32
) -> list[NDArray]:
    """w1 [H, I], b1 [H], w2 [O, H], b2 [O]: uniform within 1 / sqrt(inputs of the layer)."""
    draws = np.random.default_rng(seed)
    found: list[NDArray] = []
    for rows, columns in ((hidden, inputs), (outputs, hidden)):
        bound = columns**-0.5
        found += [
            draws.uniform(-bound, bound, shape).astype(dtype)
            for shape in ((rows, columns), (rows,))
        ]
    return found


def mlp(
    tape: Tape, x: Tensor, layers: list[Tensor], path: str = "two-layer", mask: str = "output",
    reuse: str | None = None,
) -> Tensor:  # fmt: skip
    """Logits of linear, ReLU, linear, by plain nodes, or with the first two or all three fused."""
    if path not in PATHS:
        raise InputError(f"{path} is no path of the MLP: choose {', '.join(PATHS)}.")
    w1, b1, w2, b2 = layers
    if path == "two-layer":
        return fused.two_layer(tape, x, layers, mask)
    if path == "linear+relu":
        hidden = fused.linear_relu(tape, x, w1, b1, mask, "layer1")
    else:
        hidden = nodes.relu(tape, nodes.linear(tape, x, w1, b1, "layer1"), mask, reuse)
    return nodes.linear(tape, hidden, w2, b2, "layer2")


def ffn(
    tape: Tape, x: Tensor, layers: list[Tensor], kind: Gelu, fuse: bool, slope: bool = True
) -> Tensor:
    """Linear, GELU, linear, by plain nodes or fused."""
    if fuse:
        return fused.ffn(tape, x, layers, kind, slope)
    w1, b1, w2, b2 = layers
    hidden = nodes.gelu(tape, nodes.linear(tape, x, w1, b1, "layer1"), kind)
    return nodes.linear(tape, hidden, w2, b2, "layer2")
