"""The text of both GPUs' kernels: recorded, counted, within threadgroup memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from test_credit import CREDITED

from eggroll import networks
from eggroll.engines import cuda as cuda_plan
from eggroll.engines.cuda import Cuda
from eggroll.engines.gpu import backward_plan, plan
from eggroll.engines.gpu import credit as credit_plan
from eggroll.engines.gpu.backward_kernels import BackwardWriter, TapeStageWriter
from eggroll.engines.gpu.backward_plan import BackwardPlan
from eggroll.engines.gpu.credit import CreditStageWriter
from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.losses import rating_kernel
from eggroll.engines.gpu.plan import cost_table, format_costs, stage_cost
from eggroll.engines.gpu.rules import adam_kernel, master_kernel, whitening_kernels
from eggroll.engines.gpu.stage import OPERATIONS, StageResult, StageWriter
from eggroll.engines.gpu.votes import backward_vote_kernels, credit_kernels, vote_sources
from eggroll.engines.metal import Metal
from eggroll.spec import backward, credit
from eggroll.spec import program as language
from eggroll.spec.losses import LOSSES
from gpu.backend import (
    GPUS,
    CudaGpu,
    Gpu,
    MetalGpu,
    credit_source,
    engine,
    on,
    per_token,
    stage_source,
)
from gpu.every_kernel import game

TESTS = Path(__file__).parents[1]
KERNELS = TESTS.parent / "extensions" / "int8_gemm"
PRESETS = {"seed": (256, 64, 1), "paper": (256, 256, 6)}
STAGES = ("embedding", "layer", "head")


def head_sources(
    plans: Sequence[plan.StagePlan], dialect: Dialect
) -> Iterator[tuple[str, KernelSource]]:
    """A head's other results: exact losses, and scores in 1/256 bit."""
    head = plans[-1]
    yield "seed head, exact", StageWriter(head, dialect, "likelihoods").source()
    head.program.score_bits = 8
    yield "seed head, 1/256 bit", StageWriter(head, dialect, shift=8).source()


def game_sources(
    gpu: Gpu, dialect: Dialect, variant: str = ""
) -> Iterator[tuple[str, KernelSource]]:
    """Its only stage: what it puts out, what it leaves for credit, and the way back."""
    made = engine(gpu, game(), gpu.launcher(), variant=variant)
    (outputs,) = made.plans(16, 1, puts_out=True)
    yield (
        f"game outputs {variant}".strip(),
        StageWriter(outputs, dialect, "outputs", shift=8).source(),
    )
    for estimator in CREDITED:
        crediting = credit.crediting(
            made.program, nodes=estimator == "token-credit", sigma_shift=2, discount=0, seq_len=8
        )
        results: tuple[StageResult, ...] = ("scores", "outputs")
        for result in results[: 1 + crediting.nodes]:
            (each,) = made.credit_plans(crediting, 16, puts_out=result == "outputs")
            name = f"game {estimator} {result} {variant}".strip()
            yield name, CreditStageWriter(each, dialect, result, shift=6).source()
    (each,) = made.backward_plans(passing(made.program), 16)
    yield f"game feedback {variant}".strip(), TapeStageWriter(each, dialect).source()
    yield f"game feedback back {variant}".strip(), BackwardWriter(each, dialect).source()


def creditings(program: language.Program) -> Iterator[tuple[str, credit.Crediting]]:
    for estimator in (*CREDITED, "group-credit"):
        nodes, group = estimator != "token-votes", 8 if estimator == "group-credit" else 0
        yield (
            estimator,
            credit.crediting(
                program, nodes=nodes, sigma_shift=2, discount=12, seq_len=32, group=group
            ),
        )


def carry_sources(
    plans: Sequence[BackwardPlan], dialect: Dialect, members: int
) -> Iterator[tuple[str, KernelSource]]:
    """Errors carried back: stages there and back, and votes."""
    for each, stage in zip(plans, STAGES, strict=True):
        yield f"feedback {stage}", TapeStageWriter(each, dialect).source()
        yield f"feedback {stage}, back", BackwardWriter(each, dialect).source()
    for source in backward_vote_kernels(dialect, members):
        yield source.name, source
    for wide, loss in product((False, True), LOSSES):
        source = rating_kernel(dialect, loss, wide)
        yield f"{source.name}{', wide' * wide}", source
    yield "egg_master", master_kernel(dialect)
    for feedback in (False, True):
        name = ", feedback" * feedback
        yield f"egg_adam{name}", adam_kernel(dialect, feedback)
        for source in whitening_kernels(dialect, feedback).values():
            yield f"{source.name}{name}", source


def passing(program: language.Program) -> frozenset[int]:
    """Leaves that pass credit on with estimator feedback."""
    names = (*backward.layers(program), *backward.heads(program))
    return frozenset(i for i, leaf in enumerate(program.leaves) if leaf.name in names)


def metal_sources() -> Iterator[tuple[str, KernelSource]]:
    """Kernels of both presets at full size, and of token credit."""
    for name, (V, D, L) in PRESETS.items():
        program = networks.egg(V, D, L)
        for nax in (False, True):
            M = plan.best_members(program, 1, 10240, nax)
            for i, each in enumerate(plan.stage_plans(program, members=M, rank=1, nax=nax)):
                stage = STAGES[(i > 0) + (i > L)] + " nax" * nax
                yield f"{name} {stage}", StageWriter(each, Metal(), shift=8).source()
    for source in vote_sources(Metal(), 1, True):
        yield source.name, source
    program = networks.egg(256, 64, 1)
    yield from head_sources(plan.stage_plans(program, members=32, rank=1), Metal())
    program = networks.egg(256, 64, 1)
    for estimator, crediting in creditings(program):
        plans = credit_plan.credit_plans(program, crediting, members=16)
        for each, stage in zip(plans, STAGES, strict=True):
            yield f"{estimator} {stage}", CreditStageWriter(each, Metal(), shift=6).source()
    for source in credit_kernels(Metal()):
        yield source.name, source
    carried = backward_plan.backward_plans(program, passing(program), members=16)
    yield from carry_sources(carried, Metal(), 16)
    for variant in ("", "nax"):
        yield from game_sources(MetalGpu(Path()), Metal(), variant)


def cuda_sources(architecture: int) -> Iterator[tuple[str, KernelSource]]:
    """The same for a compute capability."""
    gpu = cuda_plan.target(architecture)
    dialect = Cuda(gpu.product)
    for name, (V, D, L) in PRESETS.items():
        program = networks.egg(V, D, L)
        M = cuda_plan.block_members(program, gpu, 1, 10240)
        for i, each in enumerate(cuda_plan.cuda_plans(program, gpu, members=M, rank=1)):
            stage = STAGES[(i > 0) + (i > L)]
            yield f"{name} {stage}", StageWriter(each, dialect, shift=8).source()
    for source in vote_sources(dialect, 1, True):
        yield source.name, source
    program = networks.egg(256, 64, 1)
    yield from head_sources(cuda_plan.cuda_plans(program, gpu, members=32, rank=1), dialect)
    program = networks.egg(256, 64, 1)
    for estimator, crediting in creditings(program):
        plans = cuda_plan.cuda_credit_plans(program, crediting, gpu, members=16)
        for each, stage in zip(plans, STAGES, strict=True):
            yield f"{estimator} {stage}", CreditStageWriter(each, dialect, shift=6).source()
    for source in credit_kernels(dialect):
        yield source.name, source
    carried = cuda_plan.cuda_backward_plans(program, passing(program), gpu, members=16)
    yield from carry_sources(carried, dialect, 16)
    yield from game_sources(CudaGpu(Path()), dialect, gpu.product)


def digests(gpu: str) -> dict[str, str]:
    """Name of a kernel -> hash of its text."""
    if gpu == "metal":
        named = list(metal_sources())
    else:
        named = [(f"{name} sm_{a}", source) for a in (75, 80) for name, source in cuda_sources(a)]
    now: dict[str, str] = {}
    for name, source in named:
        digest = hashlib.sha256((source.header + source.body).encode("ascii")).hexdigest()
        assert now.setdefault(name, digest) == digest, f"{name} differs between layers"
    return now


@pytest.mark.parametrize("gpu", GPUS)
def test_generated_source_is_the_recorded_one(gpu: str):
    """Sees every change of a kernel.

    Meant? `PYTHONPATH=tests python -m gpu.test_gpu_sources` records it anew.
    """
    assert digests(gpu) == json.loads((TESTS / gpu / "golden.json").read_text())


def test_kernels_are_ascii_and_cover_the_operations():
    """Every operation has a file of its own, common or in both languages."""
    assert set(OPERATIONS) == set(language.OPERATIONS)
    common = {path.stem for path in (KERNELS / "gpu").glob("*.h")}
    assert common
    for folder, suffix in (("metal", "metal"), ("cuda", "cu")):
        own = {path.stem for path in (KERNELS / folder).glob(f"*.{suffix}")}
        assert set(language.OPERATIONS) <= own | common
        assert not own & common
    files = [path for name in ("gpu", "metal", "cuda") for path in (KERNELS / name).iterdir()]
    assert all(path.read_bytes().isascii() for path in files)
    products = {f"mma_{product}.cu" for product in cuda_plan.PRODUCTS}
    assert products <= {path.name for path in files}


BYTES = {"uint4": 16, "int": 4, "char4": 4, "uint32_t": 4}


@pytest.mark.parametrize("nax", [False, True])
@pytest.mark.parametrize("members", plan.MEMBERS)
@pytest.mark.parametrize("D", [64, 128, 256])
def test_metal_keeps_within_threadgroup_memory(D: int, members: int, nax: bool):
    """By what kernels declare, whatever the vocabulary; and a source says how much that is."""
    for V in (256, 900, 1000, 2000, 5000):
        program = networks.egg(V, D, 1)
        for estimator in CREDITED:
            crediting = credit.crediting(
                program, nodes=estimator == "token-credit", sigma_shift=2, discount=12, seq_len=8
            )
            for each in credit_plan.credit_plans(program, crediting, members=members, nax=nax):
                source = CreditStageWriter(each, Metal(), shift=6).source()
                declared = re.findall(r"EGG_SHARED\((\w+), \w+, (\d+)\)", source.body)
                wide = BYTES | {"Total": 8 if V > 4096 else 4}
                total = sum(wide[kind] * int(count) for kind, count in declared)
                most = plan.SHARED_BYTES - (plan.NAX_BYTES if nax else 0)
                assert total == source.shared <= most, (V, each.stage)


@pytest.mark.parametrize("architecture", [75, 80, 86, 90, 0])
@pytest.mark.parametrize("members", cuda_plan.MEMBERS)
def test_cuda_keeps_within_shared_memory(architecture: int, members: int):
    """By what kernels ask for, whatever the vocabulary."""
    gpu = cuda_plan.target(architecture)
    for V, D in ((256, 64), (1000, 128), (2000, 256), (5000, 512)):
        program = networks.egg(V, D, 1)
        for estimator in CREDITED:
            crediting = credit.crediting(
                program, nodes=estimator == "token-credit", sigma_shift=2, discount=12, seq_len=8
            )
            for each in cuda_plan.cuda_credit_plans(program, crediting, gpu, members=members):
                source = CreditStageWriter(each, Cuda(gpu.product), shift=6).source()
                assert each.shared_rows * each.stride <= source.shared <= gpu.shared_bytes


def test_shared_memory_is_what_the_plan_says():
    """And no more than a block may have: also where registers leave it."""
    for architecture, D in ((75, 64), (75, 256), (80, 256), (90, 700), (0, 700)):
        gpu = cuda_plan.target(architecture)
        for each in cuda_plan.cuda_plans(networks.egg(5000, D, 1), gpu, members=64, rank=4):
            source = StageWriter(each, Cuda(gpu.product), shift=8).source()
            assert each.shared_rows * each.stride <= source.shared <= gpu.shared_bytes


@pytest.mark.parametrize(
    ("architecture", "shape", "population", "members"),
    [
        (90, (256, 256, 6), 262_144, 64),  # weights come from afar: many members share them
        (80, (256, 256, 6), 262_144, 32),  # of more, one block alone would fill a multiprocessor
        (90, (256, 256, 6), 10240, 32),  # 160 blocks of 64 would leave most of 132 with one
        (80, (256, 64, 1), 10240, 32),
        (80, (256, 64, 1), 100_000, 64),
        (90, (256, 256, 6), 1024, 8),  # else most multiprocessors would have nothing to do
    ],
)
def test_members_of_a_block(architecture: int, shape: tuple, population: int, members: int):
    program, gpu = networks.egg(*shape), cuda_plan.target(architecture)
    assert cuda_plan.block_members(program, gpu, 1, population) == members


@pytest.mark.parametrize("kind", GPUS)
def test_counts_in_the_documentation_are_computed(kind: str):
    """The pages show what the plans say, and the products are those of the formula."""
    gpu: Gpu = GPUS[kind](Path())
    text = (TESTS.parent / "docs" / f"{kind}.md").read_text()
    for V, D, L, rank in ((256, 64, 1, 1), (256, 256, 6, 1), (256, 256, 6, 4)):
        program = networks.egg(V, D, L)
        if isinstance(gpu, MetalGpu):
            assert cost_table(program, rank, 10240) in text
        else:
            M = cuda_plan.block_members(program, on(), rank, 10240)
            assert format_costs(gpu.plans(program, M, rank)) in text
        layer = gpu.plans(program, 8, rank)[1]
        assert stage_cost(layer).macs == 12 * D * D + 18 * D * rank
        assert stage_cost(layer).weights * 8 == 12 * D * D + 4 * D
        for each in gpu.plans(program, 8, rank):
            token = per_token(stage_source(gpu, each))
            assert token.count(gpu.barrier.partition("(")[0]) == each.barriers


def test_counts_of_credit_in_the_documentation_are_computed():
    """docs/metal.md shows what the plans say, and the products are those of the formula."""
    text, gpus = (
        (TESTS.parent / "docs" / "metal.md").read_text(),
        (MetalGpu(Path()), CudaGpu(Path())),
    )
    for estimator, (V, D, L, P) in (
        ("token-credit", (256, 64, 1, 1024)),
        ("token-credit", (256, 256, 6, 10240)),
        ("token-votes", (256, 64, 1, 1024)),
    ):
        program = networks.egg(V, D, L)
        crediting = credit.crediting(
            program, nodes=estimator == "token-credit", sigma_shift=2, discount=12, seq_len=32
        )
        assert credit_plan.credit_table(program, crediting, P) in text
        plans = credit_plan.credit_plans(program, crediting, members=8)
        nodes = estimator == "token-credit"
        assert plans[1].macs == 12 * D * D + (0 if nodes else 18 * D)
        # Wf and Wh read the same; of int8, and with token-votes an int32 for each of six.
        assert plans[1].tape_bytes == 8 * D + (0 if nodes else 24)
        after = credit_plan.follow_up_costs(plans)
        launches = len(plans) + sum(counts.launches for counts in after.values())
        assert launches == 3 * L + (6 if nodes else 7)
        assert after["votes of matrices"].per_member == (12 * D * D * L + V * D * (not nodes)) / 2
        for gpu in gpus:
            for each in gpu.credit_plans(program, crediting, 8):
                token = per_token(credit_source(gpu, each, 8))
                assert token.count(gpu.barrier.partition("(")[0]) == each.barriers


if __name__ == "__main__":
    for kind in GPUS:
        text = json.dumps(digests(kind), indent=1) + "\n"
        (TESTS / kind / "golden.json").write_text(text)
