"""Token credit of both GPUs' kernels on this CPU, as test_gpu.py has the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import Command
from emulator import FORWARD, REVERSE, SHUFFLED, Emulator
from networks_credit import credited_case
from test_credit import CREDITED, same

from eggroll import networks
from eggroll.engines.gpu import launch as pace
from eggroll.engines.gpu.credit import CreditPlan, CreditRun, CreditWork, as_int32
from eggroll.engines.gpu.votes import credit_kernels, launch_counts, row_shares, split_terms
from eggroll.engines.portable.engine import PortableEngine
from eggroll.spec import credit
from eggroll.spec import program as language
from eggroll.spec.credit import Crediting, CreditKind, CreditNoise, draw_signs
from eggroll.spec.noise import Noise, Slices
from eggroll.spec.program import Batch
from gpu.backend import Gpu, at_the_end, check_credit, engine
from gpu.backend import install as install_gpu

ALL = -1  # members of the largest threadgroup
# Estimator, M, CUDA's product, then a network. 0 members: as many as the engine takes by itself.
RAGGED = 32, "m16n8k32", {"V": 33, "D": 13, "L": 2, "T": 3, "P": 36, "discount": 8}
LARGE = 32, "m16n8k32", {"V": 1100, "D": 132, "T": 1, "P": 4}  # much in device memory
CASES = [
    *((estimator, *RAGGED) for estimator in CREDITED),
    ("token-credit", ALL, "m8n8k16", {"V": 20, "D": 9, "T": 2}),
    ("token-credit", *LARGE),
    # Scores in 1/256 bit, whose sums need 64 bits from 257 tokens on.
    ("token-credit", 16, "m16n8k32", {"V": 257, "D": 9, "T": 3, "P": 18, "score_bits": 8}),
    ("token-votes", 8, "m16n8k32", {"V": 20, "D": 8, "T": 5, "P": 6, "score_bits": 8}),
    ("token-credit", 8, "dp4a", {"V": 5000, "D": 8, "L": 0, "T": 1, "P": 2}),  # EXP2: 64 bits
    ("token-credit", 32, "m16n8k32", {"V": 2, "D": 1, "T": 1, "P": 2}),  # next to nothing
    # Two words of signs and more.
    ("token-credit", 0, "m16n8k32",
     {"V": 7, "D": 5, "T": 65, "P": 2, "discount": 15, "gates": "table"}),
    ("token-credit", 16, "m8n8k16",
     {"V": 17, "D": 16, "T": 4, "P": 34, "sigma_shift": 0, "extreme": True}),
    ("token-votes", 16, "dp4a",
     {"V": 11, "D": 16, "T": 5, "P": 6, "alike": False, "extreme": True}),
]  # fmt: skip


@pytest.mark.parametrize(("estimator", "members", "product", "shape"), CASES, ids=str)
def test_equals_oracle(
    gpu: Gpu, launcher: Emulator, estimator: str, members: int, product: str, shape: dict
):
    members = gpu.largest if members == ALL else members
    made = credited_case(1, estimator, **{"P": members + 2} | shape)
    program = at_the_end(made.case).program
    variant, cramped = product if gpu.name == "cuda" else "", shape == LARGE[-1]
    check_credit(engine(gpu, program, launcher, members, variant, cramped), made)


def test_cases_reach_what_they_are_for(gpu: Gpu):
    """Logits for the draw in device memory, and in threadgroup memory."""

    def head(members: int, _: str, shape: dict, cramped: bool = False) -> CreditPlan:
        made = credited_case(1, "token-credit", **shape)
        return gpu.credit_plans(made.case.program, made.crediting, members, cramped)[-1]

    large = head(*LARGE, cramped=True)
    assert not large.logits_shared
    assert large.scratch_bytes >= large.logit_bytes > 0
    assert head(*RAGGED).logits_shared


@pytest.mark.parametrize("estimator", CREDITED)
def test_launches_of_some_members_and_tokens(
    gpu: Gpu, launcher: Emulator, monkeypatch, estimator: str
):
    """However little a launch may do or tapes may take, the answer is the same."""
    case = credited_case(8, estimator, V=9, D=8, T=5, P=6)
    program, want = at_the_end(case.case).program, case.oracle()
    made = engine(gpu, program, launcher)
    most, sizes = made.pace.macs, set()
    assert made.credit_launch_size(case.crediting, 6, 5) == (6, 5)
    for macs, memory in ((1, 1 << 30), (12_000, 1 << 30), (most, 1), (12_000, 3_000)):
        monkeypatch.setattr(made.pace, "macs", macs)
        monkeypatch.setattr(gpu.kind, "memory", lambda _, memory=memory: memory)
        sizes.add(made.credit_launch_size(case.crediting, 6, 5))
        same(case.run(made), want)
    assert len(sizes) >= 3, sizes
    assert {(2, 1), (6, 2)} <= sizes, sizes


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
def test_engines_agree_on_another_network(gpu: Gpu, launcher: Emulator, estimator: str):
    """Not EGG, and once with a leaf left out."""
    net, P, T = rewriting(), 12, 7
    crediting = credit.crediting(
        net, nodes=estimator == "token-credit", sigma_shift=1, discount=9, seq_len=T
    )
    rng = np.random.default_rng(0)
    noise = Noise([leaf.shape for leaf in net.leaves], seed=0, rank=1, shift=5, table_bits=10)
    arrays = [mx.array(rng.integers(0, 21, (P, T)).astype(np.int32)) for _ in range(2)]
    signs = draw_signs(crediting, seed=0, step=0, first_pair=0, pairs=P // 2, seq_len=T)
    weights, batch = networks.initial_weights(net, 0), Batch(*arrays, mx.zeros((P, 6), mx.int8))
    slices = noise.slices(0, 0, P // 2)
    for way in (crediting, crediting._replace(kinds=(CreditKind.NONE, *crediting.kinds[1:]))):
        got, want = (
            each.credit(each.prepare(weights), slices, batch, signs, way)
            for each in (engine(gpu, net, launcher), PortableEngine(net))
        )
        same(got, (want[0], want[1], {name: np.array(z) for name, z in want[2].items()}))
    # x and s are read as they were before and after: four values, and what is made of them; on
    # CUDA each in whole words.
    plans = gpu.credit_plans(net, crediting, 8)
    assert plans[1].tape_rows == (4 * 6 + 6 + 10 if gpu.name == "metal" else 4 * 8 + 8 + 12)
    left, right = (plan.tape for plan in plans[1:])
    assert len(set(left.values())) == 6
    assert len(set(right.values())) == 1 + (estimator == "token-votes")


def small(
    gpu: Gpu, launcher: Emulator, N: int, T: int = 1, estimator: str = "token-credit"
) -> CreditRun:
    """A run of a tiny network with N pairs, whose noise is all 127."""
    program = networks.egg(5, 3, 0)
    crediting = credit.crediting(
        program, nodes=estimator == "token-credit", sigma_shift=0, discount=15, seq_len=T
    )
    crediting = crediting._replace(discounts=(15,) * len(crediting.discounts))
    starts = mx.zeros((len(program.leaves), N), mx.int32)
    noise = Slices(mx.full(32, 127, mx.int8), starts, 1, 4)
    signs = mx.zeros((len(program.leaves), N, 1), mx.int32)
    credit_noise = CreditNoise(signs, mx.zeros((N, T), mx.uint32))
    work = CreditWork(gpu.credit_plans(program, crediting, 8), credit_kernels(gpu.dialect), 4)
    return CreditRun(launcher, work, noise, credit_noise, Batch(mx.zeros((2 * N, T), mx.int32)))


@pytest.mark.parametrize("whole", [True, False])
def test_votes_of_many_pairs_leave_float_in_time(gpu: Gpu, launcher: Emulator, whole: bool):
    """1100 pairs whose A and u are all 127: no float holds the sum; whole and in parts."""
    N, O, K, shift = 1100, 3, 2, 5
    here = small(gpu, launcher, N)
    parts, terms = (1, 1120) if whole else split_terms(N, 1, 4)
    assert (parts > 1) is not whole
    # Rounding goes up from half, and what is beyond int8 is clipped.
    pair = np.array([[127 << shift, (1 << 30)], [-16, -17], [15, 16]], np.int32)
    sums = np.resize(pair, (N, K))
    (Z,) = launch_counts(
        launcher,
        here.work.kernels.matrices,
        [here.noise.table, here.noise.starts, mx.array(sums), as_int32([(0, 0, 0, O, K, 0, 3, 0)])],
        [N, terms, O * K, shift],
        [((parts, O * K), mx.int32)],
        128,
        parts,
    )
    u = np.clip((sums.astype(np.int64) + 16) >> shift, -127, 127)
    assert np.abs(127 * u[0::3].sum(axis=0)).min() > 127 * 127 * 300
    np.testing.assert_array_equal(
        np.array(Z.sum(axis=0)).reshape(O, K), np.tile(127 * u.sum(axis=0), (O, 1))
    )


def test_credits_of_the_largest_scores(gpu: Gpu, launcher: Emulator):
    """Products of 64 bits, sums over all tokens, and padding lanes, in Python's integers."""
    N, T, g = 6, 40, 15
    here, rng = small(gpu, launcher, N, T, "token-votes"), np.random.default_rng(0)
    here.crediting = here.crediting._replace(credit_shift=1)
    scores = rng.choice([-32768, -1000, 0, 1, 32767], (2 * N, T))
    products = rng.choice([-(127**2) * 32764, -5, 0, 1, 127**2 * 32764], (1, T, here.lanes))
    tokens = rng.integers(0, 4, (2 * N, T))
    here.tokens = mx.array(tokens.astype(np.int32))
    here.projections = [mx.array(products.astype(np.int32))]
    credits, sums = map(np.array, here._weigh(mx.array(scores.astype(np.int16))))
    assert credits.shape == (3, T, here.lanes)
    beyond = 0
    for pair in range(N):
        after, total = 0, [0, 0, 0]
        for t in reversed(range(T)):
            r = 16 * int(scores[2 * pair, t] - scores[2 * pair + 1, t]) + ((g * after) >> 4)
            product = ((r + 8) >> 4) * int(products[0, t, pair])
            beyond += abs(product) >= 1 << 31
            want = [(((r + 8) >> 4) * 127) >> 4, (r + 8) >> 4, product >> 5]
            for i, c in enumerate(max(-127, min(127, c)) for c in want):
                assert credits[i, t, pair] == c
                total[i] += c
            after = r if tokens[2 * pair, t] else 0
        assert sums[:, pair].tolist() == [max(-127, min(127, (c + 1) >> 1)) for c in total]
    assert beyond > 10


@pytest.mark.parametrize(("V", "K", "entries"), [(5, 3, 700), (300, 40, 20), (1, 1, 1)])
def test_rows_add_up_whoever_names_them(gpu: Gpu, launcher: Emulator, V: int, K: int, entries: int):
    """Entries without a row, rows without an entry, one with most of them, and parts."""
    rng = np.random.default_rng(V)
    rows = np.minimum(rng.integers(-1, V + 2, 2 * entries), V - 1)
    inputs = rng.integers(-127, 128, (entries, K)).astype(np.int8)
    here, named = small(gpu, launcher, 2), mx.array(rows.astype(np.int32))
    Z = here._sum_rows(here.work.kernels.read, [mx.array(inputs)], named, (V, K), [])
    want = np.zeros((V + 1, K), np.int64)
    np.add.at(want, rows, np.repeat(inputs, 2, axis=0) * np.resize([[1], [-1]], (2 * entries, 1)))
    np.testing.assert_array_equal(np.array(Z), want[:V])
    parts, terms = row_shares(2 * entries, V * K)
    assert (parts > 1) is (V == 5)
    assert (parts - 1) * terms < 2 * entries <= parts * terms
    assert row_shares(1 << 20, 1 << 21)[0] == 2
    assert row_shares(1 << 26, 32)[0] <= 65535  # along a grid's second axis


RUN = (
    *("--data", "count", "--pop", "20", "--steps", "2", "--seq-len", "4", "--table-bits", "16"),
    *("--validate-every", "0", "--val-tokens", "64", "--sample-tokens", "0", "--width", "12"),
)
RUNS: dict[str, tuple[str, Sequence[object]]] = {
    # CUDA's product. The recipe scaled down, then each estimator with each rule; chunks leave a
    # smaller last one.
    "recipe": ("m16n8k32", ["--recipe", "language", "--vocabulary", 256, "--chunk", 6]),
    "some tokens at a time": (
        "m8n8k16",
        ["--estimator", "token-credit", "--vocabulary", 1000, "--layers", 2, "--gates", "table",
         "--chunk", 12, "--noise-reuse", 0, "--sigma-shift", 2, "--block_tokens", 3]),
    "token-votes, whitened": (
        "dp4a",
        ["--estimator", "token-votes", "--rule", "whitened", "--vocabulary", 1000, "--layers", 2,
         "--gates", "table", "--chunk", 18]),
    "token-votes": (
        "m16n8k32",
        ["--estimator", "token-votes", "--vocabulary", 256, "--group-size", 4, "--chunk", 12,
         "--score-bits", 8]),
}  # fmt: skip


VARIANTS = [
    pytest.param(gpu, variant, name, id=f"{gpu}-{variant or 'simdgroup'}-{name}")
    for name, (product, _) in RUNS.items()
    for gpu, variant in (("metal", ""), ("metal", "nax"), ("cuda", product))
]


@pytest.fixture(scope="module")
def signatures() -> dict[str, dict[str, str]]:
    """Name of a run -> its signatures by the engines that need no GPU."""
    return {}


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(("gpu", "variant", "name"), VARIANTS, indirect=["gpu"])
def test_whole_runs_have_one_signature(
    call: Command, gpu: Gpu, tmp_path: Path, monkeypatch, signatures, variant: str, name: str
):
    """Two updates, validation and samples: portable, cpu and the emulated kernels agree."""
    launcher, words = (
        gpu.launcher(orders=(FORWARD, REVERSE, SHUFFLED), alternate=True),
        RUNS[name][1],
    )
    if some := name == "some tokens at a time":
        monkeypatch.setattr(pace, "FIRST_MACS", 300_000)
    install_gpu(gpu, monkeypatch, launcher, variant)
    found = signatures.setdefault(name, {})
    for each in ("portable", "cpu", "auto"):
        if each == "auto" or each not in found:
            ended = call(*RUN, *words, "--engine", each, "--out", tmp_path / each)
            found[each] = ended.signature
    assert f"{gpu.name} (" in ended.out  # what auto takes
    assert ("NAX" if variant == "nax" else variant) in ended.out
    assert len(set(found.values())) == 1, found
    assert {"egg_credits", "egg_traces", "egg_credit_votes", "egg_embedded"} <= set(
        launcher.launches
    )
    assert "egg_votes" not in launcher.launches
    assert ("egg_next" in launcher.launches) == ("whitened" in words or "language" in words)
    steps, chunks = 2, -(-20 // int(str(words[words.index("--chunk") + 1])))
    assert launcher.launches.count("egg_credits") == steps * chunks
    reads = 0 if "token-votes" in words else 2 if some else 1
    assert launcher.launches.count("egg_read") == steps * chunks * reads


def test_what_a_kernel_would_misread_is_refused(gpu: Gpu, launcher: Emulator):
    made = credited_case(7, "token-credit")
    crediting, last, signs, draws = (
        made.crediting,
        len(made.crediting.kinds) - 1,
        made.signs,
        made.draws,
    )
    here = engine(gpu, made.case.program, launcher)

    def refused(match: str, crediting: Crediting = crediting) -> None:
        credit_noise = CreditNoise(mx.array(made.signs), mx.array(made.draws))
        given = made.case.slices, made.case.batch, credit_noise, crediting
        with pytest.raises(ValueError, match=match):
            here.credit(here.prepare(made.case.leaves), *given)

    def changed(name: str, leaf: int, value: int) -> Crediting:
        values = list(getattr(crediting, name))
        values[leaf] = value
        return crediting._replace(**{name: tuple(values)})

    for leaf, kind in ((0, 1), (0, 4), (2, 2), (2, 4), (1, 1), (last, 2), (last, 3), (1, 9)):
        refused("does not fit its operation", changed("kinds", leaf, kind))
    refused("an embedding owns its noise", changed("owners", 0, last))
    refused(r"shifts are 0\.\.27 or silent", changed("shifts", 0, 28))
    refused(r"discounts are 0\.\.15", changed("discounts", 0, 16))
    refused(r"unit_shift are 0\.\.16", crediting._replace(unit_shift=32))
    refused(r"unit_shift are 0\.\.16", crediting._replace(credit_shift=-1))
    refused("an owner is no leaf", changed("owners", 2, 99))
    refused("other outputs", changed("owners", 2, last))
    refused("one number per leaf", crediting._replace(shifts=crediting.shifts[1:]))
    made.signs = signs[:, :, :0]
    refused("signs are")
    made.signs, made.draws = signs, draws[:, :1]
    refused("draws are")
    made.draws = draws
    made.case.rank = 2
    made.case.starts[:] = 0
    made.case.table = np.tile(made.case.table, 2)
    refused("token credit has rank 1")
    assert {*launcher.launches} <= {"egg_packing"}
