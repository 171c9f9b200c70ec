"""Networks by name, declared in the language of spec/program.py, and their initial weights.

Letters: V vocabulary, D width, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, shown, whole_number
from eggroll.spec import rng
from eggroll.spec.backward import heads
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.program import Program, ProgramError, Register
from eggroll.spec.rng import random_matrix

Gates = Literal["clip", "table"]
NetworkName = Literal["egg"]


def egg(vocabulary: int, width: int, layers: int, gates: Gates = "clip") -> Program:
    """The EGG language model: embedding, L blocks of GRU and MLP with residuals, head.

    Gates are the clip itself (as in arXiv 2511.16652) or integer tables of sigmoid and tanh.
    513 D + L (4 D + 12 D^2) parameters at V = 256.
    """
    layers = whole_number("layers", layers, 0)
    if gates not in get_args(Gates):
        raise ProgramError(f"gates are {shown(gates)}: {' or '.join(get_args(Gates))} is needed.")
    net = Program(vocabulary, width)

    def gate(value: Register, table: str) -> Register:
        return value if gates == "clip" else net.lookup(value, table)

    net.stage()
    net.embed("embedding")
    for layer in range(layers):
        x, s = net.stage(f"layer{layer}.", state=True)
        n = net.norm(x, "norm1")
        wf, uf = net.linear(n, "Wf", width), net.linear(s, "Uf", width)
        f = gate(net.add_bias(wf, uf, "bf"), "sigmoid")
        wh, uh = net.linear(n, "Wh", width), net.linear(net.forget(f, s), "Uh", width)
        h = gate(net.add_bias(wh, uh, "bh"), "tanh")
        net.add(x, net.mix(f, h, s, out=s), out=x)
        up = net.linear(net.norm(x, "norm2"), "up", 4 * width)
        net.add(x, net.linear(up, "down", width), out=x)
    x, _ = net.stage()
    net.score(net.norm(x, "norm"), "head")
    return net


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, *, policy: bool = False, bias: bool = True
) -> Program:
    """Layers of weights, bias and ReLU on an int8 row, and one of int8 [outputs].

    Layer i has the leaves `layer{i}.weights` and `layer{i}.bias`; the output, "output", is logits
    in 1/16 bit by custom. policy: the last layer is one of actions to be drawn, "policy", without
    a bias. bias: False leaves them all out, as noise on them is large beside that on weights.
    """
    if isinstance(hidden, str) or not isinstance(hidden, Sequence | np.ndarray):
        raise ProgramError(f"The hidden layers are {shown(hidden)}: give a list of their sizes.")
    net = Program()
    x = net.input(inputs)
    for i, size in enumerate(hidden):
        x = net.linear(x, f"layer{i}.weights", size)
        x = net.relu(net.bias(x, f"layer{i}.bias") if bias else x)
    if policy:
        net.policy(x, "policy", outputs)
        return net
    last = f"layer{len(hidden)}."
    x = net.linear(x, last + "weights", outputs)
    net.output(net.bias(x, last + "bias") if bias else x)
    return net


def nnue(
    features: int, accumulator: int, hidden: int = 16, *, active: int = 32, lists: int = 2
) -> Program:
    """Efficiently updatable evaluation: sums of feature rows, ReLU, a hidden layer, one int32.

    A row has `lists` lists of at most `active` features, as of the two sides of a board game, the
    side to move first; "evaluation" is undivided.
    """
    net = Program()
    x = net.features("accumulator", features, accumulator, active=active, lists=lists, shift=1)
    x = net.relu(net.bias(x, "accumulator.bias"))
    x = net.relu(net.bias(net.linear(x, "hidden", hidden), "hidden.bias"))
    net.sums(x, "evaluation", 1)
    return net


# name -> the network's builder. Those of NetworkName, language models, are built from (vocabulary,
# width, layers, gates).
NETWORKS: dict[str, Callable[..., Program]] = {"egg": egg, "mlp": mlp, "nnue": nnue}


def initial_weights(program: Program, seed: int) -> dict[str, mx.array]:
    """Int8 leaves in declared order: matrices round(16 N(0, 1)), norms 16 (1.0), biases 0."""
    weights = {}
    for i, leaf in enumerate(program.leaves):
        if leaf.init is None:
            weights[leaf.name] = random_matrix(rng.key(seed, rng.WEIGHTS, i), leaf.shape)
        else:
            weights[leaf.name] = mx.full(leaf.shape, leaf.init, mx.int8)
    return weights


def small_outputs(program: Program, seed: int, divisor: int = 5) -> dict[str, NDArray[np.int8]]:
    """The first weights of a seed, int8 by leaf, those that make outputs divided, toward zero.

    Noise has one size for all weights, so it moves outputs of small weights further, and members
    differ more. For `weights` of a Trainer.

    Raises:
        InputError: a divisor or a seed out of range.
    """
    seed = whole_number("seed", seed, 0, (1 << 64) - 1)
    if not isinstance(program, Program):
        raise InputError(f"{shown(program)} is no Program: declare one.")
    by, ends = whole_number("divisor", divisor, 1, LIMIT), heads(program)
    made = {name: np.array(w) for name, w in initial_weights(program, seed).items()}
    return {
        name: np.sign(w) * (abs(w) // np.int8(by)) if name in ends else w
        for name, w in made.items()
    }
