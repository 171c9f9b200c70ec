"""Random programs: every engine equals the oracle that runs any program, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import mlx.core as mx
import networks_random
import numpy as np
import oracle
import oracle_backward
import oracle_program
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Case, case_of, random_case
from networks_credit import Credited, credited_case, credited_of
from networks_random import random_program, seeded_program
from test_engines import BACKENDS, ISAS

from eggroll import _extension
from eggroll.baseline import twin as float_twin
from eggroll.baseline import twin_numpy as float_numpy
from eggroll.engines import ENGINES, Engine
from eggroll.engines.gpu import stage as gpu_stage
from eggroll.engines.gpu.backward_kernels import ELEMENT_STEPS, LONE_STEPS
from eggroll.engines.portable import operations as portable
from eggroll.engines.portable.backward import BACKWARD_OPERATIONS
from eggroll.engines.portable.engine import PortableEngine
from eggroll.networks import NETWORKS, NetworkName
from eggroll.spec import credit, fixed_point
from eggroll.spec.program import FORWARD_ONLY, OPERATIONS, Program

CREDITED = ("token-votes", "token-credit")
SEEDS = (33, 28, 8)  # of programs that the emulated kernels of tests/gpu run, too
KERNELS = Path(__file__).parents[1] / "extensions" / "int8_gemm"

programs = st.composite(lambda draw: random_program(lambda options: draw(st.sampled_from(options))))
sizes = st.fixed_dictionaries(
    {
        "T": st.integers(1, 4),
        "P": st.integers(1, 3).map(lambda n: 2 * n) | st.just(34),
        "rank": st.integers(1, 4),
        "sigma_shift": st.integers(0, 8),
        "extreme": st.booleans(),
        "score_bits": st.sampled_from([4, 8]),
    }
)
seeds = st.integers(0, 2**32 - 1)


def marked(case: Case, rng: np.random.Generator) -> Case:
    """The case with a document mark at every fourth token or so."""
    case.tokens[rng.random(case.tokens.shape) < 0.25] = 0
    return case


def evaluate(case: Case, noise: oracle.Noise | None = None, tokens: int | None = None):
    """Scores, states and logits of the first tokens, by the oracle."""
    read, targets, rows = (
        case.tokens[:, :tokens],
        case.targets[:, :tokens],
        [shown if shown is None else shown[:, :tokens] for shown in case.rows],
    )
    return oracle_program.evaluate(
        case.program, case.weights, read, targets, case.state, noise, rows
    )


def same_outputs(got, want) -> None:
    """Outputs by name, in declared order, and states."""
    assert list(got[0]) == list(want[0])
    for name, values in want[0].items():
        np.testing.assert_array_equal(np.array(got[0][name]), values, err_msg=name)
    np.testing.assert_array_equal(np.array(got[1]), want[1])


def check_outputs(engine: Engine, prepared, case: Case) -> None:
    """What the caller has of the members and of the unperturbed model is the oracle's."""
    for noise, slices in ((case.noise(), case.slices), (None, None)):
        got = engine.outputs(prepared, slices, case.batch)
        for out in case.program.outputs:
            assert got[0][out.name].dtype == out.dtype
        member = partial(oracle_program.Member, case.program, case.weights, noise)
        args = case.program, case.tokens, case.state, case.rows
        same_outputs(got, oracle_program.outputs(*args, member))


def check_scores(engine: Engine, prepared, case: Case) -> None:
    """Scores and states are the oracle's, and so is what the unperturbed model says."""
    scores, state, _ = evaluate(case, case.noise())
    got, after = engine.evaluate(prepared, case.slices, case.batch)
    np.testing.assert_array_equal(np.array(got), scores)
    np.testing.assert_array_equal(np.array(after), state)
    _, state, logits = evaluate(case)
    got = engine.likelihoods(prepared, case.batch)
    for a, b in zip(got, (*oracle.likelihoods(logits, case.targets), state), strict=True):
        np.testing.assert_array_equal(np.array(a), b)
    _, state, logits = evaluate(case, tokens=1)
    got, after = engine.logits(prepared, case.batch.window(slice(1)))
    np.testing.assert_array_equal(np.array(got), logits[:, 0])
    np.testing.assert_array_equal(np.array(after), state)


def check(engine: Engine, case: Case) -> None:
    """Scores, outputs and votes are the oracle's."""
    prepared = engine.prepare(case.leaves)
    check_outputs(engine, prepared, case)
    if case.program.scored:
        check_scores(engine, prepared, case)
    fitness = np.arange(len(case.tokens) // 2) % 3 - 1
    want = oracle.votes(case.weights, case.noise(), fitness)
    Z = engine.votes(mx.array(fitness.astype(np.int8)), case.slices, True)
    assert list(Z) == list(want)
    for name, z in Z.items():
        np.testing.assert_array_equal(np.array(z), want[name], err_msg=name)


@contextlib.contextmanager
def running(backend: str, program: Program, *options: int) -> Iterator[Engine]:
    """An engine; `cpu:ISA` takes its instruction set from the environment, at every call."""
    name, _, isa = backend.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGGROLL_ISA", isa)
        yield ENGINES[name](program, *options)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(program=programs(), size=sizes, seed=seeds, block_tokens=st.integers(1, 4))
def test_equals_oracle_on_random_programs(backend, program, size, seed, block_tokens):
    rng = np.random.default_rng(seed)
    case = marked(case_of(program, rng, **size), rng)
    with running(backend, program, 2, block_tokens) as engine:
        check(engine, case)


def same_credit(got, want) -> None:
    """Scores, states and the votes of every leaf."""
    for a, b in zip(got[:2], want[:2], strict=True):
        np.testing.assert_array_equal(np.array(a), np.array(b))
    assert list(got[2]) == list(want[2])
    for name, z in want[2].items():
        np.testing.assert_array_equal(np.array(got[2][name]), np.array(z), err_msg=name)


def check_credit(engine: Engine, credited: Credited) -> None:
    """Votes are the oracle's, and so is what members with the credited noise give."""
    same_credit(credited.run(engine), credited.oracle_of_any())
    same_outputs(credited.outputs(engine), credited.oracle_outputs())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("estimator", CREDITED)
@settings(max_examples=20, deadline=None)
@given(
    program=programs(),
    size=sizes,
    seed=seeds,
    discount=st.integers(0, 15),
    alike=st.booleans(),
    valued=st.booleans(),
)
def test_credit_equals_oracle_on_random_programs(
    backend, estimator, program, size, seed, discount, alike, valued
):
    rng = np.random.default_rng(seed)
    case = case_of(program, rng, **size | {"rank": 1})
    credited = credited_of(case, rng, estimator, discount=discount, alike=alike, valued=valued)
    with running(backend, program, 2) as engine:
        check_credit(engine, credited)


def small_case(seed: int, rank: int = 1) -> Case:
    """A seeded program in which document marks and both members of some pairs are seen."""
    rng = np.random.default_rng(seed)
    case = case_of(
        seeded_program(seed), rng, T=3, P=6, rank=rank, sigma_shift=2, score_bits=4 << seed % 2
    )
    return marked(case, rng)


def complete_case() -> Case:
    """A program of every operation."""
    rng = np.random.default_rng(0)
    return marked(case_of(networks_random.every_operation(), rng, T=3, P=4, sigma_shift=2), rng)


@pytest.mark.parametrize("gates", ["clip", "table"])
@pytest.mark.parametrize("noise", [True, False])
def test_the_oracles_agree_on_egg(gates: str, noise: bool):
    """One runs the declaration, the other has the network written out by hand."""
    case = random_case(3, V=20, D=9, L=2, T=4, P=4, rank=2, sigma_shift=1, gates=gates)
    got = evaluate(case, case.noise() if noise else None)
    for a, b in zip(got, case.oracle(noise), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("gates", ["clip", "table"])
@pytest.mark.parametrize("estimator", CREDITED)
def test_the_oracles_of_credit_agree_on_egg(gates: str, estimator: str):
    """One asks the declaration what a leaf does, the other knows the leaves' names."""
    shape = {"V": 20, "D": 9, "L": 2, "T": 6, "P": 4, "sigma_shift": 1, "gates": gates}
    credited = credited_case(3, estimator, **shape)
    same_credit(credited.oracle_of_any(), credited.oracle())


@pytest.mark.parametrize("name", get_args(NetworkName))
def test_networks_by_name_run_everywhere(name: str):
    for gates in ("clip", "table"):
        program = NETWORKS[name](11, 6, 2, gates)
        program.check()
        case = case_of(program, np.random.default_rng(1), T=3, P=4, rank=2)
        for backend in BACKENDS:
            with running(backend, program) as engine:
                check(engine, case)


def with_leaf() -> set[str]:
    """Operations that have a leaf."""
    (stage,) = networks_random.every_operation().stages
    return {op.kind for op in stage.ops if op.leaf >= 0}


def kernel_files(*folders: str) -> set[str]:
    return {path.stem for folder in folders for path in (KERNELS / folder).iterdir()}


# Where an operation needs a row: place -> names that have one. float_numpy reads embed's tokens and
# lookup's table where it runs the program.
ROWS = {
    "portable engine": set(portable.OPERATIONS),
    "cpu engine": set(_extension.load().operations()) if ISAS else set(OPERATIONS),
    "GPU engines": set(gpu_stage.OPERATIONS),
    "metal kernels": kernel_files("gpu", "metal"),
    "cuda kernels": kernel_files("gpu", "cuda"),
    "random programs": set(networks_random.EMIT),
    "oracle": set(oracle_program.OPERATIONS),
    "float twin": set(float_twin.OPERATIONS),
    "float twin in NumPy": {*float_numpy.OPERATIONS, "embed", "lookup"},
    "token credit": (set(OPERATIONS) - with_leaf()) | set(credit.OF),
    "credit carried back on GPUs": {*ELEMENT_STEPS, *LONE_STEPS, "output", "sums", *FORWARD_ONLY},
    "credit carried back": {*BACKWARD_OPERATIONS, "score", "output", "sums", *FORWARD_ONLY},
    "oracle of credit carried back": {*oracle_backward.SLOPES, *FORWARD_ONLY},
}


@pytest.mark.parametrize("place", ROWS)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_every_operation_has_its_row(place: str, kind: str):
    assert kind in ROWS[place], f"{kind} has no row in the {place}: see CONTRIBUTING.md"


@pytest.mark.parametrize("place", [name for name in ROWS if "kernels" not in name])
def test_no_row_is_left_over(place: str):
    assert ROWS[place] <= set(OPERATIONS)


def test_every_table_has_its_row():
    tables = set(fixed_point.gate_tables())
    assert tables == set(oracle_program.TABLES) == set(float_twin.TABLE_FUNCTIONS)
    assert tables == set(float_numpy.LOOKUPS) == set(networks_random.TABLES)


@pytest.mark.parametrize("kind", OPERATIONS)
def test_every_operation_changes_what_is_compared(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Zeros in its place are seen, in a program that the emulated kernels run, too."""
    right = portable.OPERATIONS[kind]

    def zeros(run, op):
        return mx.zeros_like(right(run, op))

    case = complete_case()
    check(PortableEngine(case.program), case)
    monkeypatch.setitem(portable.OPERATIONS, kind, zeros)
    with pytest.raises(AssertionError):
        check(PortableEngine(case.program), case)
