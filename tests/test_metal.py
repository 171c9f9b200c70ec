"""The Metal kernels on this CPU: the MSL that MLX generates, compiled by clang, equals the oracle.

metal/emulator.py says how. Nothing here has run on an Apple GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import oracle
import pytest
from conftest import TINY, Command
from networks import Case, random_case

sys.path.insert(0, str(Path(__file__).parent / "metal"))
import emulator
from emulator import FORWARD, REVERSE, SHUFFLED, EmulationError, Emulator

from eggroll import networks
from eggroll import program as language
from eggroll.credit import crediting
from eggroll.engines import available, choice
from eggroll.engines import trial as metal_trial
from eggroll.engines.gpu import engine as gpu
from eggroll.engines.gpu import plan as metal_plan
from eggroll.engines.gpu.credit_plan import credit_plans
from eggroll.engines.gpu.text import Source
from eggroll.engines.metal import credit_source as metal_credit_source
from eggroll.engines.metal import engine as metal
from eggroll.engines.metal import source as metal_source
from eggroll.engines.metal.engine import MetalEngine

KERNELS = Path(__file__).parents[1] / "extensions" / "int8_gemm" / "metal"
GOLDEN = Path(__file__).parent / "metal" / "golden.json"
REQUIRED = "metal" in os.environ.get("EGGROLL_REQUIRE", "").split(",")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, covered: set[str]) -> Path:
    """Where kernels are compiled; one that several tests need is compiled once."""
    if sentence := emulator.unavailable_because():
        pytest.fail(sentence) if REQUIRED else pytest.skip(sentence)
    covered.add("metal")
    return tmp_path_factory.mktemp("metal")


@pytest.fixture
def launcher(folder: Path):
    """Runs every launch in two orders of the threads."""
    return Emulator(folder)


def check_scores(engine: MetalEngine, case: Case, *, noise: bool = True) -> np.ndarray:
    scores, state, _ = case.oracle(noise)
    prepared = engine.prepare(case.leaves)
    got, after = engine.evaluate(prepared, case.slices if noise else None, *case.arrays)
    np.testing.assert_array_equal(np.array(got), scores)
    np.testing.assert_array_equal(np.array(after), state)
    return scores


def check_votes(engine: MetalEngine, case: Case, fitness: np.ndarray, *, clt: bool = True):
    Z = engine.votes(mx.array(fitness.astype(np.int8)), case.slices, clt)
    want = oracle.votes(case.weights, case.noise(), fitness, clt)
    assert list(Z) == list(want)
    for name, z in Z.items():
        np.testing.assert_array_equal(np.array(z), want[name], err_msg=name)


def at_the_end(case: Case) -> Case:
    """The case with every slice ending where the table ends, so that a byte more is seen."""
    for i, leaf in enumerate(case.program.leaves):
        length = case.rank * sum(leaf.shape) if len(leaf.shape) == 2 else 2 * leaf.shape[0]
        case.starts[i] = case.table.size - length
    return case


# M, then a network. 0 members: as many as the engine takes by itself.
CASES = [
    (0, {"D": 64, "V": 256, "T": 2, "P": 2}),  # power-of-two divisors
    (16, {"D": 48, "V": 100, "T": 2, "P": 34, "extreme": True}),  # true divisions
    (32, {"D": 33, "V": 9, "L": 2, "T": 3, "P": 36, "rank": 8}),  # ragged everywhere
    (8, {"D": 300, "V": 5, "T": 1, "P": 2, "sigma_shift": 0, "extreme": True}),  # K 1200: split
    (32, {"D": 132, "V": 5, "T": 2, "P": 34}),  # registers in device memory, 8 simdgroups
    (8, {"D": 8, "V": 5000, "L": 0, "T": 1, "P": 2}),  # a sum beyond 32 bits
    (32, {"D": 1, "V": 2, "T": 1, "P": 2}),  # inputs of fewer than 8 elements
    (8, {"D": 40, "V": 17, "T": 4, "P": 6, "rank": 3, "gates": "table"}),
    (32, {"D": 9, "V": 4, "T": 1, "P": 2, "rank": 40, "sigma_shift": 0}),  # x B in device memory
]


@pytest.mark.parametrize(("members", "shape"), CASES, ids=str)
def test_equals_oracle(launcher: Emulator, members: int, shape: dict):
    case = at_the_end(random_case(1, **shape))
    engine = MetalEngine(case.program, launcher=launcher, members=members)
    fitness = oracle.pair_fitness(check_scores(engine, case))
    check_votes(engine, case, fitness)
    check_votes(engine, case, fitness, clt=False)


@pytest.mark.parametrize(("members", "shape"), [CASES[i] for i in (2, 4, 6, 7)], ids=str)
def test_nax_equals_oracle(launcher: Emulator, members: int, shape: dict):
    """The path for matmul2d, in an emulation of what Apple documents of it."""
    case = at_the_end(random_case(1, **shape))
    members = members if members > 8 else 16
    engine = MetalEngine(case.program, launcher=launcher, members=members, nax=True)
    check_scores(engine, case)
    assert any("matmul2d<" in msl for msl in launcher.sources.values())


@pytest.mark.parametrize(
    ("architecture", "macos", "has"),
    [
        ("applegpu_g17s", "26.2", True),
        ("applegpu_g17s", "26.1", False),
        ("applegpu_g17s", "15.7.1", False),
        ("applegpu_g16s", "26.2", False),
        ("applegpu_g17p", "27.0", False),
        ("applegpu_g18p", "26.2.1", True),
        ("", "26.2", False),
        ("applegpu_g17s", "", False),
    ],
)
def test_what_machines_have_nax(architecture: str, macos: str, has: bool):
    assert metal_trial.has_nax(architecture, macos) is has


def test_kernels_and_nax_are_used_only_after_a_trial(monkeypatch):
    """A wrong result or a dead process of the trial leaves the engine or NAX unused."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"architecture": "applegpu_g17s"})
    monkeypatch.setattr(metal_trial.platform, "mac_ver", lambda: ("26.2", (), ""))
    monkeypatch.setattr(metal_trial, "failure", metal_trial.failure.__wrapped__)
    ends = {False: (0, ""), True: (0, "")}
    tried = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        tried.append("main(True)" in command[-1])
        code, said = ends[tried[-1]]
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(metal_trial.subprocess, "run", run)
    assert MetalEngine.unavailable_because() == ""
    assert metal_trial.nax_usable()
    ends[True] = (-6, "")
    assert MetalEngine.unavailable_because() == ""
    assert not metal_trial.nax_usable()
    ends[False] = (1, "Traceback\nother integers")
    assert MetalEngine.unavailable_because() == "its trial on this GPU failed: other integers"
    count = len(tried)
    monkeypatch.setenv(metal_trial.SWITCH, "0")
    assert not metal_trial.nax_usable()
    assert len(tried) == count


def test_the_trial_passes_where_kernels_are_right(launcher: Emulator, monkeypatch):
    """And fails where they are not; without a GPU its process says so in its last line."""
    monkeypatch.setitem(MetalEngine.__init__.__kwdefaults__, "launcher", launcher)
    assert metal_trial.trial(nax=False)
    assert metal_trial.trial(nax=True)
    right = metal.packed
    monkeypatch.setattr(metal, "packed", lambda w: right(-w))
    assert not metal_trial.trial(nax=False)
    if not mx.metal.is_available():
        assert "No Metal back-end" in metal_trial.failure(False)


def test_cases_reach_what_they_are_for():
    """Device memory for registers and for x B, and all in threadgroup memory."""
    plans = {
        (members, shape["D"]): metal_plan.stage_plans(
            networks.egg(shape["V"], shape["D"], 1), members=members, rank=shape.get("rank", 1)
        )[1]
        for members, shape in CASES
        if members
    }
    assert not all(place.shared for place in plans[32, 132].places.values())
    assert all(place.shared for place in plans[16, 48].places.values())
    assert not plans[32, 9].sums_shared
    assert plans[32, 132].simdgroups == 8


@pytest.mark.parametrize("members", [1, 3, 33])
def test_unperturbed_model_takes_any_number_of_members(launcher: Emulator, members: int):
    case = random_case(5, P=34)
    case.tokens, case.targets = case.tokens[:members], case.targets[:members]
    case.state = case.state[:members]
    check_scores(MetalEngine(case.program, launcher=launcher), case, noise=False)


def test_logits_are_those_the_scores_come_from(launcher: Emulator):
    case = random_case(6, V=11, D=12, L=2, T=1, P=4)
    _, state, logits = case.oracle(noise=False)
    engine = MetalEngine(case.program, launcher=launcher)
    prepared = engine.prepare(case.leaves)
    got, after = engine.logits(prepared, mx.array(case.tokens[:, 0]), mx.array(case.state))
    np.testing.assert_array_equal(np.array(got), logits[:, 0])
    np.testing.assert_array_equal(np.array(after), state)


def test_low_rank_sum_wraps_alike(launcher: Emulator):
    """(x B) A over rank and inputs exceeds int32 here."""
    case = random_case(3, D=64, V=4, L=1, T=1, P=2, rank=40, sigma_shift=0)
    case.weights["embedding"][:] = 127
    case.table[:] = 127
    case.weights["layer0.norm1"][:] = 127
    check_scores(MetalEngine(case.program, launcher=launcher), case)


def extreme_votes() -> tuple[Case, np.ndarray]:
    """1100 pairs whose noise is all 127 and whose fitness is all one: no float holds the sum."""
    case = random_case(2, V=2, D=3, L=0, P=2)
    case.table[:] = 127
    case.starts = np.zeros((len(case.starts), 1100), np.int32)
    return case, np.ones(1100, np.int64)


def test_votes_of_many_pairs_leave_float_in_time(launcher: Emulator, monkeypatch):
    monkeypatch.setattr(gpu, "shares", lambda terms, groups: (1, -(-terms // 32) * 32))
    case, fitness = extreme_votes()
    check_votes(MetalEngine(case.program, launcher=launcher), case, fitness)


def test_votes_of_shares_add_up(launcher: Emulator):
    case, fitness = extreme_votes()
    fitness[::3] = -1
    check_votes(MetalEngine(case.program, launcher=launcher), case, fitness)
    parts, share = metal_plan.shares(1100, 1)
    assert parts > 1
    assert (parts - 1) * share < 1100 <= parts * share


def test_pieces_of_members_and_tokens(launcher: Emulator, monkeypatch):
    """However little a launch may do, the answer is the same."""
    case = random_case(8, V=9, D=8, T=5, P=6)
    whole = metal.piece(case.program, 6, 5, 1)
    assert whole == (6, 5)
    pieces = set()
    for macs in (1, 12_000):
        monkeypatch.setattr(metal, "LAUNCH_MACS", macs)
        pieces.add(metal.piece(case.program, 6, 5, 1))
        check_scores(MetalEngine(case.program, launcher=launcher), case)
    assert pieces == {(2, 1), (6, 2)}, pieces


def test_divisions_are_exact_everywhere(launcher: Emulator):
    """A norm's division for every mean and numerator; a product's near every multiple."""
    norm = metal_source.stage_source(
        metal_plan.stage_plans(networks.egg(4, 4, 1), members=8, rank=1)[1], 8
    )
    body = """
int wrong = 0;
for (int mean = 1 + thread_position_in_grid.x; mean <= 127; mean += 128)
  for (int v = -16129; v <= 16129; ++v) {
    const int floor = v >= 0 ? v / mean : -((mean - 1 - v) / mean);
    wrong += egg::over_mean(v, mean, egg::reciprocal_of(mean)) != egg::clip(floor);
  }
for (int v = -700000 + int(thread_position_in_grid.x); v <= 700000; v += 128) {
  const int floor48 = v >= 0 ? v / 48 : -((47 - v) / 48);
  const int floor2896 = v >= 0 ? v / 2896 : -((2895 - v) / 2896);
  wrong += egg::divide<48>(v) != egg::clip(floor48);
  wrong += egg::divide<2896>(v) != egg::clip(floor2896);
}
out[thread_position_in_grid.x] = wrong + given[0];
"""
    source = norm._replace(inputs=("given",), outputs=("out",), body=body)
    zeros = mx.zeros(8, mx.int32)
    (wrong,) = launcher(source, [zeros], [((128,), mx.int32)], (128, 1, 1), (128, 1, 1))
    assert not np.array(wrong).any()


RUN = (
    *("--data", "count", "--pop", "36", "--steps", "2", "--seq-len", "4", "--table-bits", "16"),
    *("--alpha", "0.5", "--validate-every", "0", "--val-tokens", "64", "--sample-tokens", "2"),
)
RUNS = [
    # The seed's network and the paper's, scaled down. Chunks leave a last one that is smaller.
    {"layers": 1, "width": 16, "vocabulary": 256, "rank": 1, "chunk": 10},
    {"layers": 1, "width": 16, "vocabulary": 1000, "rank": 4, "chunk": 26},
    {"layers": 6, "width": 24, "vocabulary": 256, "rank": 4, "chunk": 22, "gates": "table"},
    {"layers": 6, "width": 16, "vocabulary": 1000, "rank": 1, "chunk": 34, "noise-reuse": 0},
    {"layers": 1, "width": 16, "vocabulary": 256, "rank": 4, "chunk": 14, "nax": True},
]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("network", RUNS, ids=str)
def test_whole_runs_have_one_signature(
    call: Command, folder: Path, tmp_path: Path, monkeypatch, network: dict
):
    """Two updates, validation and samples: portable, cpu and the emulated kernels agree."""
    launcher = Emulator(folder, orders=(FORWARD, REVERSE, SHUFFLED), alternate=True)
    options = dict(network)
    nax = options.pop("nax", False)

    class Emulated(MetalEngine):
        @classmethod
        def unavailable_because(cls) -> str:
            return ""

        def __init__(self, program: language.Program, threads: int = 0, slab: int = 0) -> None:
            super().__init__(program, threads, slab, launcher=launcher, nax=nax)

    monkeypatch.setitem(choice.ENGINES, "metal", Emulated)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    signatures = {}
    for engine in ("portable", "cpu", "metal"):
        out = ("--engine", engine, "--out", tmp_path / engine)
        signatures[engine] = call(*RUN, *words, *out).signature
    assert len(set(signatures.values())) == 1, signatures
    # A launch per stage and chunk; in training besides two for the votes of a chunk.
    stages, chunks = network["layers"] + 2, -(-36 // network["chunk"])
    votes = launcher.launches.count("egg_votes"), launcher.launches.count("egg_vector_votes")
    assert votes == (2 * chunks, 2 * chunks)
    assert launcher.launches[: stages * chunks] == ["egg_stage"] * (stages * chunks)


def test_missing_compiler_skips_or_fails_with_a_sentence(monkeypatch):
    monkeypatch.setattr(emulator, "clang", lambda: None)
    assert "is not installed" in emulator.unavailable_because()


@pytest.mark.skipif(not available()["metal"], reason="this machine has a Metal GPU")
def test_without_a_gpu_the_engine_is_refused(call: Command):
    ended = call(*TINY, "--engine", "metal")
    assert ended.code == 2
    assert "'metal' cannot run here (MLX finds no Metal GPU)" in ended.err
    assert "cpu, portable" in ended.err


def test_what_a_kernel_would_misread_is_refused(launcher: Emulator):
    case = random_case(7)
    engine = MetalEngine(case.program, launcher=launcher)
    prepared, (tokens, targets, state) = engine.prepare(case.leaves), case.arrays
    beyond = case.slices._replace(starts=case.slices.starts + case.table.size)
    with pytest.raises(ValueError, match="beyond the table"):
        engine.evaluate(prepared, beyond, tokens, targets, state)
    with pytest.raises(ValueError, match="beyond the table"):
        engine.votes(mx.ones(2, mx.int8), beyond, True)
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.15"):
        engine.evaluate(prepared, case.slices, tokens + 16, targets, state)
    with pytest.raises(ValueError, match=r"targets must be in 0\.\.15"):
        engine.evaluate(prepared, case.slices, tokens, targets - 16, state)
    with pytest.raises(ValueError, match="state_size"):
        engine.evaluate(prepared, case.slices, tokens, targets, state[:, 1:])
    with pytest.raises(ValueError, match="for 3 members"):
        engine.evaluate(prepared, case.slices, tokens[:3], targets[:3], state[:3])
    assert not launcher.launches


def test_kernels_are_ascii_and_cover_the_operations():
    texts = {path.stem: path.read_bytes() for path in KERNELS.glob("*.metal")}
    assert all(text.isascii() for text in texts.values())
    # score is a linear operation with the likelihood in its epilogue.
    assert set(language.OPERATIONS) <= set(texts)
    assert set(metal_source.OPERATIONS) == set(language.OPERATIONS)


def test_counts_in_the_documentation_are_computed():
    """docs/metal.md shows what the plans say, and the products are those of the formula."""
    text = (Path(__file__).parents[1] / "docs" / "metal.md").read_text()
    for V, D, L, rank in ((256, 64, 1, 1), (256, 256, 6, 1), (256, 256, 6, 4)):
        program = networks.egg(V, D, L)
        assert metal_plan.count_table(program, rank, 10240) in text
        plan = metal_plan.stage_plans(program, members=8, rank=rank)[1]
        assert metal_plan.cost(plan).macs == 12 * D * D + 18 * D * rank
        assert metal_plan.cost(plan).weights * 8 == 12 * D * D + 4 * D
    for plan in metal_plan.stage_plans(program, members=8, rank=1):
        token = metal_source.body(plan, logits=False).partition("++t)")[2]
        assert token.count("threadgroup_barrier") == plan.barriers


def sources():
    """Kernels of both presets at full size: name -> text as MLX takes it."""
    for name, (V, D, L) in {"seed": (256, 64, 1), "paper": (256, 256, 6)}.items():
        program = networks.egg(V, D, L)
        for nax in (False, True):
            M = metal_plan.best_members(program, 1, 10240, nax)
            for i, plan in enumerate(metal_plan.stage_plans(program, members=M, rank=1, nax=nax)):
                stage = ("embedding", "layer", "head")[(i > 0) + (i > L)]
                source = metal_source.stage_source(plan, 8)
                yield f"{name} {stage}{' nax' * nax}", source.header + source.body
    for source in metal_source.vote_sources(1, True):
        yield source.name, source.header + source.body
    yield from credit_sources()


def credit_sources():
    """Kernels of token credit: of the language recipe's network, and those of all networks."""
    program = networks.egg(256, 64, 1)
    for estimator in ("token-credit", "token-votes"):
        how = crediting(program, estimator, sigma_shift=2, discount=12, seq_len=32)
        for plan, stage in zip(
            credit_plans(program, how, members=16), ("embedding", "layer", "head"), strict=True
        ):
            source = metal_credit_source.credit_source(plan, 6)
            yield f"{estimator} {stage}", source.header + source.body
    for source in (
        metal_credit_source.gains_source(), metal_credit_source.traces_source(),
        *metal_credit_source.credit_vote_sources(), *metal_credit_source.row_sources(),
    ):  # fmt: skip
        yield source.name, source.header + source.body


def test_generated_source_is_the_recorded_one():
    """Sees every change of a kernel. Meant? `python tests/test_metal.py` records it anew."""
    now: dict[str, str] = {}
    for name, text in sources():
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
        assert now.setdefault(name, digest) == digest, f"{name} differs between layers"
    assert now == json.loads(GOLDEN.read_text())


def beyond_float() -> Case:
    """K is 1200 in layer0.down, and all its products are 127 * 127: their sum is above 2^24."""
    case = random_case(1, D=300, V=2, T=1, P=2)
    for name in ("embedding", "layer0.norm2", "layer0.up", "layer0.down"):
        case.weights[name][:] = 127
    return at_the_end(case)


def test_sums_beyond_float(launcher: Emulator):
    case = beyond_float()
    check_scores(MetalEngine(case.program, launcher=launcher, members=8), case)


def run_with(folder: Path, edit: Callable[[Source], Source]) -> None:
    """Runs small cases with a fault in the kernels; returns only if nothing was noticed."""
    small = at_the_end(random_case(1, D=12, V=10, T=3, P=6))
    small.tokens[0] = 0
    quick = Emulator(folder, edit=edit)
    for case in (small, beyond_float()):
        engine = MetalEngine(case.program, launcher=quick, members=8)
        check_votes(engine, case, oracle.pair_fitness(check_scores(engine, case)))


FAULTS = {
    "a slice read past its end": ("PERTURBED && o < O", "PERTURBED"),
    "a member that is not there": ("min(uint(M), members); m += 2 * S", "uint(M); m += 2 * S"),
    "an input too many": ("k < K; k += 32", "k <= K; k += 32"),
    "float sums of all inputs": ("min(from + 32, blocks)", "blocks"),
    "division toward zero": (
        "return clip(int(uint(clamp(v, least, -least - 1) - least) / uint(DIVISOR)) - 128);",
        "return clip(v / DIVISOR);",
    ),
    "shift toward zero": ("int(odd) >> SHIFT", "int(odd) / (1 << SHIFT)"),
    "the sign of the odd member": ("= -odd;", "= odd;"),
    "lanes that part": ("even = simd_sum(even);", "if (lane.index != 3) even = simd_sum(even);"),
    "a state that is not restarted": ("tokens[m * T] == 0", "tokens[m * T] == -1"),
    "an edge of the votes": ("tile.column + c < tile.K", "true"),
    "an address space forgotten": ("const device int8_t* two =", "const int8_t* two ="),
    "signed and unsigned mixed": ("min(uint(M), members)", "min(M, members)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(folder: Path, fault: str):
    """The emulation is worth what it notices."""
    old, new = FAULTS[fault]
    found = []

    def edit(source: Source) -> Source:
        found.append(old in source.header + source.body)
        replaced = (text.replace(old, new) for text in (source.header, source.body))
        return source._replace(**dict(zip(("header", "body"), replaced, strict=True)))

    with pytest.raises((EmulationError, AssertionError)):
        run_with(folder, edit)
    assert any(found), "the fault did not get in"


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
LAYER = metal_plan.stage_plans(networks.egg(10, 12, 1), members=8, rank=1)[1]
BARRIERS = metal_source.body(LAYER, logits=False).count(BARRIER)


@pytest.mark.parametrize("number", range(BARRIERS))
def test_every_barrier_of_a_layer_is_needed(folder: Path, number: int):
    """Without one of them, some order of the simdgroups gives something else."""

    def edit(source: Source) -> Source:
        parts = source.body.split(BARRIER)
        if len(parts) != BARRIERS + 1:
            return source
        joined = parts[number] + parts[number + 1]
        parts[number : number + 2] = [joined]
        return source._replace(body=BARRIER.join(parts))

    with pytest.raises((EmulationError, AssertionError)):
        run_with(folder, edit)


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps(
            {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sources()}, indent=1
        )
        + "\n"
    )
