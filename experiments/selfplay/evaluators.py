"""Networks that searches ask: int8 by this library's engine, the same bits in C++, and float32.

Gates and benchmarks give them random weights of the size and the cost of those that learners.py
gives. Letters: F values of a state, A actions, n positions.
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll import native
from eggroll.errors import InputError
from eggroll.spec.fixed_point import LIMIT
from experiments.selfplay.games import GAMES, NATIVE, Game, pointer
from experiments.selfplay.operations import UNITS, Evaluate

ONE = 64  # of a plane's 1
LOG_2 = float(np.log(2))
MOST_INPUTS = 4096  # of a layer in native code, kMostInputs of net.h

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
        rng, made = np.random.default_rng(seed), {}
        for leaf in declare(game, hidden, True).leaves:
            spread = 24 if len(leaf.shape) == 2 else 8
            made[leaf.name] = rng.integers(-spread, spread + 1, leaf.shape).astype(np.int8)
        self._take(game, hidden, made, threads)

    @classmethod
    def of(cls, game: Game, hidden: Sequence[int], weights: Mapping[str, Any]) -> Int8:
        """A network of given leaves, int8 by name."""
        found = cls.__new__(cls)
        found._take(game, hidden, weights, 1)
        return found

    def _take(
        self, game: Game, hidden: Sequence[int], weights: Mapping[str, Any], threads: int
    ) -> None:
        self.weights = dict(weights)
        models = []
        for policy in (True, False):
            net = declare(game, hidden, policy)
            mine = {leaf.name: weights[leaf.name] for leaf in net.leaves}
            models.append(eg.Trainer(net, weights=mine, threads=threads).model)
        self.model, self.value_model = models

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        outputs = self.model(states * np.int8(ONE))
        return outputs["policy"].astype(np.float32) * np.float32(LOG_2 / 16), odds(
            outputs["value"][:, 0]
        )

    def values(self, states: NDArray[np.int8]) -> Floats:
        """Values alone, float32 [n]."""
        return odds(self.value_model(states * np.int8(ONE))[:, 0])


@cache
def value_table() -> Floats:
    """Values in (-1, 1) of log-odds -128 to 127 in 1/16 bit, so that equal sums are equal."""
    return np.tanh(np.arange(-128, 128, dtype=np.float32) * np.float32(LOG_2 / 16) / 2)


def odds(sums: NDArray[np.generic]) -> Floats:
    """Values of log-odds in 1/16 bit."""
    return value_table()[sums.astype(np.int64) + 128]


def declare(game: Game, hidden: Sequence[int], policy: bool) -> eg.Program:
    """The network, with the policy or with the value alone."""
    net = eg.Program()
    x = net.input(game.inputs)
    for i, size in enumerate(hidden):
        x = net.relu(net.bias(net.linear(x, f"layer{i}.weights", size), f"layer{i}.bias"))
    for name, size in (("policy", game.actions), ("value", 1))[not policy :]:
        net.output(net.bias(net.linear(x, f"{name}.weights", size), f"{name}.bias"), name)
    return net


@cache
def library() -> Any:
    """The functions of net.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the cache cannot be written.
    """
    names = ("net", "net_generic", *(("net_vnni",) if "avx512" in UNITS else ()))
    return native.build(*(NATIVE / f"{name}.cpp" for name in names)).handle


class NativeNetwork(ABC):
    """A network whose forward pass is a function in C++ that fills arrays."""

    actions: int

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        logits = np.empty((len(states), self.actions), np.float32)
        return logits, self._evaluate(states, logits)

    def values(self, states: NDArray[np.int8]) -> Floats:
        """Values alone, float32 [n]."""
        return self._evaluate(states, None)

    @abstractmethod
    def _evaluate(self, states: NDArray[np.int8], logits: Floats | None) -> Floats:
        """Values float32 [n]; fills logits float32 [n, A] where there are any."""


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "root", "relu")),
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "columns")),
        ("planes", ctypes.c_int32),
    )


class _Net(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("layers", ctypes.c_void_p),
        ("logit", ctypes.c_float),
        ("values", ctypes.c_void_p),
        ("set", ctypes.c_int32),
    )


class Native(NativeNetwork):
    """The same network in C++ for few rows at a time, with the bits of `Int8`.

    weights: int8 leaves by name, as `declare` names them, of a network with at least one hidden
    layer. Searches ask it without coming back to Python: `native` has the addresses of the function
    and of its network, `bits` those for a game's bits (Game.words), uint64 [n, words], or None.
    set_: the instruction set, -1 the widest. differences: whether a row's sums of the first layer
    come from those of a row like it, as children of a position are.
    """

    def __init__(
        self, weights: Mapping[str, Any], set_: int = -1, differences: bool = True
    ) -> None:
        names = [f"layer{i}" for i in range(len(weights) // 2 - 2)] + ["policy", "value"]
        try:
            leaves = [
                tuple(np.asarray(weights[f"{name}.{part}"]) for part in ("weights", "bias"))
                for name in names
            ]
        except KeyError as error:
            raise InputError(
                f"the network has no leaf {error.args[0]!r}: layer0.weights, layer0.bias and so "
                "on, then policy and value are needed."
            ) from None
        if (most := max(w.shape[1] for w, _ in leaves)) > MOST_INPUTS:
            raise InputError(f"a layer reads {most} values: {MOST_INPUTS} are the most.")
        self.calls = library()
        if set_ < 0:
            set_ = max(i for i in (0, 1) if self.calls.net_runs(i))
        self._arrays = [packed(w, b) for w, b in leaves]
        self.actions, self.inputs = len(leaves[-2][0]), leaves[0][0].shape[1]
        self._layers = (_Layer * len(names))()
        for layer, (w, _), (kernel, bias), name in zip(
            self._layers, leaves, self._arrays, names, strict=True
        ):
            relu = name not in ("policy", "value")
            layer.inputs, layer.outputs = w.shape[1], w.shape[0]
            layer.root, layer.relu = math.isqrt(w.shape[1]), relu
            layer.weights, layer.bias = kernel.ctypes.data, bias.ctypes.data
        game = next((game for game in GAMES.values() if game.inputs == self.inputs), None)
        planes = game.planes if game else 0
        self._columns = columns(leaves[0][0], planes) if differences else None
        if self._columns is not None:
            self._layers[0].columns, self._layers[0].planes = self._columns.ctypes.data, planes
        self._net = _Net(
            len(names), ctypes.addressof(self._layers), LOG_2 / 16, value_table().ctypes.data, set_
        )
        functions = (self.calls.net_evaluate, self.calls.net_evaluate_bits)
        self.native, self.bits = (
            (ctypes.cast(function, ctypes.c_void_p).value, ctypes.addressof(self._net))
            for function in functions
        )
        if self._columns is None or not planes:
            self.bits = None

    def _evaluate(self, states: NDArray[np.int8], logits: Floats | None) -> Floats:
        planes = np.ascontiguousarray(states, np.int8)
        if planes.shape != (len(planes), self.inputs):
            raise InputError(
                f"states have the shape {list(planes.shape)}: [n, {self.inputs}] is needed."
            )
        values = np.empty(len(planes), np.float32)
        self.calls.net_evaluate(
            ctypes.byref(self._net), len(planes), pointer(planes), pointer(logits),
            pointer(values),
        )  # fmt: skip
        return values


def packed(w: NDArray[np.int8], b: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.int16]]:
    """Weights [N, K] as [N / 16, K / 4, 16, 4], of one output [K], and biases in whole 32, zero
    beyond."""
    N, K = w.shape
    groups, quads = -(-N // 16), -(-K // 4)
    wide = np.zeros((16 * groups, 4 * quads), np.int8)
    wide[:N, :K] = w
    bias = np.zeros(-(-N // 32) * 32, np.int16)
    bias[:N] = b
    kernel = wide.reshape(groups, 16, quads, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(w if N == 1 else kernel, np.int8), bias


def columns(w: NDArray[np.int8], planes: int = 0) -> NDArray[np.int16] | None:
    """Weights [N, K] by input, and their sums over each of some planes, int16 [K + planes, N in
    whole 32]; None where a sum might leave int16."""
    N, K = w.shape
    if K < 4 or np.abs(w.astype(np.int32)).sum(axis=1).max() > np.iinfo(np.int16).max:
        return None
    found = np.zeros((K + planes, -(-N // 32) * 32), np.int16)
    found[:K, :N] = w.T
    if planes:
        found[K:, :N] = w.T.reshape(planes, -1, N).sum(axis=1)
    return found


@cache
def float_library() -> Any:
    """The functions of net_float.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the float kernels are not built.
    """
    try:
        import float_kernels
    except ImportError as error:
        raise InputError(f"The float kernels cannot be used ({error}): `make build`.") from None
    return native.build(NATIVE / "net_float.cpp", flags=[f"-I{float_kernels.include()}"]).handle


class _FloatLayer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("packed", "bias", "top")),
    )


class _FloatNet(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("layers", "kernels")),
    )


class Float(NativeNetwork):
    """A network of the same shape in float32 on the float kernels, a plane's 1 being 1.

    layers: weights float32 [outputs, inputs] and biases of the hidden layers, the policy and the
    value, in this order; random ones unless given. tops: float32 [outputs] of each hidden layer,
    the most that its units give, if they are held. Values are tanh of the last layer's output.
    Roundings depend on the number of rows, so gates ask a network in int8.
    """

    def __init__(
        self,
        game: Game,
        hidden: Sequence[int] = (128, 64),
        seed: int = 0,
        layers: Sequence[tuple[Floats, Floats]] | None = None,
        tops: Sequence[Floats] = (),
    ) -> None:
        self.layers = [
            (np.ascontiguousarray(w, np.float32), np.ascontiguousarray(b, np.float32))
            for w, b in layers or random_layers(game, hidden, seed)
        ]
        self.tops = [np.ascontiguousarray(top, np.float32) for top in tops]
        self._call = float_library().float_net_evaluate
        import float_kernels

        kernels: Any = float_kernels.best()
        self._packed, self.actions = [], game.actions
        self._layers = (_FloatLayer * len(self.layers))()
        for layer, (w, b) in zip(self._layers, self.layers, strict=True):
            n, k = w.shape
            self._packed.append(np.empty(kernels.packed_floats(k, n), np.float32))
            kernels.pack(k, n, pointer(w), k, 1, pointer(self._packed[-1]))
            layer.inputs, layer.outputs = k, n
            layer.packed, layer.bias = self._packed[-1].ctypes.data, b.ctypes.data
        for layer, top in zip(self._layers, self.tops, strict=False):
            layer.top = top.ctypes.data
        self._net = _FloatNet(
            len(self.layers), ctypes.addressof(self._layers), float_kernels.table()
        )
        function = ctypes.cast(self._call, ctypes.c_void_p)
        self.native = (function.value, ctypes.addressof(self._net))

    @classmethod
    def of(cls, game: Game, leaves: Mapping[str, Any]) -> Float:
        """A copy of a network that `declare` declares: the same function but for what int8 rounds
        and for the clip of outputs. leaves: float32 by name, an int8 of 16 being 1."""
        layers, tops = [], []
        names = [f"layer{i}" for i in range(len(leaves) // 2 - 2)]
        for name in (*names, "policy", "value"):
            w, b = (np.asarray(leaves[f"{name}.{part}"]) for part in ("weights", "bias"))
            if name in names:  # sums are held to LIMIT before the bias and after it
                tops.append(LIMIT / 16 + np.minimum(b, 0))
            bits = {"policy": LOG_2, "value": LOG_2 / 2}.get(name, 1.0)
            reads = ONE / 16 if name == "layer0" else 1.0
            layers.append((w * np.float32(bits * reads / math.isqrt(w.shape[1])), b * bits))
        return cls(game, layers=layers, tops=tops)

    def _evaluate(self, states: NDArray[np.int8], logits: Floats | None) -> Floats:
        planes, values = np.ascontiguousarray(states, np.int8), np.empty(len(states), np.float32)
        self._call(
            ctypes.byref(self._net), len(planes), pointer(planes), pointer(logits), pointer(values)
        )
        return values


def random_layers(game: Game, hidden: Sequence[int], seed: int) -> list[tuple[Floats, Floats]]:
    """Layers of the shape that `Float` has."""
    rng, found = np.random.default_rng(seed), []
    for inputs, size in pairwise((game.inputs, *hidden)):
        found.append(random_layer(rng, size, inputs, 2.0))
    return found + [random_layer(rng, size, hidden[-1], 1.0) for size in (game.actions, 1)]


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
        self._evaluate, self.rows = evaluate, rows
        self.native = getattr(evaluate, "native", None)
        self.bits = getattr(evaluate, "bits", None)
        if (values := getattr(evaluate, "values", None)) is not None:
            self.values = lambda states: np.concatenate(
                [values(states[i : i + rows]) for i in range(0, len(states), rows)]
            )

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        n = self.rows
        if len(states) <= n:
            return self._evaluate(states, legal)
        parts = [
            self._evaluate(states[i : i + n], legal[i : i + n]) for i in range(0, len(states), n)
        ]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
