"""One body for all engines: each equals the oracle bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Case, random_case

from eggroll import _extension, networks
from eggroll.engines import ENGINES, Engine, available, choose
from eggroll.errors import InputError
from eggroll.evolution import rules

RUNS = [name for name, why in available().items() if not why]
ISAS = _extension.load().usable_isas() if "cpu" in RUNS else []
# Every engine, and the cpu engine with every instruction set it can use here.
BACKENDS = [n for n in RUNS if n != "cpu"] + [f"cpu:{isa}" for isa in ISAS]
KERNELS = Path(__file__).parents[1] / "extensions" / "int8_gemm" / "cpu"
KNOWN = {path.stem.removeprefix("isa_") for path in KERNELS.glob("isa_*.cpp")}


def test_required_engines_run_here():
    """Portable and cpu run everywhere; a machine where one is missing fails instead of skipping."""
    assert {"portable", "cpu"} <= set(RUNS), available()


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    name, _, isa = request.param.partition(":")
    monkeypatch.setenv("EGGROLL_ISA", isa) if isa else monkeypatch.delenv("EGGROLL_ISA", False)
    return name


def check_evaluation(engine: Engine, case: Case, *, noise: bool = True):
    scores, state, _ = case.oracle(noise)
    got, after = engine.evaluate(
        engine.prepare(case.leaves), case.slices if noise else None, case.batch
    )
    np.testing.assert_array_equal(np.array(got), scores)
    np.testing.assert_array_equal(np.array(after), state)
    return scores


def check_likelihoods(engine: Engine, case: Case):
    _, state, logits = case.oracle(noise=False)
    totals, hits = oracle.likelihoods(logits, case.targets)
    got = engine.likelihoods(engine.prepare(case.leaves), case.batch)
    assert [a.dtype for a in got] == [mx.uint64, mx.int8, mx.int8]
    np.testing.assert_array_equal(np.array(got[0]), totals)
    np.testing.assert_array_equal(np.array(got[1]), hits)
    np.testing.assert_array_equal(np.array(got[2]), state)


def check_votes(engine: Engine, case: Case, fitness, *, clt: bool):
    Z = engine.votes(mx.array(fitness.astype(np.int8)), case.slices, clt)
    want = oracle.votes(case.weights, case.noise(), fitness, clt)
    assert list(Z) == [leaf.name for leaf in case.program.leaves]
    for name, z in Z.items():
        np.testing.assert_array_equal(np.array(z), want[name], err_msg=name)


shapes = st.fixed_dictionaries(
    {
        "V": st.integers(2, 40),
        "D": st.integers(1, 40),
        "L": st.integers(0, 2),
        "T": st.integers(1, 4),
        "P": st.integers(1, 3).map(lambda n: 2 * n) | st.sampled_from([32, 34]),
        "rank": st.integers(1, 4),
        "sigma_shift": st.integers(0, 8),
        "gates": st.sampled_from(["clip", "table"]),
        "extreme": st.booleans(),
        "score_bits": st.sampled_from([4, 8]),
    }
)


@pytest.mark.parametrize("backend_name", BACKENDS)
@settings(max_examples=80, deadline=None)
@given(
    shape=shapes,
    seed=st.integers(0, 2**32 - 1),
    threads=st.integers(1, 3),
    block_tokens=st.integers(1, 4),
    clt=st.booleans(),
)
def test_equals_oracle_on_random_networks(backend_name, shape, seed, threads, block_tokens, clt):
    name, _, isa = backend_name.partition(":")
    os.environ["EGGROLL_ISA"] = isa
    try:
        case = random_case(seed, **shape)
        engine = ENGINES[name](case.program, threads, block_tokens)
        scores = check_evaluation(engine, case)
        check_votes(engine, case, oracle.pair_fitness(scores), clt=clt)
        check_evaluation(engine, case, noise=False)
        check_likelihoods(engine, case)
    finally:
        del os.environ["EGGROLL_ISA"]


@pytest.mark.parametrize(
    "shape",
    [
        {"D": 64, "V": 256, "L": 1, "T": 2, "P": 2},  # power-of-two divisors
        {"D": 48, "V": 100, "L": 1, "T": 2, "P": 2},  # true divisions
        {"D": 33, "V": 9, "L": 2, "T": 3, "P": 36, "rank": 8},  # ragged everywhere
        {"D": 300, "V": 5, "L": 1, "T": 1, "P": 2, "sigma_shift": 0},  # K 1200: beyond 2^24
        {"D": 8, "V": 5000, "L": 0, "T": 1, "P": 2},  # log-sum beyond 32 bits
        {"D": 8, "V": 5000, "L": 0, "T": 1, "P": 2, "score_bits": 8},
        {"D": 24, "V": 271, "L": 1, "T": 2, "P": 34, "score_bits": 8},  # flushed once, then a rest
    ],
)
@pytest.mark.parametrize("extreme", [False, True])
def test_equals_oracle_on_chosen_networks(backend, shape, extreme):
    case = random_case(1, **shape, extreme=extreme)
    engine = ENGINES[backend](case.program, 2)
    check_votes(engine, case, oracle.pair_fitness(check_evaluation(engine, case)), clt=True)
    check_likelihoods(engine, case)


@pytest.mark.parametrize("score_bits", [4, 8])
def test_the_highest_sums_do_not_wrap(backend, score_bits):
    """All logits at the top: 2^32 is passed where a block adds up in 32 bits for too long."""
    case = random_case(1, V=9000, D=4, L=0, T=1, P=2, score_bits=score_bits)
    case.weights["head"][:] = case.weights["norm"][:] = case.weights["embedding"][:] = 127
    engine = ENGINES[backend](case.program)
    check_evaluation(engine, case, noise=False)
    check_likelihoods(engine, case)


def test_low_rank_sum_wraps_alike(backend):
    """(x B) A over rank and inputs exceeds int32 here: engines and oracle wrap modulo 2^32."""
    case = random_case(3, D=64, V=4, L=1, T=1, P=2, rank=40, sigma_shift=0)
    case.weights["embedding"][:] = 127
    case.table[:] = 127
    case.weights["layer0.norm1"][:] = 127
    x = np.full(64, 127)
    assert 127 * 40 * (127 * x).sum() > 2**31
    check_evaluation(ENGINES[backend](case.program), case)


def test_unperturbed_model_takes_any_number_of_members(backend):
    for members in (1, 3, 33):
        case = random_case(5, P=34)
        case.tokens, case.targets = case.tokens[:members], case.targets[:members]
        case.state = case.state[:members]
        engine = ENGINES[backend](case.program)
        check_evaluation(engine, case, noise=False)
        check_likelihoods(engine, case)


def test_logits_are_those_the_scores_come_from(backend):
    case = random_case(6, V=11, D=12, L=2, T=1, P=4)
    _, state, logits = case.oracle(noise=False)
    engine = ENGINES[backend](case.program)
    got, after = engine.logits(engine.prepare(case.leaves), case.batch)
    np.testing.assert_array_equal(np.array(got), logits[:, 0])
    np.testing.assert_array_equal(np.array(after), state)


def test_lazy_calls_chain(backend):
    """State fed on without evaluation between: the whole chain runs when it is asked for."""
    case = random_case(6, V=11, D=12, L=2, T=5, P=4)
    _, _, want = case.oracle(noise=False)
    engine = ENGINES[backend](case.program)
    prepared, batch = engine.prepare(case.leaves), case.batch
    state, rows = batch.state, []
    for t in range(5):
        row = batch.window(slice(t, t + 1))._replace(state=state)
        logits, state = engine.logits(prepared, row)
        rows.append(logits)
    np.testing.assert_array_equal(np.array(mx.stack(rows, axis=1)), want)


def test_cpu_engine_refuses_what_it_could_misread():
    case = random_case(7)
    engine = ENGINES["cpu"](case.program)
    packed = engine.prepare(case.leaves)
    with pytest.raises(ValueError, match="-128"):
        engine.prepare(case.leaves | {"head": mx.full((16, 8), -128, mx.int8)})
    beyond = case.slices._replace(starts=case.slices.starts + case.table.size)
    with pytest.raises(ValueError, match="beyond the table"):
        engine.evaluate(packed, beyond, case.batch)
    batch = case.batch
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.15"):
        engine.evaluate(packed, case.slices, batch._replace(tokens=batch.tokens + 16))
    with pytest.raises(ValueError, match="state_size"):
        engine.evaluate(packed, case.slices, batch._replace(state=batch.state[:, 1:]))


def test_weights_packed_for_another_instruction_set_are_refused(monkeypatch):
    case = random_case(8)
    engine = ENGINES["cpu"](case.program)
    fastest = engine.prepare(case.leaves)
    monkeypatch.setenv("EGGROLL_ISA", "generic")
    scores, _ = engine.evaluate(engine.prepare(case.leaves), case.slices, case.batch)
    np.testing.assert_array_equal(np.array(scores), case.oracle()[0])
    if _extension.load().usable_isas() == ["generic"]:
        return
    with pytest.raises(ValueError, match=r"not packed for this program and generic: pack them"):
        engine.evaluate(fastest, case.slices, case.batch)


@pytest.mark.parametrize("isa", ["mmx", *sorted(KNOWN - set(ISAS))])
def test_instruction_set_that_is_not_usable_is_refused(isa, monkeypatch):
    """One that is known here no less than one that nobody has."""
    monkeypatch.setenv("EGGROLL_ISA", isa)
    with pytest.raises(InputError) as caught:
        choose("cpu", networks.egg(4, 4, 1))
    assert (
        f"EGGROLL_ISA is '{isa}', which this build on this processor and system cannot run; "
        f"usable: {', '.join(ISAS)}."
    ) in str(caught.value)


def test_kernels_that_were_asked_for_are_not_called_the_fastest(monkeypatch):
    monkeypatch.setattr("eggroll.engines.available", lambda: {"cpu": ""})
    monkeypatch.delenv("EGGROLL_ISA", raising=False)
    assert choose("auto", networks.egg(16, 8, 1))[1] == "the fastest available here"
    monkeypatch.setenv("EGGROLL_ISA", "generic")
    assert choose("auto", networks.egg(16, 8, 1))[1] == "the generic kernels as EGGROLL_ISA asks"


def test_choice_names_what_is_available():
    program = networks.egg(4, 4, 1)
    assert choose("auto", program)[0].name == RUNS[0]
    for name in ("metal", "cuda"):
        if available()[name]:
            with pytest.raises(InputError, match=rf"'{name}' cannot run here.*cpu, portable"):
                choose(name, program)
    with pytest.raises(InputError, match=r"'quantum' is unknown.*cpu, portable"):
        choose("quantum", program)


@settings(max_examples=30, deadline=None)
@given(
    z_q4=st.integers(0, 70),
    pairs=st.integers(1, 300),
    rank=st.integers(1, 9),
    clt=st.booleans(),
    data=st.data(),
)
def test_sign_update_equals_oracle(z_q4, pairs, rank, clt, data):
    threshold = rules.vote_threshold(z_q4, pairs, rank, clt)
    near = st.integers(-2, 2).map(lambda d: threshold + d) | st.integers(-(2**31), 2**31 - 1)
    votes = np.array(data.draw(st.lists(near, min_size=6, max_size=6)), np.int64)
    Z = np.concatenate([votes, -votes]).clip(-(2**31), 2**31 - 1).reshape(3, 4)
    want = oracle.passes(Z, z_q4, pairs, rank, clt)
    np.testing.assert_array_equal((threshold <= Z) | (-threshold >= Z), want)
