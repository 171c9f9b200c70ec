"""What members are shown and what they are credited with from outside: arithmetic and refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np
import oracle_program
import pytest
from networks import Case, Rows, case_of
from networks_credit import LARGEST, Credited, credited_of
from networks_random import every_operation
from test_engines import BACKENDS
from test_programs import CREDITED, check, check_credit, running

from eggroll.engines import Engine
from eggroll.evolution.estimators import scaled
from eggroll.networks import mlp, nnue
from eggroll.spec.program import Batch, Program

ENGINE_NAMES = [*dict.fromkeys(name.partition(":")[0] for name in BACKENDS)]


def shown(program: Program, weights: dict, rows: Rows, backend: str) -> dict[str, list]:
    """Outputs of one row of the unperturbed model, equal to the oracle's."""
    tokens, state = np.ones((1, 1), np.int32), np.zeros((1, program.state_size), np.int8)
    arrays = {name: mx.array(np.array(w, np.int8)) for name, w in weights.items()}
    member = partial(oracle_program.Member, program, weights, None)
    want, _ = oracle_program.outputs(program, tokens, state, rows, member)
    with running(backend, program) as engine:
        batch = Batch(tokens, None, state, *rows).each(mx.array)
        got, _ = engine.outputs(engine.prepare(arrays), None, batch)
    for name, values in want.items():
        np.testing.assert_array_equal(np.array(got[name]), values, err_msg=name)
    return {name: values[0, 0].tolist() for name, values in want.items()}


def side_by_side() -> Program:
    """Two lists of at most three of five features of size 2, as they are and as int32 sums."""
    net = Program()
    x = net.features("E", 5, 2, active=3, lists=2, shift=1)
    net.output(x, "pairs")
    net.sums(net.relu(x), "W", 1)
    return net


WEIGHTS = {"E": [[10, -1], [20, -2], [40, -4], [100, 50], [127, -127]], "W": [[1, 2, 3, -127]]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("lists", "pairs"),
    [
        ([0, 1, 2, 3, -1, -1], [35, -4, 50, 25]),  # (-7 >> 1) is -4
        ([-1, 0, -1, -1, -1, 0], [5, -1, 5, -1]),  # none, wherever it stands
        ([1, 1, -1, 2, 2, 2], [20, -2, 60, -6]),  # once more counts once more
        ([4, 4, 4, 4, -1, 4], [127, -127, 127, -127]),  # summed first, shifted, then clipped
        ([-1] * 6, [0, 0, 0, 0]),
    ],
)
def test_features_are_summed_shifted_and_clipped(backend: str, lists: list, pairs: list):
    rows = None, np.array([[lists]], np.int32)
    a, b, c, d = (max(v, 0) for v in pairs)
    want = {"pairs": pairs, "W": [a + 2 * b + 3 * c - 127 * d]}
    assert shown(side_by_side(), WEIGHTS, rows, backend) == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_joined_biased_and_looked_up(backend: str):
    """-128 counts as -127; joined registers keep their order; a table of one's own."""
    net = Program()
    x = net.input(3)
    net.output(x, "row")
    mirror = net.table("mirror", [-v for v in range(-127, 128)])
    y = net.concat(net.bias(x, "b"), net.lookup(x, mirror), net.relu(x))
    net.output(y, "joined")
    rows = np.array([[[-128, 5, 120]]], np.int8), None
    got = shown(net, {"b": [-1, 2, 20]}, rows, backend)
    assert got["row"] == [-127, 5, 120]
    assert got["joined"] == [-127, 7, 127, 127, -5, -120, 0, 5, 120]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("rank", "extreme"), [(1, False), (1, True), (3, False)])
@pytest.mark.parametrize(
    "program",
    [mlp(27, [16, 11], 9), nnue(40, 8, 5, active=4), nnue(33, 11, active=3, lists=3)],
    ids=["mlp", "nnue", "nnue of three lists"],
)
def test_networks_of_rows_equal_the_oracle(
    backend: str, rank: int, extreme: bool, program: Program
):
    """Extreme: sums are clipped before noise is added to them."""
    rng = np.random.default_rng(rank)
    case = case_of(program, rng, T=5, P=6, rank=rank, sigma_shift=1, extreme=extreme)
    with running(backend, program, 2, 2) as engine:
        check(engine, case)
        for estimator in CREDITED if rank == 1 else ():
            check_credit(engine, credited_of(case, rng, estimator))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("noise", [True, False])
def test_rows_one_by_one_give_what_all_at_once_do(backend: str, noise: bool):
    """As environments in lockstep have them: T = 1 with the state carried on."""
    case = case_of(every_operation(), np.random.default_rng(2), T=4, P=6, sigma_shift=1)
    case.tokens[:, 2] = [0, 1] * 3  # half of the members begin anew
    slices, batch = case.slices if noise else None, case.batch
    with running(backend, case.program) as engine:
        prepared = engine.prepare(case.leaves)
        want, after = engine.outputs(prepared, slices, batch)
        state = batch.state
        for t in range(batch.size[1]):
            one = batch.window(slice(t, t + 1))._replace(state=state)
            got, state = engine.outputs(prepared, slices, one)
            for name, values in got.items():
                np.testing.assert_array_equal(np.array(values), np.array(want[name][:, t : t + 1]))
        np.testing.assert_array_equal(np.array(state), np.array(after))


def complete_credited(estimator: str, *, T: int = 3, alike: bool = True) -> Credited:
    """A program of every operation, its values as large as they may be, and of one sign."""
    rng = np.random.default_rng(1)
    case = case_of(every_operation(), rng, T=T, P=6, sigma_shift=2)
    credited = credited_of(case, rng, estimator, discount=15, alike=alike, valued=True)
    case.tokens[:] = np.maximum(case.tokens, 1)  # so that nothing is cut off
    credited.values[:] = np.array([[LARGEST], [-LARGEST], [LARGEST]])
    return credited


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("estimator", CREDITED)
def test_largest_values_do_not_wrap(backend: str, estimator: str):
    """Discounted over 70 rows they are sixteen times as large."""
    credited = complete_credited(estimator, T=70)
    with running(backend, credited.case.program, 2) as engine:
        check_credit(engine, credited)


@pytest.mark.parametrize("estimator", CREDITED)
def test_largest_values_in_the_finest_unit_do_not_wrap(estimator: str):
    """A unit that no estimator has, but kernels take."""
    made, found = complete_credited(estimator, T=70, alike=False), []
    for backend in BACKENDS:
        with running(backend, made.case.program, 2) as engine:
            given = engine.prepare(made.case.leaves), made.case.slices, made.case.batch
            finest = made.crediting._replace(unit_shift=0)
            found.append(engine.credit(*given, made.credit_noise, finest, mx.array(made.values))[2])
    for name, z in found[0].items():
        for other in found[1:]:
            np.testing.assert_array_equal(np.array(other[name]), np.array(z), err_msg=name)


def test_the_largest_value_is_one_that_engines_take():
    """However much larger one difference is than the others."""
    values = scaled(np.array([[1e9, -1e9, 0.1]]), 32, 0.1)
    np.testing.assert_array_equal(values, [[LARGEST, -LARGEST, 32]])


@pytest.mark.parametrize("estimator", CREDITED)
def test_every_leaf_is_credited_in_a_complete_program(estimator: str):
    """So that what is compared elsewhere would show if a leaf's credit were wrong."""
    _, _, Z = complete_credited(estimator).oracle_of_any()
    assert [name for name, z in Z.items() if not np.any(z)] == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("estimator", CREDITED)
def test_values_that_are_the_score_differences_change_nothing(backend: str, estimator: str):
    rng = np.random.default_rng(5)
    credited = credited_of(case_of(every_operation(), rng, T=4, P=6), rng, estimator)
    with running(backend, credited.case.program) as engine:
        want = credited.run(engine)
        scores = np.array(want[0]).astype(np.int32)
        credited.values = scores[0::2] - scores[1::2]
        got = credited.run(engine)
    for name, z in want[2].items():
        np.testing.assert_array_equal(np.array(got[2][name]), np.array(z), err_msg=name)
    np.testing.assert_array_equal(np.array(got[0]), scores)


def refused_case() -> Case:
    """Inputs and features, no score."""
    net = Program()
    x = net.concat(net.input(3), net.features("E", 5, 2, active=2), net.features("F", 9, 2))
    net.sums(x, "W", 2)
    return case_of(net, np.random.default_rng(0), T=2, P=4)


def replaced(batch: Batch, field: str, change: Callable[[mx.array], mx.array | None]) -> Batch:
    return batch._replace(**{field: change(getattr(batch, field))})


def with_index(at: int, value: int) -> Callable[[mx.array], mx.array]:
    def change(features: mx.array) -> mx.array:
        array = np.array(features)
        array[1, 1, at] = value
        return mx.array(array)

    return change


# (what the sentence names, which rows, what is done to them)
WRONG_ROWS: list[tuple[str, str, Callable]] = [
    ("inputs", "inputs", lambda a: None),
    ("inputs", "inputs", lambda a: a[..., :2]),
    ("inputs", "inputs", lambda a: a[:, :1]),
    ("inputs", "inputs", lambda a: a[:2]),
    ("inputs", "inputs", lambda a: a.astype(mx.int32)),
    ("features", "features", lambda a: None),
    ("features", "features", lambda a: a[..., :3]),
    ("features", "features", lambda a: a.astype(mx.int8)),
    ("features", "features", with_index(0, 5)),  # E has 0..4, F has 0..8
    ("features", "features", with_index(2, 9)),
    ("features", "features", with_index(2, -2)),
    ("features", "features", with_index(2, 2**31 - 1)),
]


def calls(engine: Engine, case: Case) -> dict[str, Callable[[Batch, mx.array | None], object]]:
    """What takes rows in a program without a score, from a batch and values."""
    credited = credited_of(case, np.random.default_rng(0), "token-credit")
    prepared, signs, kinds = engine.prepare(case.leaves), credited.credit_noise, credited.crediting
    return {
        "outputs": lambda batch, _: engine.outputs(prepared, case.slices, batch),
        "credit": lambda batch, values: engine.credit(
            prepared, case.slices, batch, signs, kinds, values
        ),
        "evaluate": lambda batch, _: engine.evaluate(prepared, case.slices, batch),
        "likelihoods": lambda batch, _: engine.likelihoods(prepared, batch),
        "logits": lambda batch, _: engine.logits(prepared, batch),
    }


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("call", ["outputs", "credit"])
@pytest.mark.parametrize(("says", "field", "change"), WRONG_ROWS)
def test_rows_that_do_not_fit_are_refused(name, call, says, field, change):
    case = refused_case()
    with running(name, case.program) as engine:
        ask, batch = calls(engine, case)[call], case.batch
        values = mx.zeros((2, 2), mx.int32)
        ask(batch, values)
        with pytest.raises(ValueError, match=says):
            ask(replaced(batch, field, change), values)
        ask(batch, values)


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize(
    "values",
    [
        None,
        mx.zeros((4, 2), mx.int32),
        mx.zeros((2, 3), mx.int32),
        mx.zeros((2, 2), mx.float32),
        mx.full((2, 2), LARGEST + 1, mx.int32),
        mx.full((2, 2), -LARGEST - 1, mx.int32),
        mx.full((2, 2), -(1 << 31), mx.int32),  # which is its own negative
    ],
    ids=["missing", "of members", "too long", "float", "too large", "too small", "least"],
)
def test_values_that_do_not_fit_are_refused(name: str, values: mx.array | None):
    case = refused_case()
    with (
        running(name, case.program) as engine,
        pytest.raises(ValueError, match="values"),
    ):
        calls(engine, case)["credit"](case.batch, values)


@pytest.mark.parametrize("name", ENGINE_NAMES)
@pytest.mark.parametrize("call", ["evaluate", "likelihoods", "logits"])
def test_what_needs_a_score_is_refused_without_one(name: str, call: str):
    case = refused_case()
    with (
        running(name, case.program) as engine,
        pytest.raises(ValueError, match="score"),
    ):
        calls(engine, case)[call](case.batch, None)
