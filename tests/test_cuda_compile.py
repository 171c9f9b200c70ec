"""The CUDA kernels' text: compiled by NVRTC for the GPUs there are, recorded, counted.

cuda/nvrtc.py says how; no GPU is needed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import pytest
from test_cuda import on, refuse

sys.path.insert(0, str(Path(__file__).parent / "cuda"))
import nvrtc
from cuda_emulator import written

from eggroll import networks
from eggroll.credit import crediting
from eggroll.engines.cuda import credit_source as cuda_credit_source
from eggroll.engines.cuda import plan as cuda_plan
from eggroll.engines.cuda import source as cuda_source
from eggroll.engines.cuda.plan import Target, target
from eggroll.engines.cuda.source import Source
from eggroll.engines.gpu import plan as metal_plan

GOLDEN = Path(__file__).parent / "cuda" / "golden.json"
# Architectures that NVRTC compiles for: each product that has one, and the newest.
ARCHITECTURES = {"sm_75": 75, "sm_80": 80, "sm_90a": 90, "sm_100": 100}
COMPILED: set[str] = set()  # those seen by NVRTC in this session


def sources(architecture: int) -> Iterator[tuple[str, Source]]:
    """Kernels of both presets at full size, for a compute capability."""
    gpu = target(architecture)
    for name, (V, D, L) in {"seed": (256, 64, 1), "paper": (256, 256, 6)}.items():
        program = networks.egg(V, D, L)
        M = cuda_plan.block_members(program, gpu, 1, 10240)
        plans = cuda_plan.cuda_plans(program, gpu, members=M, rank=1)
        for i, plan in enumerate(plans):
            stage = ("embedding", "layer", "head")[(i > 0) + (i > L)]
            yield f"{name} {stage}", cuda_source.stage_source(plan, 8, gpu.product)
    for source in cuda_source.vote_sources(1, True, gpu.product):
        yield source.name, source
    yield from credit_sources(gpu)


def credit_sources(gpu: Target) -> Iterator[tuple[str, Source]]:
    """Kernels of token credit: of the language recipe's network, and those of all networks."""
    program = networks.egg(256, 64, 1)
    for estimator in ("token-credit", "token-votes"):
        how = crediting(program, estimator, sigma_shift=2, discount=12, seq_len=32)
        plans = cuda_plan.cuda_credit_plans(program, how, gpu, members=16)
        for plan, stage in zip(plans, ("embedding", "layer", "head"), strict=True):
            yield f"{estimator} {stage}", cuda_credit_source.credit_source(plan, 6, gpu.product)
    for source in cuda_credit_source.credit_kernels(gpu.product):
        yield source.name, source


def test_generated_source_is_the_recorded_one():
    """Sees every change of a kernel. Meant? `python tests/test_cuda_compile.py` records it anew."""
    assert digests() == json.loads(GOLDEN.read_text())


def digests() -> dict[str, str]:
    now: dict[str, str] = {}
    for architecture in (75, 80):
        for name, source in sources(architecture):
            text = (source.header + source.body).encode("ascii")
            digest, key = hashlib.sha256(text).hexdigest(), f"{name} sm_{architecture}"
            assert now.setdefault(key, digest) == digest, f"{key} differs between layers"
    return now


INT32 = (
    *("tokens", "targets", "starts", "sizes", "work", "signs", "sorted", "order"),
    *("met", "moved", "sums", "Z"),
)
KINDS = dict.fromkeys(INT32, mx.int32) | {"scores": mx.int16, "draws": mx.uint32}
BYTES = ("egg_gains", "egg_credit_vector_votes")  # kernels whose sums are clipped


def whole_text(source: Source) -> str:
    """What MLX would compile, for arrays of the engine's types."""
    kinds = KINDS | ({"sums": mx.int8} if source.name in BYTES else {})
    inputs = [mx.zeros(1, kinds.get(name, mx.int8)) for name in source.inputs]
    return written(source, inputs, [((1,), kinds.get(name, mx.int8)) for name in source.outputs])


def resources(architecture: str) -> dict[str, nvrtc.Resources]:
    """What NVRTC makes of every kernel of both presets."""
    kernels = dict(sources(ARCHITECTURES[architecture]))
    with ThreadPoolExecutor(2) as two:
        made = two.map(lambda source: nvrtc.compile(whole_text(source), architecture),
                       kernels.values())  # fmt: skip
        return dict(zip(kernels, made, strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_every_kernel(architecture: str, covered: set[str]):
    """To machine code, without spills, with registers for the threads that a block has."""
    refuse(nvrtc.unavailable_because())
    for name, made in resources(architecture).items():
        assert made.spilled == 0, name
        assert made.registers * 32 * cuda_plan.WARPS <= 1 << 16, name
    COMPILED.add(architecture)
    if set(ARCHITECTURES) <= COMPILED:
        covered.add("cuda")


def test_nvrtc_compiles_what_presets_do_not_have():
    """dp4a, tables of gates, rank 4, device memory, logits, sums of 64 bits."""
    refuse(nvrtc.unavailable_because())
    program = networks.egg(5000, 36, 1, "table")
    for gpu in (on("dp4a", 2 << 10), on("m16n8k32", 2 << 10)):
        for plan in cuda_plan.cuda_plans(program, gpu, members=8, rank=4):
            assert plan.scratch_bytes or plan.first or plan.scores
            for logits in {False, plan.scores}:
                source = cuda_source.stage_source(plan, 8, gpu.product, logits=logits)
                nvrtc.compile(whole_text(source), "sm_80")
        for source in cuda_source.vote_sources(4, False, gpu.product):
            nvrtc.compile(whole_text(source), "sm_80")
    how = crediting(program, "token-credit", sigma_shift=2, discount=12, seq_len=32)
    for plan in cuda_plan.cuda_credit_plans(program, how, gpu, members=8):
        assert not (plan.readout and plan.logits_shared)
        nvrtc.compile(whole_text(cuda_credit_source.credit_source(plan, 6, "dp4a")), "sm_80")


def test_higher_ranks_do_not_spill():
    refuse(nvrtc.unavailable_because())
    program, gpu = networks.egg(256, 128, 1, "table"), target(80)
    plan = cuda_plan.cuda_plans(program, gpu, members=64, rank=8)[1]
    source = cuda_source.stage_source(plan, 8, gpu.product)
    assert nvrtc.compile(whole_text(source), "sm_80").spilled == 0


def test_nvrtc_refuses_what_is_wrong():
    """The compile check is worth what it notices."""
    refuse(nvrtc.unavailable_because())
    source = dict(sources(80))["seed head"]
    for old, new in (
        ("__dp4a(", "__dp5a("), ("s32.s8.s8.s32", "s32.s8.s8.s16"), ("uint2 v", "uint2 unused, v")
    ):  # fmt: skip
        assert old in source.header
        edited = source._replace(header=source.header.replace(old, new, 1))
        with pytest.raises(nvrtc.CompileError):
            nvrtc.compile(whole_text(edited), "sm_80", "--diag-error=177")


@pytest.mark.parametrize(
    ("architecture", "shape", "population", "members"),
    [
        (80, (256, 256, 6), 10240, 64),  # weights come from afar: many members share them
        (80, (256, 64, 1), 10240, 32),  # weights stay near: two blocks for each multiprocessor
        (80, (256, 64, 1), 100_000, 64),
        (80, (256, 256, 6), 2048, 8),  # else most multiprocessors would have nothing to do
    ],
)
def test_members_of_a_block(architecture: int, shape: tuple, population: int, members: int):
    program, gpu = networks.egg(*shape), target(architecture)
    assert cuda_plan.block_members(program, gpu, 1, population) == members


def test_shared_memory_is_what_the_plan_says():
    """And no more than a block may have: also where registers leave it."""
    for architecture, D in ((75, 64), (75, 256), (80, 256), (90, 700), (0, 700)):
        gpu = target(architecture)
        for plan in cuda_plan.cuda_plans(networks.egg(5000, D, 1), gpu, members=64, rank=4):
            source = cuda_source.stage_source(plan, 8, gpu.product)
            assert source.shared <= gpu.shared_bytes
            assert source.shared >= plan.shared_rows * plan.stride


def test_counts_in_the_documentation_are_computed():
    """docs/cuda.md shows what the plans and NVRTC say."""
    text = (Path(__file__).parents[1] / "docs" / "cuda.md").read_text()
    gpu = target(80)
    for V, D, L, rank in ((256, 64, 1, 1), (256, 256, 6, 1), (256, 256, 6, 4)):
        program = networks.egg(V, D, L)
        M = cuda_plan.block_members(program, gpu, rank, 10240)
        plans = cuda_plan.cuda_plans(program, gpu, members=M, rank=rank)
        assert metal_plan.count_rows(plans) in text
        assert metal_plan.cost(plans[1]).macs == 12 * D * D + 18 * D * rank
        for plan in plans:
            token = cuda_source.body(cuda_source.Writer(plan, False)).partition("++t)")[2]
            assert token.count("__syncthreads") == plan.barriers


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(digests(), indent=1) + "\n")
    for architecture in ARCHITECTURES if not nvrtc.unavailable_because() else []:
        print(architecture, {k: made.registers for k, made in resources(architecture).items()})
