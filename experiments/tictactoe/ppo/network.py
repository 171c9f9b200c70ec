"""The policy and value network as one flat vector of float32: layout, forward pass, first weights.

27 inputs, L layers of H with ReLU, then 9 logits and a value. The vector is in the order of
torch's state_dict: W [out, in] row by row and then b, layer by layer, the policy head, the value
head. H = 256, L = 4 has 207,114 parameters.
Letters: B boards, H hidden units, L hidden layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError

INPUTS, MOVES = 27, 9
HIDDEN, LAYERS = 256, 4
PARAMETERS = 207_114  # of HIDDEN and LAYERS
ILLEGAL = np.float32(-1e8)  # logit of a move that the rules forbid; chosen by branch, never added


def layout(hidden: int = HIDDEN, layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    """Name of each parameter in TicTacToeNet's state_dict -> its shape, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(layers):
        shapes[f"body.{2 * i}.weight"] = (hidden, hidden if i else INPUTS)
        shapes[f"body.{2 * i}.bias"] = (hidden,)
    for name, outputs in (("policy", MOVES), ("value", 1)):
        shapes[f"{name}.weight"] = (outputs, hidden)
        shapes[f"{name}.bias"] = (outputs,)
    return shapes


def unflatten(
    flat: NDArray, hidden: int = HIDDEN, layers: int = LAYERS
) -> dict[str, NDArray[np.floating]]:
    """Views of a flat vector, by name.

    Raises:
        InputError: it has another length.
    """
    shapes = layout(hidden, layers)
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    if flat.shape != (sum(sizes),):
        raise InputError(
            f"The weights have the shape {flat.shape}, but 27-{layers}x{hidden}-9+1 has "
            f"{sum(sizes):,} parameters: give a flat vector of so many."
        )
    ends = np.cumsum(sizes)
    return {
        name: flat[end - size : end].reshape(shape)
        for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
    }


def forward(
    flat: NDArray, observations: NDArray, hidden: int = HIDDEN, layers: int = LAYERS
) -> tuple[NDArray, NDArray]:
    """Logits [B, 9] and values [B] of observations [B, 27], in the type of the vector."""
    weights = unflatten(flat, hidden, layers)
    x = observations.astype(flat.dtype)
    for i in range(layers):
        x = np.maximum(x @ weights[f"body.{2 * i}.weight"].T + weights[f"body.{2 * i}.bias"], 0)
    logits = x @ weights["policy.weight"].T + weights["policy.bias"]
    return logits, x @ weights["value.weight"][0] + weights["value.bias"][0]


def probabilities(logits: NDArray, legal: NDArray[np.bool_]) -> NDArray:
    """Softmax over the legal moves [B, 9]; 0 for the others."""
    masked = np.where(legal, logits, ILLEGAL)
    raised = np.exp(masked - masked.max(axis=1, keepdims=True))
    raised[~legal] = 0
    return raised / raised.sum(axis=1, keepdims=True)


def greedy(flat: NDArray, observations: NDArray, legal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The legal move of the largest logit [B]."""
    return np.where(legal, forward(flat, observations)[0], -np.inf).argmax(axis=1)


def initial(seed: int, hidden: int = HIDDEN, layers: int = LAYERS) -> NDArray[np.float32]:
    """First weights and biases, uniform within ±1/sqrt(inputs) as torch.nn.Linear draws them."""
    chance, parts, bound = np.random.default_rng(seed), [], 0.0
    for shape in layout(hidden, layers).values():
        if len(shape) == 2:
            bound = shape[1] ** -0.5
        parts.append(chance.uniform(-bound, bound, shape).astype(np.float32).ravel())
    return np.concatenate(parts)


def multiply_adds(rows: int, hidden: int = HIDDEN, layers: int = LAYERS) -> int:
    """Of a forward pass of so many rows."""
    products = (shape for shape in layout(hidden, layers).values() if len(shape) == 2)
    return rows * sum(a * b for a, b in products)
