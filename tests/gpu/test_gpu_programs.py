"""Programs unlike EGG on both GPUs, under emulation: random ones, and what kernels got wrong."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np
import oracle_program
import pytest
from emulator import Emulator
from networks import case_of
from networks_credit import credited_of
from test_programs import (
    CREDITED,
    SEEDS,
    check,
    check_credit,
    complete_case,
    evaluate,
    marked,
    same_outputs,
    small_case,
)

from eggroll.engines.gpu import engine as gpu_engine
from eggroll.networks import egg
from eggroll.spec.noise import Noise
from eggroll.spec.program import Program
from gpu.backend import Gpu, at_the_end, engine

VARIANTS = {"metal": ("", "nax"), "cuda": ("m16n8k32", "m8n8k16", "dp4a")}


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_oracle_on_random_programs(gpu: Gpu, launcher: Emulator, seed: int):
    """With every product; what has none of its own is looked at once."""
    case, (first, *others) = small_case(seed, rank=1 + seed % 2), VARIANTS[gpu.name]
    members = (8, 16, 32)[seed % 3]
    check(engine(gpu, case.program, launcher, members, first), case)
    for variant in others:
        here = engine(gpu, case.program, launcher, max(members, 16), variant)
        prepared = here.prepare(case.leaves)
        got = here.outputs(prepared, case.slices, case.batch)
        member = partial(oracle_program.Member, case.program, case.weights, case.noise())
        args = case.program, case.tokens, case.state, case.rows
        same_outputs(got, oracle_program.outputs(*args, member))
        if case.program.scored:
            scores, after = here.evaluate(prepared, case.slices, case.batch)
            want = evaluate(case, case.noise())
            np.testing.assert_array_equal(np.array(scores), want[0])
            np.testing.assert_array_equal(np.array(after), want[1])


def test_has_every_operation(gpu: Gpu, launcher: Emulator):
    case = complete_case()
    check(engine(gpu, case.program, launcher, 8), case)


@pytest.mark.parametrize("estimator", CREDITED)
def test_credits_random_programs(gpu: Gpu, launcher: Emulator, estimator: str):
    seed = SEEDS[estimator == "token-credit"]
    rng = np.random.default_rng(seed)
    credited = credited_of(small_case(seed), rng, estimator, valued=True)
    check_credit(engine(gpu, credited.case.program, launcher, 8), credited)


@pytest.mark.parametrize("estimator", CREDITED)
def test_credits_every_operation(gpu: Gpu, launcher: Emulator, estimator: str):
    credited = credited_of(complete_case(), np.random.default_rng(0), estimator)
    check_credit(engine(gpu, credited.case.program, launcher, 8), credited)


def unscored() -> Program:
    """Two stages, the first with outputs of its own; a last one that leaves credit nothing."""
    net = Program(width=5)
    x, s = net.stage("a.", state=True)
    rows = net.features("rows", 40, 7, active=3, lists=2, shift=2)
    net.mix(net.linear(net.concat(rows, net.input(6)), "in", 5), s, s, out=s)
    net.sums(s, "early", 3)
    net.relu(net.bias(s, "bias"), out=x)
    x, _ = net.stage("b.")
    net.output(net.lookup(x, net.table("not a name", [-v // 2 for v in range(-127, 128)])))
    return net


@pytest.mark.parametrize("estimator", CREDITED)
def test_rows_and_outputs_in_launches_of_some_members_and_tokens(
    gpu: Gpu, launcher: Emulator, monkeypatch, estimator: str
):
    rng = np.random.default_rng(1)
    case = at_the_end(marked(case_of(unscored(), rng, T=35, P=6, sigma_shift=1), rng))
    credited = credited_of(case, rng, estimator)
    here, sizes = engine(gpu, case.program, launcher), set()
    for macs, memory in ((1 << 30, 1 << 30), (5_000, 1 << 30), (1 << 30, 16_000)):
        monkeypatch.setattr(here.pace, "macs", macs)
        monkeypatch.setattr(gpu.kind, "memory", lambda _, memory=memory: memory)
        sizes.add(here.launch_size(6, 35, 1, puts_out=True))
        sizes.add(here.credit_launch_size(credited.crediting, 6, 35))
        check_credit(here, credited)
    assert len(sizes) >= 3, sizes


def test_rows_that_a_kernel_would_misread_are_refused(gpu: Gpu, launcher: Emulator):
    case = case_of(unscored(), np.random.default_rng(0))
    credited = credited_of(case, np.random.default_rng(0), "token-credit")
    here, batch = engine(gpu, case.program, launcher), case.batch
    prepared = here.prepare(case.leaves)
    for match, wrong in (
        ("inputs is missing", batch._replace(inputs=None)),
        ("inputs is int8", batch._replace(inputs=batch.inputs[:, 1:])),
        ("features is int8", batch._replace(features=batch.features.astype(mx.int8))),
        ("features of 'a.rows' are", batch._replace(features=batch.features + 40)),
    ):
        with pytest.raises(ValueError, match=match):
            here.outputs(prepared, case.slices, wrong)
    with pytest.raises(ValueError, match="no score"):
        here.evaluate(prepared, case.slices, batch)
    with pytest.raises(ValueError, match="no score"):
        here.logits(prepared, batch.window(slice(1)))
    with pytest.raises(ValueError, match="noise and credit_noise"):
        here.outputs(prepared, None, batch, crediting=credited.crediting)
    for match, values in (("values is missing", None), ("scale them down", 1 << 20)):
        credited.values = None if values is None else np.full((2, 3), values, np.int32)
        with pytest.raises(ValueError, match=match):
            credited.run(here)
    assert {*launcher.launches} <= {"egg_packing"}


def test_tokens_beyond_the_vocabulary_are_refused(gpu: Gpu, launcher: Emulator, monkeypatch):
    """Whether they are repeated for the GPU, where they are looked at before, or not."""
    case = small_case(SEEDS[0])
    here, V, (P, T) = engine(gpu, case.program, launcher), case.program.vocabulary, case.batch.size
    prepared, rows = here.prepare(case.leaves), np.full((P // 2, T), V - 1, np.int32)
    launches = len(launcher.launches)
    for wrong in (V, -1, 1 << 30):
        rows[-1, -1] = wrong
        tokens = here.repeated(rows, 2)
        np.testing.assert_array_equal(np.array(tokens), np.repeat(rows, 2, axis=0))
        with pytest.raises(ValueError, match=f"tokens must be in 0..{V - 1}"):
            here.outputs(prepared, case.slices, case.batch._replace(tokens=tokens, targets=None))
    assert len(launcher.launches) == launches
    rows[-1, -1] = 0
    tokens = here.repeated(rows, 2)
    assert tokens.dtype == mx.int32
    np.testing.assert_array_equal(np.array(tokens), np.repeat(rows, 2, axis=0))
    looked: list[object] = []
    monkeypatch.setattr(gpu_engine, "check_ids", lambda name, ids, V: looked.append(ids))
    batch = case.batch
    gpu_engine.check_tokens(case.program, batch._replace(tokens=tokens, targets=None))
    assert looked == []  # what was looked at is not read back
    gpu_engine.check_tokens(case.program, batch._replace(targets=tokens))
    assert [*map(id, looked)] == [id(batch.tokens)]


@pytest.mark.parametrize("V", [2, 256, 257, 65_536])
def test_tokens_come_in_few_bytes(gpu: Gpu, launcher: Emulator, V: int):
    here = engine(gpu, egg(V, 4, 0), launcher)
    rows = np.array([[0, V - 1, V // 2], [V - 1, 0, 0]], np.int32)
    for given in (rows, np.asfortranarray(rows), rows[:, ::2], rows.astype(np.int64)):
        found = here.repeated(given, 3)
        np.testing.assert_array_equal(np.array(found), np.repeat(given, 3, axis=0))
        assert found.dtype == mx.array(given).dtype


def test_weights_go_by_their_names(gpu: Gpu, launcher: Emulator):
    """Whatever the order of the leaves they are given in."""
    case = complete_case()
    here = engine(gpu, case.program, launcher)
    names = sorted(case.leaves, reverse=True)
    assert names != list(case.leaves)
    others = {name: case.leaves[name] for name in names} | {"of nobody": mx.zeros(3, mx.int8)}
    for one, other in zip(here.prepare(case.leaves), here.prepare(others), strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("first", [0, 77, (1 << 31) - 5, (1 << 40) + 3])
def test_slices_begin_where_the_host_says(gpu: Gpu, launcher: Emulator, first: int):
    case = complete_case()
    shapes = [leaf.shape for leaf in case.program.leaves]
    here = engine(gpu, case.program, launcher)
    for seed, rank, bits in ((3, 1, 16), (-(1 << 70), 4, 24)):
        noise = Noise(shapes, seed=seed, rank=rank, shift=6, table_bits=bits)
        for epoch in (0, 1 << 33):
            starts = here.starts(noise, epoch, first, 9)
            expected = noise.starts(epoch, first, 9)
            assert starts.dtype == expected.dtype
            np.testing.assert_array_equal(np.array(starts), np.array(expected))
    assert {*launcher.launches} == {"egg_drawing"}


def padded(D: int) -> Program:
    """What a norm leaves beside its result is looked up and passed on; a result nobody reads."""
    net = Program(9, D)
    x, _ = net.stage()
    net.embed("embedding")
    n = net.norm(net.lookup(x, "tanh"), "norm")
    net.add(n, n, out=x)
    x, _ = net.stage("b.")
    net.norm(x, "unread")
    net.score(net.lookup(net.norm(x, "norm"), "sigmoid"), "head")
    return net


@pytest.mark.parametrize("D", [3, 12])
def test_what_pads_a_register_is_no_index_and_no_result(gpu: Gpu, launcher: Emulator, D: int):
    case = case_of(padded(D), np.random.default_rng(D))
    check(engine(gpu, case.program, launcher, 8), case)


def unread(D: int) -> Program:
    """Results that nobody reads, and rows that are passed on as they came, with what pads them."""
    net = Program(9, D)
    x, _ = net.stage()
    net.relu(net.input(D), out=x)
    x, _ = net.stage("b.")
    net.embed("in")
    net.relu(net.features("rows", 20, D, active=3, lists=1, shift=1), out=x)
    x, _ = net.stage("c.")
    net.norm(x, "unread")
    net.input(D)
    net.features("lists", 20, 5, active=3, lists=2, shift=1)
    net.add(net.linear(x, "matrix", 7), net.linear(x, "other", 7))
    net.score(x, "head")
    net.norm(net.norm(x, "late"), "later")
    return net


@pytest.mark.parametrize("D", [12, 25])
def test_results_that_nobody_reads(gpu: Gpu, launcher: Emulator, D: int):
    """Their leaves have noise and votes as others; a norm of them once did not compile."""
    case = at_the_end(case_of(unread(D), np.random.default_rng(D), rank=1 + D % 2))
    first, *others = VARIANTS[gpu.name]
    check(engine(gpu, case.program, launcher, 8, first), case)
    want = evaluate(case, case.noise())[:2]
    for variant in others if D == 12 else ():
        here = engine(gpu, case.program, launcher, 16, variant)
        got = here.evaluate(here.prepare(case.leaves), case.slices, case.batch)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.array(a), b)


def test_credits_what_nobody_reads(gpu: Gpu, launcher: Emulator):
    case = case_of(unread(12), np.random.default_rng(2))
    for estimator in CREDITED:
        credited = credited_of(case, np.random.default_rng(0), estimator)
        check_credit(engine(gpu, case.program, launcher, 8), credited)


def in_place() -> Program:
    """Operations in place after others in the same tiles, and a write after the last read."""
    net = Program(9, 24)
    x, _ = net.stage()
    net.embed("embedding")
    net.mix(x, x, x, out=x)
    net.add(x, x, out=x)
    early = net.linear(x, "early", 24)
    late = net.linear(early, "late", 24)
    wide = net.linear(late, "wide", 24)
    net.add(late, late, out=early)  # nobody reads it any more
    net.add(net.linear(wide, "back", 24), wide, out=x)
    net.score(x, "head")
    return net


def test_registers_are_written_in_place(gpu: Gpu, launcher: Emulator):
    case = case_of(in_place(), np.random.default_rng(1))
    check(engine(gpu, case.program, launcher, 8), case)


def wide() -> Program:
    """Rows that no threadgroup memory holds, lists longer than a simdgroup, odd sizes."""
    net = Program(7, 36)
    x, s = net.stage("a.", state=True)
    far, near = net.features("far", 90, 36, active=40, lists=3, shift=1), net.features("b", 30, 9)
    joined = net.norm(net.concat(near, net.input(250), far), "norm")
    net.output(joined, "joined")
    net.mix(net.linear(joined, "in", 36), s, s, out=s)
    net.bias(net.relu(net.concat(net.linear(s, "p", 5), net.linear(joined, "q", 31))), "r", out=x)
    net.sums(joined, "many", 70)
    x, _ = net.stage("b.")
    again = net.input(250)
    net.output(net.concat(x, x), "twice")
    net.sums(net.linear(net.concat(x, again), "wider", 130), "few", 3)
    return net


def test_wide_rows_in_device_memory(gpu: Gpu, launcher: Emulator):
    rng = np.random.default_rng(4)
    case = marked(case_of(wide(), rng, T=2, P=34, sigma_shift=1), rng)
    plans = gpu.plans(case.program, 32, 0, cramped=True)
    assert not all(place.shared for plan in plans for place in plan.places.values())
    here = engine(gpu, case.program, launcher, 32, cramped=True)
    check_credit(here, credited_of(at_the_end(case), rng, "token-credit"))
