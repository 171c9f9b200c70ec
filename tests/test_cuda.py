"""The CUDA kernels on this CPU: the text that MLX would compile, run by clang, equals the oracle.

cuda/cuda_emulator.py says how. Nothing here has run on an NVIDIA GPU, but for the test that looks
for one.
"""

from __future__ import annotations

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
from networks import random_case
from test_metal import at_the_end, check_scores, check_votes, extreme_votes

sys.path.insert(0, str(Path(__file__).parent / "cuda"))
from cuda_emulator import (
    FORWARD,
    REVERSE,
    SHUFFLED,
    CudaEmulator,
    EmulationError,
    metal,
    without_asm,
)

from eggroll import networks
from eggroll import program as language
from eggroll.engines import available, choice
from eggroll.engines.cuda import device as cuda_trial
from eggroll.engines.cuda import engine as cuda
from eggroll.engines.cuda import plan as cuda_plan
from eggroll.engines.cuda import source as cuda_source
from eggroll.engines.cuda.engine import CudaEngine
from eggroll.engines.cuda.plan import PRODUCTS, Target, target
from eggroll.engines.cuda.source import Source
from eggroll.engines.portable.engine import PortableEngine
from eggroll.errors import InputError

KERNELS = Path(__file__).parents[1] / "extensions" / "int8_gemm" / "cuda"
REQUIRED = "cuda" in os.environ.get("EGGROLL_REQUIRE", "").split(",")
NO_ROOM = 16 << 10  # bytes of shared memory that are too few for wide networks


def on(product: str, shared_bytes: int = 0) -> Target:
    """A GPU that has the product, with other shared memory if asked."""
    found = target(75 if product == "m8n8k16" else 80, product)
    return found if not shared_bytes else Target(found.architecture, product, shared_bytes)


def refuse(sentence: str) -> None:
    """Skips where a tool is missing; fails where EGGROLL_REQUIRE wants cuda covered."""
    if sentence:
        pytest.fail(sentence) if REQUIRED else pytest.skip(sentence)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled; one that several tests need is compiled once."""
    refuse(metal.unavailable_because())
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture
def launcher(folder: Path):
    """Runs every launch in two orders of the threads."""
    return CudaEmulator(folder)


# M, the product, bytes of shared memory, then a network. 0: what the engine takes by itself.
CASES = [
    (0, "m16n8k32", 0, {"D": 64, "V": 256, "T": 2, "P": 2}),  # power-of-two divisors
    (16, "m8n8k16", 0, {"D": 48, "V": 100, "T": 2, "P": 18, "extreme": True}),  # true divisions
    (64, "m16n8k32", 0, {"D": 33, "V": 9, "L": 2, "T": 2, "P": 66, "rank": 8}),  # ragged
    (32, "m16n8k32", NO_ROOM, {"D": 132, "V": 5, "T": 2, "P": 34}),  # registers in device memory
    (8, "m16n8k32", 0, {"D": 8, "V": 5000, "L": 0, "T": 1, "P": 2}),  # a sum beyond 32 bits
    (32, "m8n8k16", 0, {"D": 1, "V": 2, "T": 1, "P": 2}),  # next to nothing
    (8, "dp4a", 0, {"D": 20, "V": 17, "T": 3, "P": 6, "rank": 3, "gates": "table"}),
    (32, "m16n8k32", NO_ROOM, {"D": 9, "V": 4, "T": 1, "P": 2, "rank": 40, "sigma_shift": 0}),
]


@pytest.mark.parametrize(("members", "product", "shared", "shape"), CASES, ids=str)
def test_equals_oracle(
    launcher: CudaEmulator, members: int, product: str, shared: int, shape: dict
):
    case = at_the_end(random_case(1, **shape))
    engine = CudaEngine(case.program, launcher=launcher, members=members, on=on(product, shared))
    fitness = oracle.pair_fitness(check_scores(engine, case))
    check_votes(engine, case, fitness)
    check_votes(engine, case, fitness, clt=False)
    assert any(f"mma.sync.aligned.{product}" in text for text in launcher.sources.values()) == (
        product != "dp4a"
    )


def test_cases_reach_what_they_are_for():
    """Device memory for registers and for x B, a warp for some of a block's members or for 32."""
    plans = {
        shape["D"]: cuda_plan.cuda_plans(
            networks.egg(shape["V"], shape["D"], 1), on(product, shared),
            members=members or 8, rank=shape.get("rank", 1),
        )[1]
        for members, product, shared, shape in CASES
    }  # fmt: skip
    assert not all(place.shared for place in plans[132].places.values())
    assert all(place.shared for place in plans[48].places.values())
    assert not plans[9].sums_shared
    assert {plans[33].columns(33), plans[132].columns(4 * 132)} == {2, 4}


@pytest.mark.parametrize("members", [1, 33])
def test_unperturbed_model_takes_any_number_of_members(launcher: CudaEmulator, members: int):
    case = random_case(5, P=34)
    case.tokens, case.targets = case.tokens[:members], case.targets[:members]
    case.state = case.state[:members]
    check_scores(CudaEngine(case.program, launcher=launcher, on=on("m16n8k32")), case, noise=False)


def test_logits_are_those_the_scores_come_from(launcher: CudaEmulator):
    case = random_case(6, V=11, D=12, L=2, T=1, P=4)
    _, state, logits = case.oracle(noise=False)
    engine = CudaEngine(case.program, launcher=launcher, on=on("m16n8k32"))
    prepared = engine.prepare(case.leaves)
    got, after = engine.logits(prepared, mx.array(case.tokens[:, 0]), mx.array(case.state))
    np.testing.assert_array_equal(np.array(got), logits[:, 0])
    np.testing.assert_array_equal(np.array(after), state)


def test_low_rank_sum_wraps_alike(launcher: CudaEmulator):
    """(x B) A over rank and inputs exceeds int32 here."""
    case = random_case(3, D=64, V=4, L=1, T=1, P=2, rank=40, sigma_shift=0)
    case.weights["embedding"][:] = 127
    case.table[:] = 127
    case.weights["layer0.norm1"][:] = 127
    check_scores(CudaEngine(case.program, launcher=launcher, on=on("m16n8k32")), case)


def test_votes_of_shares_add_up(launcher: CudaEmulator):
    case, fitness = extreme_votes()
    fitness[::3] = -1
    check_votes(CudaEngine(case.program, launcher=launcher, on=on("m16n8k32")), case, fitness)


def test_pieces_of_members_and_tokens(launcher: CudaEmulator, monkeypatch):
    """However little a launch may do, the answer is the same."""
    case, gpu = random_case(8, V=9, D=8, T=5, P=6), on("m16n8k32")
    pieces = {cuda.piece(case.program, gpu, 6, 5, 1)}
    for macs in (1, 12_000):
        monkeypatch.setattr(cuda, "LAUNCH_MACS", macs)
        pieces.add(cuda.piece(case.program, gpu, 6, 5, 1))
        check_scores(CudaEngine(case.program, launcher=launcher, on=gpu), case)
    assert pieces == {(6, 5), (2, 1), (6, 2)}, pieces


def test_small_functions_are_exact_everywhere(launcher: CudaEmulator):
    """A norm's division for every mean and numerator, a product's near every multiple, EXP2."""
    program = networks.egg(4, 4, 1)
    plans = cuda_plan.cuda_plans(program, on("m16n8k32"), members=8, rank=1)
    layer, head = (cuda_source.stage_source(plan, 8, "m16n8k32") for plan in plans[1:])
    norm = layer._replace(header=head.header)
    body = """
int wrong = 0;
for (int mean = 1 + threadIdx.x; mean <= 127; mean += 128)
  for (int v = -16129; v <= 16129; ++v) {
    const int floor = v >= 0 ? v / mean : -((mean - 1 - v) / mean);
    wrong += egg::over_mean(v, mean, egg::reciprocal_of(mean)) != egg::clip(floor);
  }
for (int v = -700000 + int(threadIdx.x); v <= 700000; v += 128) {
  const int floor48 = v >= 0 ? v / 48 : -((47 - v) / 48);
  const int floor2896 = v >= 0 ? v / 2896 : -((2895 - v) / 2896);
  wrong += egg::divide<48>(v) != egg::clip(floor48);
  wrong += egg::divide<2896>(v) != egg::clip(floor2896);
}
for (uint32_t u = threadIdx.x; u < 256; u += 128)
  wrong += egg::exp2_q4(EXP2, u) != uint32_t(given[u]);
out[threadIdx.x] = wrong;
"""
    source = norm._replace(inputs=("given",), outputs=("out",), body=body, shared=0)
    table = mx.array(oracle.EXP2[16].astype(np.int32))
    (wrong,) = launcher(source, [table], [((128,), mx.int32)], (128, 1, 1), (128, 1, 1))
    assert not np.array(wrong).any()


RUN = (
    *("--data", "count", "--pop", "36", "--steps", "2", "--seq-len", "3", "--table-bits", "16"),
    *("--alpha", "0.5", "--validate-every", "0", "--val-tokens", "32", "--sample-tokens", "2"),
)
RUNS = [
    # The seed's network and the paper's, scaled down. Chunks leave a last one that is smaller.
    ("m8n8k16", {"layers": 1, "width": 16, "vocabulary": 1000, "rank": 4, "chunk": 26}),
    ("dp4a", {"layers": 1, "width": 8, "vocabulary": 256, "rank": 1, "chunk": 22}),
    ("m16n8k32", {"layers": 6, "width": 24, "vocabulary": 256, "rank": 4, "chunk": 22}),
    ("m16n8k32", {"layers": 6, "width": 16, "vocabulary": 1000, "rank": 1, "chunk": 34}),
]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(("product", "network"), RUNS, ids=str)
def test_whole_runs_have_one_signature(
    call: Command, folder: Path, tmp_path: Path, monkeypatch, product: str, network: dict
):
    """Two updates, validation and samples: portable, cpu and the emulated kernels agree."""
    launcher = CudaEmulator(folder, orders=(FORWARD, REVERSE, SHUFFLED), alternate=True)

    class Emulated(CudaEngine):
        @classmethod
        def unavailable_because(cls) -> str:
            return ""

        def __init__(self, program: language.Program, threads: int = 0, slab: int = 0) -> None:
            super().__init__(program, threads, slab, launcher=launcher, on=on(product))

    monkeypatch.setitem(choice.ENGINES, "cuda", Emulated)
    gates = {"gates": "table"} if network["width"] == 24 else {}
    words = [word for name, value in (network | gates).items() for word in (f"--{name}", value)]
    signatures = {}
    for engine in ("portable", "cpu", "cuda"):
        out = ("--engine", engine, "--out", tmp_path / engine)
        signatures[engine] = call(*RUN, *words, *out).signature
    assert len(set(signatures.values())) == 1, signatures
    # A launch per stage and chunk; in training besides two for the votes of a chunk.
    stages, chunks = network["layers"] + 2, -(-36 // network["chunk"])
    votes = launcher.launches.count("egg_votes"), launcher.launches.count("egg_vector_votes")
    assert votes == (2 * chunks, 2 * chunks)
    assert launcher.launches[: stages * chunks] == ["egg_stage"] * (stages * chunks)


def test_emulation_reads_assembly_with_its_operands():
    """A matrix product reaches the emulation with the operands of its statement, or not at all."""
    code = "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
    statement = f'asm volatile("{code}" : "+r"(d[0]), "+r"(d[1]) : "r"(a), "r"(f(b, c)));'
    assert without_asm(statement) == "emu::m8n8k16(d[0], d[1], a, f(b, c));"
    for old, new in (
        ("{%2}, {%3}", "{%3}, {%2}"), ("s8.s8", "u8.s8"), ('"+r"(d[1])', '"=r"(d[1])'),
        ("{%3}, {%0, %1}", "{%3}, {%1, %0}"), ("mma.sync", "mma"),
    ):  # fmt: skip
        with pytest.raises(EmulationError):
            without_asm(statement.replace(old, new))


@pytest.mark.skipif(not available()["cuda"], reason="this machine has a CUDA GPU")
def test_without_a_gpu_the_engine_is_refused(call: Command):
    ended = call(*TINY, "--engine", "cuda")
    assert ended.code == 2
    assert "'cuda' cannot run here (MLX finds no CUDA GPU)" in ended.err
    assert "cpu, portable" in ended.err


def test_it_is_used_only_after_a_trial(monkeypatch):
    """A wrong result or a dead process of the trial leaves the engine unused."""
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_trial, "failure", cuda_trial.failure.__wrapped__)
    ends, asked = [(0, ""), (-6, ""), (1, "Traceback\nother integers")], []

    def run(command: list[str], *, env: dict, **_: object) -> subprocess.CompletedProcess:
        asked.append(env[cuda_trial.SWITCH])
        code, said = ends.pop(0)
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv(cuda_trial.SWITCH, "dp4a")
    assert CudaEngine.unavailable_because() == ""
    assert CudaEngine.unavailable_because() == "its trial on this GPU failed: exit code -6"
    assert CudaEngine.unavailable_because() == "its trial on this GPU failed: other integers"
    assert asked == ["dp4a"] * 3
    monkeypatch.setenv(cuda_trial.SWITCH, "fast")
    with pytest.raises(InputError, match=r"EGGROLL_CUDA='fast'.*m16n8k32, m8n8k16, dp4a"):
        CudaEngine.unavailable_because()


def test_the_trial_passes_where_kernels_are_right(launcher: CudaEmulator, monkeypatch):
    """And fails where they are not; without a GPU its process says so in its last line."""
    monkeypatch.setitem(CudaEngine.__init__.__kwdefaults__, "launcher", launcher)
    monkeypatch.setitem(CudaEngine.__init__.__kwdefaults__, "on", on("m16n8k32"))
    assert cuda_trial.trial()
    right = cuda.packed
    monkeypatch.setattr(cuda, "packed", lambda w: right(-w))
    assert not cuda_trial.trial()
    if not mx.cuda.is_available():
        assert "No CUDA back-end" in cuda_trial.failure("")


@pytest.mark.parametrize("product", PRODUCTS)
def test_on_this_gpu(product: str, monkeypatch):
    """Both presets' shapes on a real GPU, against plain MLX, with every product it has."""
    monkeypatch.setenv(cuda_trial.SWITCH, product)
    if not cuda_trial.has_gpu():
        pytest.skip("MLX finds no CUDA GPU")
    if cuda_trial.architecture() < {"m16n8k32": 80, "m8n8k16": 75, "dp4a": 61}[product]:
        pytest.skip(f"this GPU has no {product}")
    assert not CudaEngine.unavailable_because()
    for shape in ({"V": 256, "D": 64, "P": 70}, {"V": 1000, "D": 256, "L": 6, "P": 66, "rank": 4}):
        case = random_case(4, T=3, **shape)
        fitness = mx.array(np.random.default_rng(0).integers(-1, 2, case.starts.shape[1], np.int8))
        results = []
        for engine in (CudaEngine(case.program), PortableEngine(case.program)):
            scored = engine.evaluate(engine.prepare(case.leaves), case.slices, *case.arrays)
            votes = engine.votes(fitness, case.slices, True)
            results.append([np.array(a) for a in (*scored, *votes.values())])
        for mine, plain in zip(*results, strict=True):
            np.testing.assert_array_equal(mine, plain)


def test_what_a_kernel_would_misread_is_refused(launcher: CudaEmulator):
    case = random_case(7)
    engine = CudaEngine(case.program, launcher=launcher, on=on("m16n8k32"))
    prepared, (tokens, targets, state) = engine.prepare(case.leaves), case.arrays
    beyond = case.slices._replace(starts=case.slices.starts + case.table.size)
    with pytest.raises(ValueError, match="beyond the table"):
        engine.evaluate(prepared, beyond, tokens, targets, state)
    with pytest.raises(ValueError, match="beyond the table"):
        engine.votes(mx.ones(2, mx.int8), beyond, True)
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.15"):
        engine.evaluate(prepared, case.slices, tokens + 16, targets, state)
    with pytest.raises(ValueError, match="state_size"):
        engine.evaluate(prepared, case.slices, tokens, targets, state[:, 1:])
    assert not launcher.launches


def test_kernels_are_ascii_and_cover_the_operations():
    texts = {path.stem: path.read_bytes() for path in KERNELS.glob("*.cu")}
    assert all(text.isascii() for text in texts.values())
    assert set(language.OPERATIONS) | {f"mma_{product}" for product in PRODUCTS} <= set(texts)
    assert set(cuda_source.OPERATIONS) == set(language.OPERATIONS)


def run_with(folder: Path, edit: Callable[[Source], Source]) -> None:
    """Runs a small case with a fault in the kernels; returns only if nothing was noticed."""
    case = at_the_end(random_case(1, D=12, V=10, T=3, P=6))
    case.tokens[0] = 0
    quick = CudaEmulator(folder, edit=edit)
    engine = CudaEngine(case.program, launcher=quick, members=8, on=on("m16n8k32"))
    check_votes(engine, case, oracle.pair_fitness(check_scores(engine, case)))


FAULTS = {
    "a word beyond the table": ("end = at + 3;", "end = at + 4;"),
    "a member that is not there": ("i < D * min(uint32_t(M), members)", "i < D * uint32_t(M)"),
    "an input too many": ("4 * quad + e < COUNT", "4 * quad + e <= COUNT"),
    "division toward zero": (
        "return max(int(uint32_t(max(least, min(v, -least - 1)) - least) / uint32_t(DIVISOR)), 1) - 128;",  # noqa: E501
        "return clip(v / DIVISOR);",
    ),
    "shift toward zero": ("int(odd[e]) >> SHIFT", "int(odd[e]) / (1 << SHIFT)"),
    "the sign of the odd member": ("row.odd ? -sum : sum;", "sum;"),
    "lanes that part": ("sum = over_row(sum);", "if (row.lane != 3) sum = over_row(sum);"),
    "a state that is not restarted": ("tokens[member * T] == 0", "tokens[member * T] == -1"),
    "an edge of the votes": ("tile.column + c < tile.K", "true"),
    "operands in another order": ('"r"(a.x), "r"(a.y)', '"r"(a.y), "r"(a.x)'),
    "halves of inputs exchanged": ('"r"(b.x), "r"(b.y)', '"r"(b.y), "r"(b.x)'),
    "a shuffle of some lanes": ("__shfl_xor_sync(0xffffffffu", "__shfl_xor_sync(0xffffu"),
    "signed and unsigned mixed": ("min(uint32_t(M), members)", "min(M, members)"),
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


BARRIER = "__syncthreads();\n"
LAYER = cuda_plan.cuda_plans(networks.egg(10, 12, 1), on("m16n8k32"), members=8, rank=1)[1]
BARRIERS = cuda_source.body(cuda_source.Writer(LAYER, False)).count(BARRIER)


@pytest.mark.parametrize("number", range(BARRIERS))
def test_every_barrier_of_a_layer_is_needed(folder: Path, number: int):
    """Without one of them, some order of the warps gives something else."""

    def edit(source: Source) -> Source:
        parts = source.body.split(BARRIER)
        if len(parts) != BARRIERS + 1:
            return source
        joined = parts[number] + parts[number + 1]
        parts[number : number + 2] = [joined]
        return source._replace(body=BARRIER.join(parts))

    with pytest.raises((EmulationError, AssertionError)):
        run_with(folder, edit)
