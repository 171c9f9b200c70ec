"""Token credit of the Metal kernels on this CPU, as test_metal.py has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import test_metal
from conftest import Command
from emulator import FORWARD, REVERSE, SHUFFLED, EmulationError, Emulator
from networks_credit import Credited, credited_case
from test_credit import CREDITED, same
from test_metal import at_the_end

from eggroll import networks
from eggroll import program as language
from eggroll.credit import Crediting, CreditKind, CreditNoise, crediting, draw_signs
from eggroll.engines import choice
from eggroll.engines.gpu import credit as metal_credit
from eggroll.engines.gpu import credit_plan as metal_credit_plan
from eggroll.engines.gpu import plan as metal_plan
from eggroll.engines.gpu.credit_plan import credit_plans
from eggroll.engines.gpu.plan import shares
from eggroll.engines.gpu.text import Source
from eggroll.engines.metal import credit_source as metal_credit_source
from eggroll.engines.metal import engine as metal
from eggroll.engines.metal.engine import MetalEngine
from eggroll.engines.portable.engine import PortableEngine
from eggroll.noise import Noise, Slices

folder, launcher = test_metal.folder, test_metal.launcher


def check(launcher: Emulator, made: Credited, members: int = 0, *, nax: bool = False) -> None:
    at_the_end(made.case)
    engine = MetalEngine(made.case.program, launcher=launcher, members=members, nax=nax)
    same(made.run(engine), made.oracle())


# M, then a network. 0 members: as many as the engine takes by itself.
RAGGED = 32, {"V": 33, "D": 13, "L": 2, "T": 3, "P": 36, "discount": 8}
LARGE = 32, {"V": 1100, "D": 132, "T": 1, "P": 4}  # registers and logits in device memory
CASES = [
    *((estimator, *RAGGED) for estimator in CREDITED),
    ("token-credit", *LARGE),
    ("token-credit", 8, {"V": 5000, "D": 8, "L": 0, "T": 1, "P": 2}),  # EXP2 beyond 32 bits
    ("token-credit", 32, {"V": 2, "D": 1, "T": 1, "P": 2}),  # inputs of fewer than 8 elements
    # Two words of signs and more.
    ("token-credit", 0, {"V": 7, "D": 5, "T": 65, "P": 2, "discount": 15, "gates": "table"}),
    ("token-credit", 16, {"V": 17, "D": 16, "T": 4, "P": 34, "sigma_shift": 0, "extreme": True}),
    ("token-votes", 16, {"V": 11, "D": 16, "T": 5, "P": 6, "alike": False, "extreme": True}),
]


@pytest.mark.parametrize(("estimator", "members", "shape"), CASES, ids=str)
def test_equals_oracle(launcher: Emulator, estimator: str, members: int, shape: dict):
    check(launcher, credited_case(1, estimator, **shape), members)


def test_nax_equals_oracle(launcher: Emulator):
    """Rows of registers have no gaps there, which the tape must not take amiss."""
    check(launcher, credited_case(1, "token-credit", **RAGGED[1]), 16, nax=True)
    assert any("matmul2d<" in msl for msl in launcher.sources.values())


def test_cases_reach_what_they_are_for():
    """Logits for the draw in device memory, and in threadgroup memory."""

    def head(members: int, shape: dict) -> metal_credit_plan.CreditPlan:
        made = credited_case(1, "token-credit", **shape)
        return credit_plans(made.case.program, made.how, members=members)[-1]

    assert not head(*LARGE).logits_shared
    assert head(*LARGE).scratch_bytes >= head(*LARGE).logit_bytes > 0
    assert head(*RAGGED).logits_shared


BYTES = {"uint4": 16, "int": 4, "Total": 8, "char4": 4}


@pytest.mark.parametrize("nax", [False, True])
@pytest.mark.parametrize("members", metal_plan.MEMBERS)
@pytest.mark.parametrize("D", [64, 128, 256])
def test_kernels_keep_within_threadgroup_memory(D: int, members: int, nax: bool):
    """By what they declare, whatever the vocabulary."""
    for V in (256, 900, 1000, 2000, 5000):
        program = networks.egg(V, D, 1)
        for estimator in CREDITED:
            how = crediting(program, estimator, sigma_shift=2, discount=12, seq_len=8)
            for plan in credit_plans(program, how, members=members, nax=nax):
                body = metal_credit_source.credit_source(plan, 6).body
                declared = re.findall(r"EGG_SHARED\((\w+), \w+, (\d+)\)", body)
                total = sum(BYTES[kind] * int(count) for kind, count in declared)
                assert total <= metal_plan.SHARED_BYTES, (V, plan.stage)


@pytest.mark.parametrize("estimator", CREDITED)
def test_pieces_of_members_and_tokens(launcher: Emulator, monkeypatch, estimator: str):
    """However little a launch may do or tapes may take, the answer is the same."""
    made = credited_case(8, estimator, V=9, D=8, T=5, P=6)
    program, pieces, want = at_the_end(made.case).program, set(), made.oracle()
    assert metal.credit_piece(program, made.how, 6, 5) == (6, 5)
    for macs, memory in ((1, 1 << 30), (12_000, 1 << 30), (1 << 38, 1), (12_000, 3_000)):
        monkeypatch.setattr(metal, "LAUNCH_MACS", macs)
        monkeypatch.setattr(metal, "memory", lambda memory=memory: memory)
        pieces.add(metal.credit_piece(program, made.how, 6, 5))
        same(made.run(MetalEngine(program, launcher=launcher)), want)
    assert {(2, 1), (6, 2), (4, 3)} <= pieces, pieces


def rewriting() -> language.Program:
    """A state and an activation that matrices read before and after they are written."""
    net = language.Program(21, 6)
    net.stage()
    net.embed("in")
    x, s = net.stage("a.", state=True)
    n = net.norm(x, "norm")
    f = net.add_bias(net.linear(n, "first", 6), net.linear(s, "old", 6), "bias")
    net.mix(f, net.linear(x, "second", 6), s, out=s)
    net.add(x, net.linear(s, "new", 6), out=x)
    net.add(x, net.linear(net.linear(x, "wide", 10), "back", 6), out=x)
    x, _ = net.stage("b.")
    left, right = net.linear(x, "left", 7), net.linear(x, "right", 7)
    net.score(net.add_bias(left, right, "both"), "out")
    return net


@pytest.mark.parametrize("estimator", CREDITED)
def test_engines_agree_on_another_network(launcher: Emulator, estimator: str):
    """Not EGG, and once with a leaf left out."""
    net, P, T = rewriting(), 12, 7
    how = crediting(net, estimator, sigma_shift=1, discount=9, seq_len=T)
    rng = np.random.default_rng(0)
    noise = Noise([leaf.shape for leaf in net.leaves], seed=0, rank=1, shift=5, table_bits=10)
    arrays = [mx.array(rng.integers(0, 21, (P, T)).astype(np.int32)) for _ in range(2)]
    credit_noise = draw_signs(how, seed=0, epoch=0, first_pair=0, pairs=P // 2, seq_len=T)
    weights, state = networks.initial_weights(net, 0), mx.zeros((P, 6), mx.int8)
    engines = MetalEngine(net, launcher=launcher), PortableEngine(net)
    for way in (how, how._replace(kinds=(CreditKind.NONE, *how.kinds[1:]))):
        got, want = (
            engine.credit(
                engine.prepare(weights),
                noise.slices(0, 0, P // 2),
                credit_noise,
                way,
                *arrays,
                state,
            )
            for engine in engines
        )
        same(got, (want[0], want[1], {name: np.array(z) for name, z in want[2].items()}))
    # x and s are read as they were before and after: four values, and what is made of them.
    plan = credit_plans(net, how, members=8)[1]
    assert plan.tape_rows == 4 * 6 + 6 + 10
    left, right = (plan.tape for plan in credit_plans(net, how, members=8)[1:])
    assert len(set(left.values())) == 6
    assert len(set(right.values())) == 1 + (estimator == "token-votes")


def small(
    launcher: Emulator, N: int, T: int = 1, estimator: str = "token-credit"
) -> metal_credit.Credited:
    """Of a tiny network with N pairs, whose noise is all 127."""
    program = networks.egg(5, 3, 0)
    how = crediting(program, estimator, sigma_shift=0, discount=15, seq_len=T)
    how = how._replace(discounts=(15,) * len(how.discounts))
    starts = mx.zeros((len(program.leaves), N), mx.int32)
    noise = Slices(mx.full(32, 127, mx.int8), starts, 1, 4)
    credit_noise = CreditNoise(
        mx.zeros((len(program.leaves), N, 1), mx.int32), mx.zeros((N, T), mx.uint32)
    )
    work = metal_credit.Work(credit_plans(program, how, members=8))
    return metal_credit.Credited(
        launcher, work, noise, credit_noise, mx.zeros((2 * N, T), mx.int32)
    )


@pytest.mark.parametrize("whole", [True, False])
def test_votes_of_many_pairs_leave_float_in_time(launcher: Emulator, whole: bool):
    """1100 pairs whose A and u are all 127: no float holds the sum; whole and in parts."""
    N, O, K, shift = 1100, 3, 2, 5
    here = small(launcher, N)
    parts, share = (1, 1120) if whole else shares(N, 1)
    assert (parts > 1) is not whole
    # Rounding goes up from half, and what is beyond int8 is clipped.
    pair = np.array([[127 << shift, (1 << 30)], [-16, -17], [15, 16]], np.int32)
    sums = np.resize(pair, (N, K))
    (Z,) = here._launch(
        metal_credit_source.credit_vote_sources()[0],
        [here.noise.table, here.noise.starts, mx.array(sums)],
        [metal_credit.listed([(0, 0, 0, O, K, 0, 3, 0)])],
        [N, share, O * K, shift],
        [((parts, O * K), mx.int32)],
        128,
        parts,
    )
    u = np.clip((sums.astype(np.int64) + 16) >> shift, -127, 127)
    assert np.abs(127 * u[0::3].sum(axis=0)).min() > 127 * 127 * 300
    np.testing.assert_array_equal(
        np.array(Z.sum(axis=0)).reshape(O, K), np.tile(127 * u.sum(axis=0), (O, 1))
    )


def test_gains_of_the_largest_scores(launcher: Emulator):
    """Products of 64 bits, sums over all tokens, and padding lanes, in Python's integers."""
    N, T, g = 6, 40, 15
    here, rng = small(launcher, N, T, "token-votes"), np.random.default_rng(0)
    here.how = here.how._replace(credit_shift=1)
    scores = rng.choice([-32768, -1000, 0, 1, 32767], (2 * N, T))
    met = rng.choice([-(127**2) * 32764, -5, 0, 1, 127**2 * 32764], (1, T, here.lanes))
    tokens = rng.integers(0, 4, (2 * N, T))
    here.tokens, here.met = mx.array(tokens.astype(np.int32)), [mx.array(met.astype(np.int32))]
    credits, sums = map(np.array, here._weigh(mx.array(scores.astype(np.int16))))
    assert credits.shape == (3, T, here.lanes)
    beyond = 0
    for pair in range(N):
        after, total = 0, [0, 0, 0]
        for t in reversed(range(T)):
            r = 16 * int(scores[2 * pair, t] - scores[2 * pair + 1, t]) + ((g * after) >> 4)
            product = ((r + 8) >> 4) * int(met[0, t, pair])
            beyond += abs(product) >= 1 << 31
            want = [(((r + 8) >> 4) * 127) >> 4, (r + 8) >> 4, product >> 5]
            for i, c in enumerate(max(-127, min(127, c)) for c in want):
                assert credits[i, t, pair] == c
                total[i] += c
            after = r if tokens[2 * pair, t] else 0
        assert sums[:, pair].tolist() == [max(-127, min(127, (c + 1) >> 1)) for c in total]
    assert beyond > 10


@pytest.mark.parametrize(("V", "K", "entries"), [(5, 3, 700), (300, 40, 20), (1, 1, 1)])
def test_rows_add_up_whoever_names_them(launcher: Emulator, V: int, K: int, entries: int):
    """Entries without a row, rows without an entry, one with most of them, and parts."""
    rng = np.random.default_rng(V)
    rows = np.minimum(rng.integers(-1, V + 2, 2 * entries), V - 1)
    inputs = rng.integers(-127, 128, (entries, K)).astype(np.int8)
    Z = small(launcher, 2)._rows(
        metal_credit_source.row_sources()[1],
        [mx.array(inputs)],
        mx.array(rows.astype(np.int32)),
        (V, K),
        [],
    )
    want = np.zeros((V + 1, K), np.int64)
    np.add.at(want, rows, np.repeat(inputs, 2, axis=0) * np.resize([[1], [-1]], (2 * entries, 1)))
    np.testing.assert_array_equal(np.array(Z), want[:V])
    parts, share = metal_credit_plan.row_shares(2 * entries, V * K)
    assert (parts > 1) is (V == 5)
    assert (parts - 1) * share < 2 * entries <= parts * share
    assert metal_credit_plan.row_shares(1 << 20, 1 << 21)[0] == 2


RUN = (
    *("--data", "count", "--pop", "20", "--steps", "2", "--seq-len", "4", "--table-bits", "16"),
    *("--validate-every", "0", "--val-tokens", "64", "--sample-tokens", "0", "--width", "12"),
)
RUNS = [
    # The recipe scaled down, then each estimator with each rule; chunks leave a smaller last one.
    ["--recipe", "language", "--vocabulary", 256, "--chunk", 6],
    ["--estimator", "token-credit", "--vocabulary", 1000, "--layers", 2, "--gates", "table",
     "--chunk", 12, "--noise-reuse", 0, "--sigma-shift", 2, "--slab", 3],
    ["--estimator", "token-votes", "--rule", "whitened", "--vocabulary", 1000, "--layers", 2,
     "--gates", "table", "--chunk", 18],
    ["--estimator", "token-votes", "--vocabulary", 256, "--group-size", 4, "--chunk", 12],
]  # fmt: skip
PIECES = 1  # the run whose launches take few tokens


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_whole_runs_have_one_signature(
    call: Command, folder: Path, tmp_path: Path, monkeypatch, number: int
):
    """Two updates, validation and samples: portable, cpu and the emulated kernels agree."""
    launcher = Emulator(folder, orders=(FORWARD, REVERSE, SHUFFLED), alternate=True)
    if number == PIECES:
        monkeypatch.setattr(metal, "LAUNCH_MACS", 300_000)

    class Emulated(MetalEngine):
        @classmethod
        def unavailable_because(cls) -> str:
            return ""

        def __init__(self, program: language.Program, threads: int = 0, slab: int = 0) -> None:
            super().__init__(program, threads, slab, launcher=launcher)

    monkeypatch.setitem(choice.ENGINES, "metal", Emulated)
    signatures = {}
    for engine in ("portable", "cpu", "auto"):
        out = ("--engine", engine, "--out", tmp_path / engine)
        ended = call(*RUN, *RUNS[number], *out)
        signatures[engine] = ended.signature
    assert "metal (" in ended.out.splitlines()[0] + ended.out  # what auto takes
    assert len(set(signatures.values())) == 1, signatures
    assert {"egg_gains", "egg_traces", "egg_credit_votes", "egg_embedded"} <= set(launcher.launches)
    assert "egg_votes" not in launcher.launches
    steps, chunks = 2, -(-20 // RUNS[number][RUNS[number].index("--chunk") + 1])
    assert launcher.launches.count("egg_gains") == steps * chunks
    pieces = 2 if number == PIECES else 1 if number < PIECES else 0
    assert launcher.launches.count("egg_read") == steps * chunks * pieces


def faulty(folder: Path, old: str, new: str, made: Credited) -> None:
    """Runs a case with a fault in the kernels; returns only if nothing was noticed."""
    found = []

    def edit(source: Source) -> Source:
        found.append(old in source.header + source.body)
        replaced = (text.replace(old, new) for text in (source.header, source.body))
        return source._replace(**dict(zip(("header", "body"), replaced, strict=True)))

    quick = Emulator(folder, edit=edit)
    try:
        same(made.run(MetalEngine(made.case.program, launcher=quick, members=8)), made.oracle())
    finally:
        assert any(found), "the fault did not get in"


FAULTS = {
    "token-credit": {
        "the sign of the odd member": ("v.y = -v.x;", "v.y = v.x;"),
        "a sign of another token": ("noise.t / 32", "0"),
        "noise rounded down": ("rounded(mine.B[k], mine.shift)", "mine.B[k] >> mine.shift"),
        "another member's inputs": ("get(x, k, member + 2).x", "get(x, k, member + 2).y"),
        "a readout that is not clipped": ("hits[m] == 255", "false"),
        "a draw without its last logits": ("(V + 7) / 8", "V / 8"),
        "a draw from sums without their own tile": ("before + up_to", "before + up_to - w"),
        "credit across documents": ("tokens[t] != 0 ? r : 0", "r"),
        "a token more": ("back < of.T", "back <= of.T"),
        "a pair that is not there": ("if (pair < of.pairs) sums", "sums"),
        "the first of equal rows left out": ("sorted[middle] < row", "sorted[middle] <= row"),
        "the noise of another leaf": ("uint(at) + element", "element"),
    },
    "token-votes": {
        "x B of the odd member": ("sums[2 * i]", "sums[2 * i + 1]"),
    },
}


@pytest.mark.parametrize(
    ("estimator", "fault"), [(e, fault) for e, faults in FAULTS.items() for fault in faults]
)
def test_faults_are_found(folder: Path, estimator: str, fault: str):
    """The emulation is worth what it notices."""
    T = 34 if fault == "a sign of another token" else 4
    made = credited_case(3, estimator, V=20, D=6, T=T, P=6, sigma_shift=1, extreme=True)
    with pytest.raises((EmulationError, AssertionError)) as found:
        faulty(folder, *FAULTS[estimator][fault], made)
    assert "did not get in" not in str(found.value)


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"


@pytest.mark.parametrize("number", range(4))
def test_every_barrier_of_a_head_is_needed(folder: Path, number: int):
    """Without one of them, some order of the simdgroups gives something else."""
    made = credited_case(1, "token-credit", V=40, D=12, T=3, P=6, sigma_shift=1)
    head = credit_plans(made.case.program, made.how, members=8)[-1]
    body = metal_credit_source.credit_source(head, 0).body
    parts = body.split(BARRIER)
    assert len(parts) == 5
    without = BARRIER.join(
        [*parts[:number], parts[number] + parts[number + 1], *parts[number + 2 :]]
    )
    with pytest.raises((EmulationError, AssertionError)) as found:
        faulty(folder, body, without, made)
    assert "did not get in" not in str(found.value)


def test_what_a_kernel_would_misread_is_refused(launcher: Emulator):
    made = credited_case(7, "token-credit")
    how, last, signs, draws = made.how, len(made.how.kinds) - 1, made.signs, made.draws
    engine = MetalEngine(made.case.program, launcher=launcher)

    def refused(match: str, how: Crediting = how) -> None:
        credit_noise = CreditNoise(mx.array(made.signs), mx.array(made.draws))
        given = engine.prepare(made.case.leaves), made.case.slices, credit_noise, how
        with pytest.raises(ValueError, match=match):
            engine.credit(*given, *made.case.arrays)

    def changed(name: str, leaf: int, value: int) -> Crediting:
        values = list(getattr(how, name))
        values[leaf] = value
        return how._replace(**{name: tuple(values)})

    for leaf, kind in ((0, 1), (0, 4), (2, 2), (2, 4), (1, 1), (last, 2), (last, 3), (1, 9)):
        refused("does not fit its operation", changed("kinds", leaf, kind))
    refused("an embedding owns its noise", changed("owners", 0, last))
    refused(r"shifts are 0\.\.27 or silent", changed("shifts", 0, 28))
    refused(r"discounts are 0\.\.15", changed("discounts", 0, 16))
    refused("an owner is no leaf", changed("owners", 2, 99))
    refused("other outputs", changed("owners", 2, last))
    refused("one number per leaf", how._replace(shifts=how.shifts[1:]))
    made.signs = signs[:, :, :0]
    refused("signs are")
    made.signs, made.draws = signs, draws[:, :1]
    refused("draws are")
    made.draws = draws
    made.case.rank = 2
    made.case.starts[:] = 0
    made.case.table = np.tile(made.case.table, 2)
    refused("token credit has rank 1")
    assert not launcher.launches


def test_counts_in_the_documentation_are_computed():
    """docs/metal.md shows what the plans say, and the products are those of the formula."""
    text = (Path(__file__).parents[1] / "docs" / "metal.md").read_text()
    for estimator, (V, D, L, P) in (
        ("token-credit", (256, 64, 1, 1024)),
        ("token-credit", (256, 256, 6, 10240)),
        ("token-votes", (256, 64, 1, 1024)),
    ):
        program = networks.egg(V, D, L)
        how = crediting(program, estimator, sigma_shift=2, discount=12, seq_len=32)
        assert metal_credit_plan.credit_table(program, how, P) in text
        plans = credit_plans(program, how, members=8)
        nodes = estimator == "token-credit"
        assert plans[1].macs == 12 * D * D + (0 if nodes else 18 * D)
        # Wf and Wh read the same; of int8, and with token-votes an int32 for each of six.
        assert plans[1].tape_bytes == 8 * D + (0 if nodes else 24)
        after = metal_credit_plan.afterwards(plans)
        launches = len(plans) + sum(counts.launches for counts in after.values())
        assert launches == 3 * L + (6 if nodes else 7)
        assert after["votes of matrices"].per_member == (12 * D * D * L + V * D * (not nodes)) / 2
        for plan in plans:
            body = metal_credit_source.credit_source(plan, 8).body.partition("++t)")[2]
            assert body.count("threadgroup_barrier") == plan.barriers
