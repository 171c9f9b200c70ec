"""Both GPUs' kernels on this CPU: the text that MLX would compile, built by clang, is exact.

metal/emulator.py and cuda/cuda_emulator.py say how. Nothing here has run on a GPU.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import mlx.core as mx
import numpy as np
import oracle
import pytest
from conftest import TINY, Command
from emulator import FORWARD, REVERSE, SHUFFLED, Emulator
from hypothesis import given
from hypothesis import strategies as st
from networks import Case, random_case
from test_engines import check_likelihoods

from eggroll import networks
from eggroll.engines import available, trial
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.gpu.engine import LaunchLimits, LaunchNeed, launch_size
from eggroll.engines.gpu.votes import split_terms
from gpu.backend import Gpu, at_the_end, check_scores, check_votes, engine, stage_source
from gpu.backend import install as install_gpu

ALL = -1  # members of the largest threadgroup
# M, CUDA's product, then a network. 0 members: as many as the engine takes by itself.
CASES = {
    "power-of-two divisors": (0, "m16n8k32", {"D": 64, "V": 256, "T": 2, "P": 2}),
    "true divisions": (16, "m8n8k16", {"D": 48, "V": 100, "T": 2, "P": 34, "extreme": True}),
    "ragged everywhere": (ALL, "m16n8k32", {"D": 33, "V": 9, "L": 2, "T": 3, "rank": 8}),
    "1200 inputs": (8, "m16n8k32",
                    {"D": 300, "V": 5, "T": 1, "P": 2, "sigma_shift": 0, "extreme": True}),
    "registers in device memory": (32, "m16n8k32", {"D": 132, "V": 5, "T": 2, "P": 34}),
    "sums beyond 32 bits": (8, "m16n8k32", {"D": 8, "V": 5000, "L": 0, "T": 1, "P": 2}),
    "next to nothing": (32, "m8n8k16", {"D": 1, "V": 2, "T": 1, "P": 2}),
    "gates by tables": (8, "dp4a", {"D": 40, "V": 17, "T": 4, "P": 6, "rank": 3, "gates": "table"}),
    "x B in device memory": (32, "m16n8k32",
                             {"D": 9, "V": 4, "T": 1, "P": 2, "rank": 40, "sigma_shift": 0}),
}  # fmt: skip
CRAMPED = ("registers in device memory", "x B in device memory")  # with little shared memory


def members_of(gpu: Gpu, members: int) -> int:
    return gpu.largest if members == ALL else members


SCORE_BITS = [
    *((name, 4) for name in CASES),
    *((name, 8) for name in ("power-of-two divisors", "true divisions", "sums beyond 32 bits")),
]


@pytest.mark.parametrize(("name", "score_bits"), SCORE_BITS)
def test_equals_oracle(gpu: Gpu, launcher: Emulator, name: str, score_bits: int):
    members, product, shape = CASES[name]
    members = members_of(gpu, members)
    # Some members beyond the first threadgroup, where a case does not say how many.
    case = at_the_end(random_case(1, score_bits=score_bits, **{"P": members + 2} | shape))
    variant = product if gpu.name == "cuda" else ""
    made = engine(gpu, case.program, launcher, members, variant, name in CRAMPED)
    fitness = oracle.pair_fitness(check_scores(made, case))
    check_votes(made, case, fitness)
    check_votes(made, case, fitness, clt=False)
    if gpu.name == "cuda":
        tensor = any(f"mma.sync.aligned.{product}" in text for text in launcher.sources.values())
        assert tensor == (product != "dp4a")


def test_cases_reach_what_they_are_for(gpu: Gpu):
    """Device memory for registers and for x B, and all in threadgroup memory."""

    def layer(name: str):
        members, _, shape = CASES[name]
        program = networks.egg(shape["V"], shape["D"], 1)
        members, rank = members_of(gpu, members), shape.get("rank", 1)
        return gpu.plans(program, members, rank, name in CRAMPED)[1]

    assert not all(place.shared for place in layer("registers in device memory").places.values())
    assert all(place.shared for place in layer("true divisions").places.values())
    assert not layer("x B in device memory").sums_shared
    assert layer("registers in device memory").simdgroups == 8
    if gpu.name == "cuda":  # a warp for some of a block's members, and for 32 of them
        wide = layer("registers in device memory").columns(4 * 132)
        assert {layer("ragged everywhere").columns(33), wide} == {2, 4}


@pytest.mark.parametrize("members", [1, 3, 33])
def test_unperturbed_model_takes_any_number_of_members(gpu: Gpu, launcher: Emulator, members: int):
    case = random_case(5, P=34)
    case.tokens, case.targets = case.tokens[:members], case.targets[:members]
    case.state = case.state[:members]
    made = engine(gpu, case.program, launcher)
    check_scores(made, case, noise=False)
    check_likelihoods(made, case)


@pytest.mark.parametrize("score_bits", [4, 8])
@pytest.mark.parametrize("V", [4000, 9000])
def test_the_highest_sums_do_not_wrap(gpu: Gpu, launcher: Emulator, V: int, score_bits: int):
    """All logits are at the top: a simdgroup's sum needs 64 bits, at V 4000 only in 1/256 bit."""
    case = random_case(1, V=V, D=4, L=0, T=1, P=2, score_bits=score_bits)
    case.weights["head"][:] = case.weights["norm"][:] = case.weights["embedding"][:] = 127
    made = engine(gpu, case.program, launcher)
    check_scores(made, case, noise=False)
    check_likelihoods(made, case)


def of_all_lengths(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of 1 to 32 bits, int32."""
    words = rng.integers(-1 << 31, 1 << 31, shape)
    return (words >> rng.integers(0, 32, shape)).astype(np.int32)


def check_rule(found: tuple, expected: tuple):
    assert int(found[1]) == expected[1]
    for ours, theirs in zip(found[0], expected[0], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(np.array(a), np.array(b))


@pytest.mark.parametrize("seed", [0, 1])
def test_rule_adam_is_that_of_the_extension(gpu: Gpu, launcher: Emulator, seed: int):
    """On the largest numbers that 32 bits hold, too, and with lr and decay at their ends.

    Of fewer values than a threadgroup has threads, as well, and of fewer than MLX's smallest input.
    """
    rng, leaves = np.random.default_rng(seed), []
    for shape in ((33, 40), (7,), (129,)):
        for feedback in (False, True):
            arrays = [of_all_lengths(rng, shape) for _ in range(5)]
            for array in arrays[seed:]:
                array[..., :2] = (1 << 31) - 1, -(1 << 31)
            arrays[0][..., 3:5] = 0
            weights = rng.integers(-127, 128, shape, np.int8)
            votes, fine, mean, size, back = map(mx.array, arrays)
            decay = 1 << 24 if seed else int(rng.integers(0, 1 << 24))
            last = back if feedback else None
            leaves.append((votes, mx.array(weights), fine, mean, size, last, decay))
    program = networks.egg(5, 8, 1)
    made, right = engine(gpu, program, launcher), CpuEngine(program)
    for factor in (0, 12_345, 64 << 16):
        check_rule(made.adam(leaves, factor), right.adam(leaves, factor))
    assert launcher.launches == ["egg_adam"] * 18


def test_rule_master_is_that_of_the_extension(gpu: Gpu, launcher: Emulator):
    """Of numbers of all lengths; with factors and decays at their ends, and products that wrap."""
    rng, leaves = np.random.default_rng(4), []
    for shape, factor, decay in (
        ((33, 40), 1 << 46, 0), ((7,), (1 << 33) + 5, 1 << 24), ((129,), 0, 9999),
        ((3, 50), (1 << 32) - 1, 84_000),
    ):  # fmt: skip
        votes, fine = (of_all_lengths(rng, shape) for _ in "ab")
        votes[..., :2] = fine[..., 1:3] = (1 << 31) - 1, -(1 << 31)
        weights = mx.array(rng.integers(-127, 128, shape, np.int8))
        leaves.append((mx.array(votes), weights, mx.array(fine), factor, decay))
    program = networks.egg(5, 8, 1)
    found = engine(gpu, program, launcher).master(leaves)
    check_rule(found, CpuEngine(program).master(leaves))
    assert launcher.launches == ["egg_master"] * 4


@pytest.mark.parametrize("seed", [0, 1])
def test_rule_whitened_is_that_of_the_extension(gpu: Gpu, launcher: Emulator, seed: int):
    """With matrices of one block, of three of which the last is narrower, and none.

    Votes are of all lengths, one row has none, and quotients, products and steps end on halves.
    """
    rng, leaves = np.random.default_rng(seed), []
    shapes = ((33, 40), 1), ((70, 130), 3), ((9, 12), 0), ((7,), 0), ((129,), 0)
    for (shape, blocks), feedback in product(shapes, (False, True)):
        votes, fine, back = (of_all_lengths(rng, shape) for _ in range(3))
        votes[..., :3] = (1 << 31) - 1, -(1 << 31), 512
        if len(shape) == 2:
            votes[1], votes[2], votes[3] = 0, 3, rng.integers(-2, 3, shape[1])
        if not seed:
            votes >>= 20
        square = None
        if blocks:
            width = -(-shape[1] // blocks)
            half = rng.integers(-1 << 18, 1 << 18, (blocks, width, width), np.int32)
            square = (half + half.swapaxes(1, 2)) >> (8 * (1 - seed))
            square[:, 0], square[..., 0], square[:, 0, 0] = 0, 0, 3 << 15
            square = mx.array(np.clip(square, 1 - (1 << 19), (1 << 19) - 1))
        weights = mx.array(rng.integers(-127, 128, shape, np.int8))
        factor, floor = (1 << 15, 512) if feedback else (int(rng.integers(64 << 24)), 1)
        last = mx.array(back) if feedback else None
        leaves.append((mx.array(votes), weights, mx.array(fine), last, square, factor, floor))
    program = networks.egg(5, 8, 1)
    made, right = engine(gpu, program, launcher), CpuEngine(program)
    for learns in (False, True):
        check_rule(made.whitened(leaves, learns), right.whitened(leaves, learns))
    silent = [(mx.zeros(leaf[0].shape, mx.int32), *leaf[1:]) for leaf in leaves]
    check_rule(made.whitened(silent, True), right.whitened(silent, True))


def test_logits_are_those_the_scores_come_from(gpu: Gpu, launcher: Emulator):
    case = random_case(6, V=11, D=12, L=2, T=1, P=34)  # several threadgroups
    _, state, logits = case.oracle(noise=False)
    made = engine(gpu, case.program, launcher)
    prepared = made.prepare(case.leaves)
    got, after = made.logits(prepared, case.batch)
    np.testing.assert_array_equal(np.array(got), logits[:, 0])
    np.testing.assert_array_equal(np.array(after), state)


def test_low_rank_sum_wraps_alike(gpu: Gpu, launcher: Emulator):
    """(x B) A over rank and inputs exceeds int32 here."""
    case = random_case(3, D=64, V=4, L=1, T=1, P=2, rank=40, sigma_shift=0)
    case.weights["embedding"][:] = 127
    case.table[:] = 127
    case.weights["layer0.norm1"][:] = 127
    check_scores(engine(gpu, case.program, launcher), case)


def extreme_votes() -> tuple[Case, np.ndarray]:
    """1100 pairs whose noise is all 127 and whose fitness is all one: no float holds the sum."""
    case = random_case(2, V=2, D=3, L=0, P=2)
    case.table[:] = 127
    case.starts = np.zeros((len(case.starts), 1100), np.int32)
    return case, np.ones(1100, np.int64)


def test_votes_of_many_pairs_leave_float_in_time(gpu: Gpu, launcher: Emulator, monkeypatch):
    whole = "eggroll.engines.gpu.votes.split_terms"
    monkeypatch.setattr(whole, lambda terms, groups, wanted: (1, -(-terms // 32) * 32))
    case, fitness = extreme_votes()
    check_votes(engine(gpu, case.program, launcher), case, fitness)


def test_votes_of_parts_add_up(gpu: Gpu, launcher: Emulator):
    case, fitness = extreme_votes()
    fitness[::3] = -1
    check_votes(engine(gpu, case.program, launcher), case, fitness)
    parts, terms = split_terms(1100, 1, 4)
    assert parts > 1
    assert (parts - 1) * terms < 1100 <= parts * terms


def test_launches_of_some_members_and_tokens(gpu: Gpu, launcher: Emulator, monkeypatch):
    """However little a launch may do, the answer is the same."""
    case = random_case(8, V=9, D=8, T=5, P=6)
    made = engine(gpu, case.program, launcher)
    sizes = [made.launch_size(6, 5, 1)]
    for macs in (1, 12_000):
        monkeypatch.setattr(made.pace, "macs", macs)
        sizes.append(made.launch_size(6, 5, 1))
        check_scores(made, case)
        check_likelihoods(made, case)
    assert sizes == [(6, 5), (2, 1), (6, 2)]


@given(
    scratch=st.integers(0, 5000), passed=st.integers(0, 2000), macs=st.integers(1, 1 << 22),
    memory=st.integers(1 << 16, (1 << 31) - 1), most=st.integers(1 << 30, 1 << 42),
    P=st.integers(1, 1 << 18), T=st.integers(1, 4096),
)  # fmt: skip
def test_a_launch_takes_what_fits(scratch, passed, macs, memory, most, P, T):
    """Scratch is a member's, whatever the tokens; and no launch is smaller than it must be."""
    need, limits = LaunchNeed(scratch, macs), LaunchLimits(memory, most, passed)
    members, tokens = launch_size(need, limits, P, T)
    assert 1 <= tokens <= T
    assert 1 <= members <= P

    def fits(members: int, tokens: int) -> bool:
        bytes_ = members * (tokens * max(passed, 1) + scratch)
        return bytes_ <= memory and members * tokens * macs <= most

    assert fits(members, tokens) or (tokens == 1 and members <= 2)
    assert tokens == T or not fits(P, tokens + 1)
    assert members in (P, 2) or not fits(members + 2, tokens)


def test_divisions_are_exact_everywhere(gpu: Gpu, launcher: Emulator):
    """A norm's division for every mean and numerator; a product's near every multiple."""
    norm = stage_source(gpu, gpu.plans(networks.egg(4, 4, 1), 8, 1)[1])
    body = """
int wrong = 0;
const $uint at = $thread;
for (int mean = 1 + int(at); mean <= 127; mean += 128)
  for (int v = -16129; v <= 16129; ++v) {
    const int floor = v >= 0 ? v / mean : -((mean - 1 - v) / mean);
    wrong += @ != egg::clip(floor);
  }
for (int v = -700000 + int(at); v <= 700000; v += 128) {
  const int floor48 = v >= 0 ? v / 48 : -((47 - v) / 48);
  const int floor64 = v >= 0 ? v / 64 : -((63 - v) / 64);
  const int floor2896 = v >= 0 ? v / 2896 : -((2895 - v) / 2896);
  wrong += egg::divide<48>(v) != egg::clip(floor48);
  wrong += egg::divide<64>(v) != egg::clip(floor64);
  wrong += egg::divide<2896>(v) != egg::clip(floor2896);
}
out[at] = wrong + given[0];
"""
    body = gpu.dialect.translate(body).replace("@", gpu.over_mean)
    source = norm._replace(inputs=("given",), outputs=("out",), body=body, shared=0)
    zeros = mx.zeros(8, mx.int32)
    (wrong,) = launcher(source, [zeros], [((128,), mx.int32)], (128, 1, 1), (128, 1, 1))
    assert not np.array(wrong).any()


RUN = (
    *("--data", "count", "--pop", "36", "--steps", "2", "--seq-len", "3", "--table-bits", "16"),
    *("--alpha", "0.5", "--validate-every", "0", "--val-tokens", "32", "--sample-tokens", "2"),
)
# The seed's network and the paper's, scaled down, with CUDA's product. Chunks leave a last one that
# is smaller.
NETWORKS = [
    ("dp4a", {"layers": 1, "width": 16, "vocabulary": 256, "rank": 1, "chunk": 10}),
    ("m8n8k16", {"layers": 1, "width": 16, "vocabulary": 1000, "rank": 4, "chunk": 26,
                 "score-bits": 8}),
    ("m16n8k32", {"layers": 2, "width": 24, "vocabulary": 256, "rank": 4, "chunk": 22,
                  "gates": "table"}),
    ("m16n8k32", {"layers": 2, "width": 16, "vocabulary": 1000, "rank": 1, "chunk": 34,
                  "noise-reuse": 0}),
]  # fmt: skip
RUNS = [
    pytest.param(gpu, variant, words, id=f"{gpu}-{variant or 'simdgroup'}-{i}")
    for i, (product, words) in enumerate(NETWORKS)
    for gpu, variant in (("metal", ""), ("metal", "nax"), ("cuda", product))
]


@pytest.fixture(scope="module")
def signatures() -> dict[tuple, dict[str, str]]:
    """Words of a run -> its signatures by the engines that need no GPU."""
    return {}


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(("gpu", "variant", "network"), RUNS, indirect=["gpu"])
def test_whole_runs_have_one_signature(
    call: Command, gpu: Gpu, tmp_path: Path, monkeypatch, signatures, variant: str, network: dict
):
    """Two updates, validation and samples: portable, cpu and the emulated kernels agree."""
    launcher = gpu.launcher(orders=(FORWARD, REVERSE, SHUFFLED), alternate=True)
    install_gpu(gpu, monkeypatch, launcher, variant)
    words = tuple(word for name, value in network.items() for word in (f"--{name}", value))
    found = signatures.setdefault(words, {})
    for each in ("portable", "cpu", "gpu"):
        if each == "gpu" or each not in found:
            name = gpu.name if each == "gpu" else each
            ended = call(*RUN, *words, "--engine", name, "--out", tmp_path / name)
            found[each] = ended.signature
    assert ("NAX" if variant == "nax" else gpu.name) in ended.out
    assert len(set(found.values())) == 1, found
    # A launch per stage and chunk; in training besides two for the votes of a chunk. Before them
    # weights are packed, and on CUDA slices are drawn.
    stages, chunks = network["layers"] + 2, -(-36 // network["chunk"])
    votes = launcher.launches.count("egg_votes"), launcher.launches.count("egg_vector_votes")
    assert votes == (2 * chunks, 2 * chunks)
    before = {"egg_packing", "egg_drawing"}
    launched = [name for name in launcher.launches if name not in before]
    assert launched[: stages * chunks] == ["egg_stage"] * (stages * chunks)
    assert before & {*launcher.launches} == ({"egg_packing"} if gpu.name == "metal" else before)


def test_without_a_gpu_the_engine_is_refused(call: Command, gpu: Gpu):
    if not available()[gpu.name]:
        pytest.skip("this machine has such a GPU")
    ended = call(*TINY, "--engine", gpu.name)
    assert ended.code == 2
    words = {"metal": "Metal", "cuda": "CUDA"}[gpu.name]
    assert f"'{gpu.name}' cannot run here (MLX finds no {words} GPU)" in ended.err
    assert "cpu, portable" in ended.err


def test_the_trial_passes_where_kernels_are_right(gpu: Gpu, monkeypatch):
    """And fails where they are not. (EGG at full width for one of the two, as it takes seconds.)"""
    launcher, group = gpu.launcher(orders=(FORWARD,)), max(gpu.kind.group_sizes)
    tried = trial.trial_networks()
    for name in ("egg", "rows", "outputs") if gpu.name == "metal" else ("rows", "outputs"):
        made = engine(gpu, tried[name], launcher, group)
        assert trial.differences(made, group + 2) == []
    right = gpu.kind.packed
    monkeypatch.setattr(gpu.kind, "packed", lambda self, w: right(self, -w))
    wrong = trial.differences(engine(gpu, tried["rows"], launcher, group), group + 2)
    assert wrong[0].startswith("errors carried back, ")


def test_the_trial_takes_shapes_as_runs_do(gpu: Gpu):
    """Full threadgroups, all their simdgroups, and on Metal registers in device memory."""
    group = max(gpu.kind.group_sizes)
    assert group == gpu.largest
    layer = gpu.plans(trial.trial_networks()["egg"], group, 1)[1]
    assert layer.simdgroups == 8
    assert (layer.spilled_rows > 0) == (gpu.name == "metal")


def test_what_a_kernel_would_misread_is_refused(gpu: Gpu, launcher: Emulator):
    case = random_case(7)
    made = engine(gpu, case.program, launcher)
    prepared, batch = made.prepare(case.leaves), case.batch
    beyond = case.slices._replace(starts=case.slices.starts + case.table.size)
    with pytest.raises(ValueError, match="beyond the table"):
        made.evaluate(prepared, beyond, batch)
    with pytest.raises(ValueError, match="beyond the table"):
        made.votes(mx.ones(2, mx.int8), beyond, True)
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.15"):
        made.evaluate(prepared, case.slices, batch._replace(tokens=batch.tokens + 16))
    with pytest.raises(ValueError, match=r"targets must be in 0\.\.15"):
        made.evaluate(prepared, case.slices, batch._replace(targets=batch.targets - 16))
    with pytest.raises(ValueError, match="state_size"):
        made.evaluate(prepared, case.slices, batch._replace(state=batch.state[:, 1:]))
    with pytest.raises(ValueError, match="for 3 members"):
        made.evaluate(prepared, case.slices, batch.members(slice(3)))
    assert {*launcher.launches} <= {"egg_packing"}
