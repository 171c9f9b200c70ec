"""Nothing but rounding lies between the float twin and the int8 network."""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from networks_twin import NETWORKS, STEPS, Case, case_of, loss_of

from eggroll.baseline import twin as float_twin
from eggroll.baseline.twin import IN, ONE, STATE, Twin, dequantise
from eggroll.baseline.twin_numpy import Pass
from eggroll.engines import choose
from eggroll.spec.program import OPERATIONS, Op, Program


def integer_outputs(case: Case) -> dict[str, np.ndarray]:
    """Outputs [T, S, size] of the int8 network, in real units."""
    engine, _ = choose("portable", case.program, 1)
    leaves = {name: mx.array(w) for name, w in case.weights.items()}
    found, _ = engine.outputs(engine.prepare(leaves), None, case.shown.each(mx.array))
    assert list(found) == [output.name for output in case.program.outputs]
    units = {output.name: ONE * ONE if output.wide else ONE for output in case.program.outputs}
    return {k: np.array(a).astype(np.float64).swapaxes(0, 1) / units[k] for k, a in found.items()}


def powers_of_two() -> Program:
    """Every new operation; linear ones read 16 or 64 values, whose roots divide exactly."""
    net = Program(5, 16)
    x, _ = net.stage()
    shown = net.concat(net.input(7), net.features("E", 30, 5, active=4, lists=5, shift=2))
    shown = net.concat(shown, net.embed("embedding"), net.features("F", 9, 16, active=2))
    net.bias(net.relu(net.linear(shown, "in", 16)), "b", out=x)
    x, s = net.stage("a.", state=True)
    h = net.lookup(net.add(x, net.linear(s, "again", 16)), net.table("steps", STEPS))
    net.mix(net.lookup(x, "sigmoid"), h, s, out=s)
    net.output(h, "inner")
    net.sums(net.forget(x, s), "sums", 3)
    net.norm(s, "norm")
    net.add(x, s, out=x)
    x, _ = net.stage("b.")
    net.output(net.linear(net.relu(x), "last", 4))
    net.check()
    return net


def test_with_every_floor_the_twin_is_the_integer_network(monkeypatch: pytest.MonkeyPatch):
    """Put the rounding back, and every output is equal."""

    def norm(read, op, x):
        mean = mx.maximum(mx.floor(mx.abs(x).mean(axis=-1, keepdims=True) * ONE), 1) / ONE
        return float_twin.clip(mx.floor(x * read.leaf(op) / mean * ONE) / ONE)

    def floored(operation):
        return lambda *args: mx.floor(operation(*args) * ONE) / ONE

    plain = float_twin.OPERATIONS

    def lookup(read, op, x):
        return mx.round(plain["lookup"](read, op, x) * ONE) / ONE

    new = {kind: floored(operation) for kind, operation in plain.items()}
    new |= {"lookup": lookup, "norm": norm, "sums": plain["sums"]}
    case = case_of(powers_of_two(), 40, 9)
    expected = integer_outputs(case)
    monkeypatch.setattr(float_twin, "OPERATIONS", new)
    outputs, _, _ = Twin(case.program).run(dequantise(case.weights), case.batch)
    for name, a in outputs.items():
        assert np.array_equal(np.array(a), expected[name]), name


U = 1 / ONE  # the last bit: a floor takes less than one, rounding to the nearest at most half


class Seen(NamedTuple):
    """An operation at one row: its leaf, and its inputs [S, n] without rounding."""

    op: Op
    w: np.ndarray | None
    inputs: list[np.ndarray]


def product_error(at: Seen, e: np.ndarray) -> np.ndarray:
    return e @ np.abs(at.w).T


def norm_error(at: Seen, e: np.ndarray) -> np.ndarray:
    """x w / m, where x is wrong by e, and the mean m by its mean and a floor."""
    x = at.inputs[0]
    m = np.maximum(np.abs(x).mean(axis=-1, keepdims=True), U)
    dm = e.mean(axis=-1, keepdims=True) + U
    least = np.maximum(m - dm, U)
    return np.abs(at.w) * (e + np.abs(x) * dm / m) / least + U


def lookup_error(at: Seen, e: np.ndarray) -> np.ndarray:
    steepest = {"sigmoid": 254 / 4 * U, "tanh": 1, "steps": np.abs(np.diff(STEPS)).max()}
    return e * steepest[at.op.table] + (0 if at.op.table == "steps" else U / 2)


def mix_error(at: Seen, ef: np.ndarray, eh: np.ndarray, es: np.ndarray) -> np.ndarray:
    """s + g (h - s) with 0 <= g < 1 is between s and h; g is wrong by ef / 16."""
    _, h, s = at.inputs
    return np.maximum(eh, es) + np.abs(h - s) * ef * U + U


# How far int8 may be from the float value, given how far its inputs may be: clips only bring them
# together, and every floor or rounding adds its own.
ERRORS = {
    "embed": lambda at: 0,
    "input": lambda at: 0,
    "features": lambda at: U if at.op.numbers[3] else 0,
    "linear": lambda at, e: product_error(at, e) / isqrt(e.shape[-1]) + U,
    "sums": product_error,
    "norm": norm_error,
    "add": lambda at, a, b: a + b,
    "add_bias": lambda at, a, b: a + b,
    "bias": lambda at, e: e,
    "relu": lambda at, e: e,
    "output": lambda at, e: e,
    "concat": lambda at, a, b: np.concatenate([a, b], axis=-1),
    "lookup": lookup_error,
    "forget": lambda at, ef, es: es + np.abs(at.inputs[1]) * ef * U + U,
    "mix": mix_error,
}


def output_errors(case: Case, run: Pass, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How far the int8 network's outputs [T, S, size] may be from those of the pass."""
    program, T = case.program, len(case.tokens.T)
    errors = {name: np.zeros(a.shape) for name, a in run.outputs.items()}
    x = [np.zeros((len(case.tokens), program.width))] * T
    for stage, plan, values in zip(program.stages, run.schedules, run.values, strict=True):
        state, passed = np.zeros_like(x[0]), []
        for t in range(T):
            e = {IN: x[t], STATE: state * run.fresh[t]}
            for i, op in enumerate(stage.ops):
                if op.kind == "score":
                    continue
                w = weights[program.leaves[op.leaf].name] if op.leaf >= 0 else None
                seen = Seen(op, w, [values[j][t] for j in plan.inputs[i]])
                found = ERRORS[op.kind](seen, *(e[j] for j in plan.inputs[i]))
                e[i] = np.broadcast_to(found, values[i][t].shape)
            for i, name in plan.outputs.items():
                errors[name][t] = e[i]
            passed.append(e[plan.out])
            state = e[plan.state]
        x = passed
    return errors


def test_every_operation_has_its_error():
    assert {*ERRORS, "score"} == set(OPERATIONS)


@pytest.mark.parametrize("name", NETWORKS)
def test_int8_is_as_near_as_its_roundings_allow(name: str):
    """The sum of what every rounding on the way can do, weight by weight, and no more."""
    case = case_of(NETWORKS[name], 30, 2)
    weights = {name: w / ONE for name, w in case.weights.items()}
    _, run = loss_of(case, weights, {})
    errors, found = output_errors(case, run, weights), integer_outputs(case)
    for key, value in run.outputs.items():
        away = np.abs(found[key] - value)
        assert (away <= errors[key] + 1e-9).all(), key
        assert errors[key].mean() < np.ptp(value) / 2, "a bound that says nothing"
