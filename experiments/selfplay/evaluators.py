"""Networks of random weights that searches ask: int8 by this library's engine, and float32.

They have the size and the cost of those that learn, which gates and benchmarks need; what is learnt
has its own module. Letters: F values of a state, A actions, n positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.errors import InputError
from experiments.selfplay.games import Game, pointer
from experiments.selfplay.operations import Evaluate

ONE = 64  # of a plane's 1
LOG_2 = float(np.log(2))

Floats = NDArray[np.float32]


def uniform(states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Knows nothing: equal logits, value 0."""
    return np.zeros(legal.shape, np.float32), np.zeros(len(states), np.float32)


class Int8:
    """A network in int8: hidden layers with ReLU, logits and log-odds of a win in 1/16 bit.

    `values` runs a declaration without the policy, of the same leaves; as all is whole numbers, the
    values are the same bits.
    """

    def __init__(
        self, game: Game, hidden: Sequence[int] = (128, 64), seed: int = 0, threads: int = 1
    ) -> None:
        whole, value = (declare(game, hidden, policy) for policy in (True, False))
        rng = np.random.default_rng(seed)
        weights = {}
        for leaf in whole.leaves:
            spread = 24 if len(leaf.shape) == 2 else 8
            weights[leaf.name] = rng.integers(-spread, spread + 1, leaf.shape).astype(np.int8)
        self.weights = weights
        self.model = eg.Trainer(whole, weights=weights, threads=threads).model
        mine = {leaf.name: weights[leaf.name] for leaf in value.leaves}
        self.value_model = eg.Trainer(value, weights=mine, threads=threads).model

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        outputs = self.model(states * np.int8(ONE))
        return outputs["policy"].astype(np.float32) * np.float32(LOG_2 / 16), odds(
            outputs["value"][:, 0]
        )

    def values(self, states: NDArray[np.int8]) -> Floats:
        """Values alone, float32 [n]."""
        return odds(self.value_model(states * np.int8(ONE))[:, 0])


def odds(sums: NDArray[np.generic]) -> Floats:
    """Values in (-1, 1) of log-odds in 1/16 bit, from a table, so that equal sums are equal."""
    table = np.tanh(np.arange(-128, 128) * (LOG_2 / 32)).astype(np.float32)
    return table[sums.astype(np.int64) + 128]


def declare(game: Game, hidden: Sequence[int], policy: bool) -> eg.Program:
    """The network, with the policy or with the value alone."""
    net = eg.Program()
    x = net.input(game.inputs)
    for i, size in enumerate(hidden):
        x = net.relu(net.bias(net.linear(x, f"layer{i}.weights", size), f"layer{i}.bias"))
    for name, size in (("policy", game.actions), ("value", 1))[not policy :]:
        net.output(net.bias(net.linear(x, f"{name}.weights", size), f"{name}.bias"), name)
    return net


class Float:
    """The same shape in float32 on the float kernels, 1 for a plane's 1.

    layers: weights float32 [outputs, inputs] and biases of the hidden layers, the policy and the
    value, in this order.
    """

    def __init__(self, game: Game, hidden: Sequence[int] = (128, 64), seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.layers: list[tuple[Floats, Floats]] = []
        for inputs, size in pairwise((game.inputs, *hidden)):
            self.layers.append(random_layer(rng, size, inputs, 2.0))
        for size in (game.actions, 1):
            self.layers.append(random_layer(rng, size, hidden[-1], 1.0))
        try:
            import float_kernels

            self._table: Any = float_kernels.best()
        except (ImportError, ValueError) as error:
            raise InputError(f"The float kernels cannot be used ({error}): `make build`.") from None
        self._packed = [self._pack(w) for w, _ in self.layers]

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        x = self._trunk(states)
        return self._linear(x, -2), np.tanh(self._linear(x, -1)[:, 0])

    def values(self, states: NDArray[np.int8]) -> Floats:
        """Values alone, float32 [n]."""
        return np.tanh(self._linear(self._trunk(states), -1)[:, 0])

    def _trunk(self, states: NDArray[np.int8]) -> Floats:
        x = states.astype(np.float32)
        for i in range(len(self.layers) - 2):
            x = self._linear(x, i, relu=1)
        return x

    def _pack(self, w: Floats) -> Floats:
        packed = np.empty(self._table.packed_floats(w.shape[1], len(w)), np.float32)
        self._table.pack(w.shape[1], len(w), pointer(w), w.shape[1], 1, pointer(packed))
        return packed

    def _linear(self, x: Floats, i: int, relu: int = 0) -> Floats:
        w, b = self.layers[i]
        n, k = w.shape
        y = np.empty((len(x), n), np.float32)
        self._table.linear_packed(
            len(x), n, k, pointer(x), k, pointer(self._packed[i]), pointer(b), pointer(y), n, relu,
            None, 1,
        )  # fmt: skip
        return y


def random_layer(
    rng: np.random.Generator, outputs: int, inputs: int, gain: float
) -> tuple[Floats, Floats]:
    """Weights of He's spread for gain 2, and small biases."""
    spread = (gain / inputs) ** 0.5
    return (
        rng.normal(0, spread, (outputs, inputs)).astype(np.float32),
        rng.normal(0, 0.1, outputs).astype(np.float32),
    )


class Chunks:
    """An evaluation in calls of at most so many rows."""

    def __init__(self, evaluate: Evaluate, rows: int) -> None:
        self._evaluate, self._rows = evaluate, rows
        if (values := getattr(evaluate, "values", None)) is not None:
            self.values = lambda states: np.concatenate(
                [values(states[i : i + rows]) for i in range(0, len(states), rows)]
            )

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        n = self._rows
        if len(states) <= n:
            return self._evaluate(states, legal)
        parts = [
            self._evaluate(states[i : i + n], legal[i : i + n]) for i in range(0, len(states), n)
        ]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
