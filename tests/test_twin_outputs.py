"""The float twin of any program: outputs, the gradient at them, and the int8 network beside it."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from eggroll.baseline.float_numpy import NumpyTwin, Pass
from eggroll.baseline.float_twin import ONE, Twin, by_token, real, rows_by_token
from eggroll.networks import mlp, nnue
from eggroll.program import OPERATIONS, Program, Register, Rows

TWINS = {"mlx": Twin, "numpy": NumpyTwin}
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
    def rows(self) -> Rows:
        return rows_by_token(self.inputs, self.features)

    @property
    def start(self) -> mx.array:
        return real({"state": self.state})["state"]


def case_of(program: Program, S: int, T: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)

    def int8(shape, middle=0) -> np.ndarray:
        return np.clip(np.rint(rng.normal(middle, 16, shape)), -127, 127).astype(np.int8)

    features = np.full((S, T, program.indices), -1, np.int32)
    for op in (op for stage in program.stages for op in stage.ops if op.kind == "features"):
        lists, active, first, _ = op.numbers
        count, mine = len_of(program, op), slice(first, first + lists * active)
        features[..., mine] = rng.integers(-1, count, (S, T, lists * active))
    return Case(
        program,
        {leaf.name: int8(leaf.shape, leaf.init or 0) for leaf in program.leaves},
        int8((S, program.state_size)),
        rng.integers(0, program.vocabulary, (S, T)).astype(np.int32),
        rng.integers(-128, 128, (S, T, program.inputs)).astype(np.int8) if program.inputs else None,
        features if program.indices else None,
    )


def len_of(program: Program, op) -> int:
    return program.leaves[op.leaf].shape[0]


KINDS = [kind for kind in OPERATIONS if kind not in ("score", "output", "sums")]
NETWORKS = {kind: program_of(kind) for kind in KINDS} | {
    "mlp": mlp(9, [7, 5], 3),
    "nnue": nnue(20, 6, 4, active=5),
}


def test_every_operation_is_in_a_network():
    found = {op.kind for stage in NETWORKS["relu"].stages for op in stage.ops}
    assert {"score", "output", "sums"} < found
    for kind in KINDS:
        assert any(op.kind == kind for stage in NETWORKS[kind].stages for op in stage.ops)


@pytest.mark.parametrize("name", NETWORKS)
def test_both_twins_are_one(name: str):
    """Outputs, state and gradient, by MLX's automatic differentiation and by hand, in threads."""
    case, rng = case_of(NETWORKS[name], 50, 5), np.random.default_rng(1)
    args = real(case.weights), case.rows, case.start, by_token(case.tokens)
    outputs, after, back = Twin(case.program).run(*args)
    slopes = {k: mx.array(rng.normal(size=a.shape).astype(np.float32)) for k, a in outputs.items()}
    gradient = back(slopes)
    assert list(outputs) == [output.name for output in case.program.outputs]
    for threads in (1, 3):
        twin = NumpyTwin(case.program, threads)
        mine, mine_after, mine_back = twin.run(*args)
        assert list(mine) == list(outputs)
        for key, a in outputs.items():
            np.testing.assert_allclose(np.array(mine[key]), np.array(a), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(np.array(mine_after), np.array(after), atol=1e-4)
        leaves = mine_back(slopes)
        assert leaves.keys() == gradient.keys() == case.weights.keys()
        for key, g in gradient.items():
            error = np.abs(np.array(leaves[key]) - np.array(g)).max()
            assert error <= 1e-4 * np.abs(np.array(g)).max() + 1e-6, key
        again = twin.gradient_at(args[0], args[1], args[2], slopes, args[3])
        assert all(np.array_equal(again[key], leaves[key]) for key in again)


def loss_of(case: Case, weights: dict[str, np.ndarray], slopes: dict[str, np.ndarray]):
    """In float64: the sum of slope x output, logits among them, and the pass behind it."""
    run = Pass(
        Twin(case.program), weights, case.tokens.T,
        *(None if a is None else a.swapaxes(0, 1) for a in (case.inputs, case.features)),
    )  # fmt: skip
    run.forward(case.state / ONE)
    found = run.outputs | ({} if run.logits is None else {"logits": run.logits})
    assert all(a.dtype == np.float64 for a in found.values())
    return sum((found[name] * slope).sum() for name, slope in slopes.items()), run


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_is_the_slope_of_the_loss(name: str):
    """Central differences of every single weight, in float64."""
    program = NETWORKS[name]
    case, rng = case_of(program, 3, 4, seed=3), np.random.default_rng(1)
    # Off the grid of int8, where nothing stands on a corner of a clip, a ReLU or a table.
    weights = {k: w / ONE + rng.uniform(-0.03, 0.03, w.shape) for k, w in case.weights.items()}
    sizes = {output.name: output.size for output in program.outputs}
    sizes |= {"logits": program.vocabulary} if program.scored else {}
    slopes = {k: rng.normal(size=(*case.tokens.T.shape, size)) for k, size in sizes.items()}
    outside = {k: a for k, a in slopes.items() if k != "logits"}
    gradient = loss_of(case, weights, slopes)[1].backward(slopes.get("logits"), outside)
    assert all(np.abs(g).max() > 0 for g in gradient), "a leaf that nothing depends on"
    for (key, w), g in zip(weights.items(), gradient, strict=True):
        found = np.zeros(w.shape)
        for i in np.ndindex(w.shape):
            moved = [w.copy(), w.copy()]
            moved[0][i] += 1e-6
            moved[1][i] -= 1e-6
            up, down = (loss_of(case, weights | {key: m}, slopes)[0] for m in moved)
            found[i] = (up - down) / 2e-6
        np.testing.assert_allclose(g, found, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("twin", TWINS)
def test_a_loss_in_mlx_is_differentiated_through_the_outputs(twin: str):
    case = case_of(NETWORKS["mlp"], 20, 1)
    args = real(case.weights), case.rows, case.start
    outputs, _, back = TWINS[twin](case.program).run(*args)
    value, after, gradient = TWINS[twin](case.program).gradient_of(
        lambda found: mx.square(found["output"]).sum(), *args
    )
    assert float(value) == pytest.approx(float(mx.square(outputs["output"]).sum()))
    assert after.shape == (20, 0)
    for key, g in back({"output": 2 * outputs["output"]}).items():
        assert np.array_equal(gradient[key], g)


@pytest.mark.parametrize("twin", TWINS)
def test_output_left_out_has_no_slope(twin: str):
    case = case_of(NETWORKS["relu"], 5, 2)
    args = real(case.weights), case.rows, case.start, by_token(case.tokens)
    outputs, _, back = TWINS[twin](case.program).run(*args)
    some = mx.ones_like(outputs["aside"])
    zero = {name: mx.zeros_like(a) for name, a in outputs.items()}
    whole, part = back(zero | {"aside": some}), back({"aside": some})
    assert all(np.array_equal(whole[key], part[key]) for key in whole)
    assert not np.array(part["b.sums"]).any()
    assert np.array(part["b.aside"]).any()
    with pytest.raises(ValueError, match="'besides' is no output: the program has state, aside"):
        back({"besides": some})


@pytest.mark.parametrize("twin", TWINS)
def test_what_a_program_lacks_or_reads_is_said(twin: str):
    case = case_of(NETWORKS["nnue"], 2, 3)
    weights, made = real(case.weights), TWINS[twin](case.program)
    tokens = by_token(case.tokens)
    for call in (made.logits, lambda *a: made.bits(*a[:2], tokens, *a[2:])):
        with pytest.raises(ValueError, match="has no score"):
            call(weights, tokens, case.start, case.rows)
    with pytest.raises(ValueError, match=r"reads features int32 \[T, S, 10\]"):
        made.run(weights, Rows(), case.start, tokens)
    wrong = rows_by_token(None, np.where(case.features < 0, -1, 20).astype(np.int32))
    with pytest.raises(ValueError, match="features reach from -1 to 20: -1 to 19"):
        made.run(weights, wrong, case.start)
    case = case_of(NETWORKS["relu"], 2, 3)
    with pytest.raises(ValueError, match="reads tokens"):
        TWINS[twin](case.program).run(real(case.weights), case.rows, case.start)
