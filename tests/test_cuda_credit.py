"""Token credit of the CUDA kernels on this CPU, as test_cuda.py has the rest."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import test_cuda
from conftest import Command
from cuda_emulator import FORWARD, REVERSE, SHUFFLED, CudaEmulator, EmulationError
from networks_credit import Credited, credited_case
from test_credit import CREDITED, same
from test_cuda import NO_ROOM, on
from test_metal import at_the_end
from test_metal_credit import RUN, rewriting

from eggroll import networks
from eggroll import program as language
from eggroll.credit import CreditKind, CreditNoise, crediting, draw_signs
from eggroll.engines import choice
from eggroll.engines.cuda import credit_source as cuda_credit_source
from eggroll.engines.cuda import device as cuda_trial
from eggroll.engines.cuda import engine as cuda
from eggroll.engines.cuda import plan as cuda_plan
from eggroll.engines.cuda.engine import CudaEngine
from eggroll.engines.cuda.plan import Target, cuda_credit_plans
from eggroll.engines.gpu import credit as metal_credit
from eggroll.engines.gpu.plan import shares
from eggroll.engines.gpu.text import Source
from eggroll.engines.portable.engine import PortableEngine
from eggroll.noise import Noise, Slices

folder, launcher = test_cuda.folder, test_cuda.launcher


def check(launcher: CudaEmulator, made: Credited, members: int, gpu: Target) -> None:
    at_the_end(made.case)
    engine = CudaEngine(made.case.program, launcher=launcher, members=members, on=gpu)
    same(made.run(engine), made.oracle())


# M, the product, bytes of shared memory, then a network. 0: what the engine takes by itself.
RAGGED = {"V": 33, "D": 13, "L": 2, "T": 3, "P": 36, "discount": 8}
LARGE = 16, "m16n8k32", NO_ROOM, {"V": 1100, "D": 132, "T": 1, "P": 4}  # much in device memory
CASES = [
    *((estimator, 32, "m16n8k32", 0, RAGGED) for estimator in CREDITED),
    ("token-credit", 64, "m8n8k16", 0, {"V": 20, "D": 9, "T": 2, "P": 66}),
    ("token-credit", *LARGE),
    ("token-credit", 8, "dp4a", 0, {"V": 5000, "D": 8, "L": 0, "T": 1, "P": 2}),  # 64 bits
    ("token-credit", 32, "m16n8k32", 0, {"V": 2, "D": 1, "T": 1, "P": 2}),
    # Two words of signs and more.
    ("token-credit", 0, "m16n8k32", 0,
     {"V": 7, "D": 5, "T": 65, "P": 2, "discount": 15, "gates": "table"}),
    ("token-credit", 16, "m8n8k16", 0,
     {"V": 17, "D": 16, "T": 4, "P": 34, "sigma_shift": 0, "extreme": True}),
    ("token-votes", 16, "dp4a", 0,
     {"V": 11, "D": 16, "T": 5, "P": 6, "alike": False, "extreme": True}),
]  # fmt: skip


@pytest.mark.parametrize(("estimator", "members", "product", "shared", "shape"), CASES, ids=str)
def test_equals_oracle(
    launcher: CudaEmulator, estimator: str, members: int, product: str, shared: int, shape: dict
):
    check(launcher, credited_case(1, estimator, **shape), members, on(product, shared))


def test_cases_reach_what_they_are_for():
    """Logits for the draw in device memory, and in shared memory."""

    def head(gpu: Target, members: int, shape: dict) -> cuda_plan.CudaCreditPlan:
        made = credited_case(1, "token-credit", **shape)
        return cuda_credit_plans(made.case.program, made.how, gpu, members=members)[-1]

    members, product, shared, shape = LARGE
    large = head(on(product, shared), members, shape)
    assert not large.logits_shared
    assert large.scratch_bytes >= large.logit_bytes > 0
    assert head(on("m16n8k32"), 32, RAGGED).logits_shared


@pytest.mark.parametrize("architecture", [75, 80, 86, 90, 0])
@pytest.mark.parametrize("members", cuda_plan.MEMBERS)
def test_kernels_keep_within_shared_memory(architecture: int, members: int):
    """By what they ask for, whatever the vocabulary."""
    gpu = cuda_plan.target(architecture)
    for V, D in ((256, 64), (1000, 128), (2000, 256), (5000, 512)):
        program = networks.egg(V, D, 1)
        for estimator in CREDITED:
            how = crediting(program, estimator, sigma_shift=2, discount=12, seq_len=8)
            for plan in cuda_credit_plans(program, how, gpu, members=members):
                source = cuda_credit_source.credit_source(plan, 6, gpu.product)
                assert plan.shared_rows * plan.stride <= source.shared <= gpu.shared_bytes


@pytest.mark.parametrize("estimator", CREDITED)
def test_pieces_of_members_and_tokens(launcher: CudaEmulator, monkeypatch, estimator: str):
    """However little a launch may do or tapes may take, the answer is the same."""
    made, gpu = credited_case(8, estimator, V=9, D=8, T=5, P=6), on("m16n8k32")
    program, pieces, want = at_the_end(made.case).program, set(), made.oracle()
    assert cuda.credit_piece(program, gpu, made.how, 6, 5) == (6, 5)
    for macs, memory in ((1, 1 << 30), (12_000, 1 << 30), (1 << 42, 1), (12_000, 3_000)):
        monkeypatch.setattr(cuda, "LAUNCH_MACS", macs)
        monkeypatch.setattr(cuda, "memory", lambda memory=memory: memory)
        pieces.add(cuda.credit_piece(program, gpu, made.how, 6, 5))
        same(made.run(CudaEngine(program, launcher=launcher, on=gpu)), want)
    assert len(pieces) >= 3, pieces
    assert {(2, 1), (6, 2)} <= pieces, pieces


@pytest.mark.parametrize("estimator", CREDITED)
def test_engines_agree_on_another_network(launcher: CudaEmulator, estimator: str):
    """Not EGG: matrices read registers before and after they are written; a leaf left out."""
    net, P, T = rewriting(), 12, 7
    how = crediting(net, estimator, sigma_shift=1, discount=9, seq_len=T)
    rng = np.random.default_rng(0)
    noise = Noise([leaf.shape for leaf in net.leaves], seed=0, rank=1, shift=5, table_bits=10)
    arrays = [mx.array(rng.integers(0, 21, (P, T)).astype(np.int32)) for _ in range(2)]
    credit_noise = draw_signs(how, seed=0, epoch=0, first_pair=0, pairs=P // 2, seq_len=T)
    weights, state = networks.initial_weights(net, 0), mx.zeros((P, 6), mx.int8)
    engines = CudaEngine(net, launcher=launcher, on=on("m16n8k32")), PortableEngine(net)
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
    # Four values of six inputs and what is made of them, each in whole words.
    plan = cuda_credit_plans(net, how, on("m16n8k32"), members=8)[1]
    assert plan.tape_rows == 4 * 8 + 8 + 12


def small(
    launcher: CudaEmulator, N: int, T: int = 1, estimator: str = "token-credit"
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
    plans = cuda_credit_plans(program, how, on("m16n8k32"), members=8)
    work = metal_credit.Work(plans, cuda_credit_source.credit_kernels("m16n8k32"))
    return metal_credit.Credited(
        launcher, work, noise, credit_noise, mx.zeros((2 * N, T), mx.int32)
    )


@pytest.mark.parametrize("whole", [True, False])
def test_votes_of_many_pairs(launcher: CudaEmulator, whole: bool):
    """300 pairs whose A is 127; u is rounded up from half and clipped; whole and in parts."""
    N, O, K, shift = 600, 3, 2, 5
    here = small(launcher, N)
    parts, share = (1, 608) if whole else shares(N, 1)
    assert (parts > 1) is not whole
    pair = np.array([[127 << shift, (1 << 30)], [-16, -17], [15, 16]], np.int32)
    sums = np.resize(pair, (N, K))
    (Z,) = here._launch(
        here.work.kernels.matrices,
        [here.noise.table, here.noise.starts, mx.array(sums)],
        [metal_credit.listed([(0, 0, 0, O, K, 0, 3, 0)])],
        [N, share, O * K, shift],
        [((parts, O * K), mx.int32)],
        128,
        parts,
    )
    u = np.clip((sums.astype(np.int64) + 16) >> shift, -127, 127)
    np.testing.assert_array_equal(
        np.array(Z.sum(axis=0)).reshape(O, K), np.tile(127 * u.sum(axis=0), (O, 1))
    )


def test_gains_of_the_largest_scores(launcher: CudaEmulator):
    """Products of 64 bits, sums over all tokens, and padding lanes, in Python's integers."""
    N, T, g = 6, 40, 15
    here, rng = small(launcher, N, T, "token-votes"), np.random.default_rng(0)
    here.how = here.how._replace(credit_shift=1)
    scores = rng.choice([-32768, -1000, 0, 1, 32767], (2 * N, T))
    met = rng.choice([-(127**2) * 32764, -5, 0, 1, 127**2 * 32764], (1, T, here.lanes))
    tokens = rng.integers(0, 4, (2 * N, T))
    here.tokens, here.met = mx.array(tokens.astype(np.int32)), [mx.array(met.astype(np.int32))]
    credits, sums = map(np.array, here._weigh(mx.array(scores.astype(np.int16))))
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
def test_rows_add_up_whoever_names_them(launcher: CudaEmulator, V: int, K: int, entries: int):
    """Entries without a row, rows without an entry, one with most of them, and parts."""
    rng = np.random.default_rng(V)
    rows = np.minimum(rng.integers(-1, V + 2, 2 * entries), V - 1)
    inputs = rng.integers(-127, 128, (entries, K)).astype(np.int8)
    here = small(launcher, 2)
    named = mx.array(rows.astype(np.int32))
    Z = here._rows(here.work.kernels.read, [mx.array(inputs)], named, (V, K), [])
    want = np.zeros((V + 1, K), np.int64)
    np.add.at(want, rows, np.repeat(inputs, 2, axis=0) * np.resize([[1], [-1]], (2 * entries, 1)))
    np.testing.assert_array_equal(np.array(Z), want[:V])


RUNS = [
    # The recipe scaled down (token-credit with whitened), then each estimator with the other rule.
    ("m16n8k32", ["--recipe", "language", "--vocabulary", 256, "--chunk", 6]),
    ("m8n8k16", ["--estimator", "token-credit", "--vocabulary", 1000, "--layers", 2, "--gates",
                 "table", "--chunk", 12, "--noise-reuse", 0, "--sigma-shift", 2]),
    ("dp4a", ["--estimator", "token-votes", "--rule", "whitened", "--vocabulary", 256,
              "--chunk", 12]),
]  # fmt: skip
PIECES = 1  # the run whose launches take few tokens


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_whole_runs_have_one_signature(
    call: Command, folder: Path, tmp_path: Path, monkeypatch, number: int
):
    """Two updates, validation and samples: cpu and the emulated kernels agree."""
    launcher = CudaEmulator(folder, orders=(FORWARD, REVERSE, SHUFFLED), alternate=True)
    product, words = RUNS[number]
    if number == PIECES:
        monkeypatch.setattr(cuda, "LAUNCH_MACS", 300_000)

    class Emulated(CudaEngine):
        @classmethod
        def unavailable_because(cls) -> str:
            return ""

        def __init__(self, program: language.Program, threads: int = 0, slab: int = 0) -> None:
            super().__init__(program, threads, slab, launcher=launcher, on=on(product))

    monkeypatch.setitem(choice.ENGINES, "cuda", Emulated)
    signatures = {}
    for engine in ("cpu", "auto"):
        ended = call(*RUN, *words, "--engine", engine, "--out", tmp_path / engine)
        signatures[engine] = ended.signature
    assert f"cuda (sm_{on(product).architecture}, {product})" in ended.out  # what auto takes
    assert len(set(signatures.values())) == 1, signatures
    assert {"egg_gains", "egg_traces", "egg_credit_votes", "egg_embedded"} <= set(launcher.launches)
    assert "egg_votes" not in launcher.launches
    chunks = -(-20 // words[words.index("--chunk") + 1])
    assert launcher.launches.count("egg_gains") == 2 * chunks
    pieces = 2 if number == PIECES else 1 if number < PIECES else 0
    assert launcher.launches.count("egg_read") == 2 * chunks * pieces


def faulty(folder: Path, old: str, new: str, made: Credited) -> None:
    """Runs a case with a fault in the kernels; returns only if nothing was noticed."""
    found = []

    def edit(source: Source) -> Source:
        found.append(old in source.header + source.body)
        replaced = (text.replace(old, new) for text in (source.header, source.body))
        return source._replace(**dict(zip(("header", "body"), replaced, strict=True)))

    quick = CudaEmulator(folder, edit=edit)
    engine = CudaEngine(made.case.program, launcher=quick, members=8, on=on("m16n8k32"))
    try:
        same(made.run(engine), made.oracle())
    finally:
        assert any(found), "the fault did not get in"


FAULTS = {
    "token-credit": {
        "the sign of the odd member": ("n.odd[e] = -n.even[e];", "n.odd[e] = n.even[e];"),
        "a sign of another token": ("noise.t / 32", "0"),
        "noise rounded down": (
            "rounded(byte_of(b, e), mine.shift)",
            "byte_of(b, e) >> mine.shift",
        ),
        "another member's inputs": ("i % (M / 2) * 2)", "i % (M / 2) * 2 + 1)"),
        "a readout that is not clipped": ("hits[m] == 255", "false"),
        "a draw without its last logits": ("(V + 7) / 8", "V / 8"),
        "a draw from sums without their own tile": ("before + up_to", "before + up_to - w"),
        "credit across documents": ("tokens[t] != 0 ? r : 0", "r"),
        "a token more": ("back < of.T", "back <= of.T"),
        "a pair that is not there": ("if (lane >= of.pairs) return;", ""),
        "an input that is not there": ("if (trace.k + e < trace.K)", ""),
        "the first of equal rows left out": ("sorted[middle] < row", "sorted[middle] <= row"),
        "the noise of another leaf": ("uint32_t(at) + element", "element"),
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


BARRIER = "__syncthreads();\n"


@pytest.mark.parametrize("number", range(4))
def test_every_barrier_of_a_head_is_needed(folder: Path, number: int):
    """Without one of them, some order of the warps gives something else."""
    made = credited_case(1, "token-credit", V=40, D=12, T=3, P=6, sigma_shift=1)
    head = cuda_credit_plans(made.case.program, made.how, on("m16n8k32"), members=8)[-1]
    body = cuda_credit_source.credit_source(head, 0, "m16n8k32").body
    parts = body.split(BARRIER)
    assert len(parts) == 5
    without = BARRIER.join(
        [*parts[:number], parts[number] + parts[number + 1], *parts[number + 2 :]]
    )
    with pytest.raises((EmulationError, AssertionError)) as found:
        faulty(folder, body, without, made)
    assert "did not get in" not in str(found.value)


@pytest.mark.parametrize("product", cuda_plan.PRODUCTS)
@pytest.mark.parametrize("estimator", CREDITED)
def test_on_this_gpu(product: str, estimator: str, monkeypatch):
    """Both presets' shapes on a real GPU, against plain MLX, with every product it has."""
    monkeypatch.setenv(cuda_trial.SWITCH, product)
    if why := CudaEngine.unavailable_because():
        pytest.skip(f"no trial on a GPU: {why}")
    for shape in ({"V": 256, "D": 64, "P": 70}, {"V": 1000, "D": 256, "L": 6, "P": 66}):
        made = credited_case(4, estimator, T=3, **shape)
        scores, state, Z = made.run(PortableEngine(made.case.program))
        want = scores, state, {name: np.array(z) for name, z in Z.items()}
        same(made.run(CudaEngine(made.case.program)), want)


def test_what_a_kernel_would_misread_is_refused(launcher: CudaEmulator):
    """As on Metal, whose test has every sentence."""
    made = credited_case(7, "token-credit")
    engine = CudaEngine(made.case.program, launcher=launcher, on=on("m16n8k32"))
    signs, draws = made.signs, made.draws
    made.signs = signs[:, :, :0]
    with pytest.raises(ValueError, match="signs are"):
        made.run(engine)
    made.signs, made.draws = signs, draws[:, :1]
    with pytest.raises(ValueError, match="draws are"):
        made.run(engine)
    assert not launcher.launches
