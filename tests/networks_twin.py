"""Small networks for the float twin: every operation in a recurrence, and what they are shown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from networks import rows_of

from eggroll.baseline.twin import ONE, Twin, by_token, dequantise
from eggroll.baseline.twin_numpy import Pass
from eggroll.networks import mlp, nnue
from eggroll.spec.program import OPERATIONS, Batch, Program, Register

STEPS = [max(-127, min(127, (v // 9) * 11 + v % 9)) for v in range(-127, 128)]  # steep and flat
D = 4


def emit(net: Program, kind: str, x: Register, s: Register) -> Register:
    """A value that is made by an operation of this kind, from x and s [D]."""
    if kind == "features":
        first = net.features("op", 11, 4, active=3, lists=2, shift=1)
        return net.concat(first, net.features("op2", 6, 2, active=2), x)
    if kind == "lookup":
        return net.concat(*(net.lookup(x, t) for t in (net.table("steps", STEPS), "sigmoid")))
    made = {
        "embed": lambda: net.add(x, net.embed("op")),
        "input": lambda: net.concat(x, net.input(3)),
        "linear": lambda: net.linear(x, "op", 5),
        "norm": lambda: net.norm(x, "op"),
        "add": lambda: net.add(x, s),
        "add_bias": lambda: net.add_bias(x, s, "op"),
        "forget": lambda: net.forget(x, s),
        "mix": lambda: net.mix(x, s, net.add(x, x)),
        "bias": lambda: net.bias(x, "op"),
        "relu": lambda: net.relu(x),
        "concat": lambda: net.concat(x, s, x),
    }
    return made[kind]()


def program_of(kind: str) -> Program:
    """An operation in a recurrence, and every kind of result."""
    net = Program(7, D)
    x, _ = net.stage()
    net.embed("embedding")
    net.add(x, net.linear(net.input(3), "in", D), out=x)
    x, s = net.stage("a.", state=True)
    inner = net.linear(emit(net, kind, net.linear(x, "w", D), s), "inner", D)
    net.mix(inner, net.add(x, net.linear(s, "h", D)), s, out=s)
    net.output(s, "state")
    net.add(x, s, out=x)
    x, _ = net.stage("b.")
    net.output(net.linear(x, "aside", 2), "aside")
    net.sums(net.relu(x), "sums", 3)
    net.score(x, "head")
    net.check()
    return net


class Case(NamedTuple):
    """Int8 weights, and what S streams are shown over T rows, [S, T, ..]."""

    program: Program
    weights: dict[str, np.ndarray]
    state: np.ndarray
    tokens: np.ndarray
    inputs: np.ndarray | None
    features: np.ndarray | None

    @property
    def shown(self) -> Batch:
        """What engines are given, in NumPy's arrays."""
        return Batch(self.tokens, None, self.state, self.inputs, self.features)

    @property
    def batch(self) -> Batch:
        """As twins read it, in MLX's arrays."""
        return by_token(self.shown)._replace(state=dequantise({"state": self.state})["state"])


def case_of(program: Program, S: int, T: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)

    def int8(shape, middle=0) -> np.ndarray:
        return np.clip(np.rint(rng.normal(middle, 16, shape)), -127, 127).astype(np.int8)

    return Case(
        program,
        {leaf.name: int8(leaf.shape, leaf.init or 0) for leaf in program.leaves},
        int8((S, program.state_size)),
        rng.integers(0, program.vocabulary, (S, T)).astype(np.int32),
        *rows_of(program, rng, S, T, False),
    )


KINDS = [kind for kind in OPERATIONS if kind not in ("score", "output", "sums")]
NETWORKS = {kind: program_of(kind) for kind in KINDS} | {
    "mlp": mlp(9, [7, 5], 3),
    "nnue": nnue(20, 6, 4, active=5),
}


def loss_of(case: Case, weights: dict[str, np.ndarray], slopes: dict[str, np.ndarray]):
    """In float64: the sum of slope x output, logits among them, and the pass behind it."""
    by_row = case.shown.rows(lambda a: a.swapaxes(0, 1))._replace(state=case.state / ONE)
    run = Pass(Twin(case.program), weights, by_row)
    run.forward()
    found = run.outputs | ({} if run.logits is None else {"logits": run.logits})
    assert all(a.dtype == np.float64 for a in found.values())
    return sum((found[name] * slope).sum() for name, slope in slopes.items()), run
