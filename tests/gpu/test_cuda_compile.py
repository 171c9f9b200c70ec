"""The CUDA kernels compiled by NVRTC for the GPUs there are.

cuda/nvrtc.py says how; no GPU is needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import nvrtc
import pytest

from eggroll import networks
from eggroll.engines import cuda as cuda_plan
from eggroll.engines.cuda import Cuda, target
from eggroll.engines.cuda_launch import cuda_text
from eggroll.engines.gpu.credit import CreditStageWriter
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.stage import RESULT_OUTPUTS, StageWriter
from eggroll.engines.gpu.votes import vote_sources
from eggroll.spec import credit
from gpu.backend import on
from gpu.test_gpu_sources import cuda_sources

# Architectures that NVRTC compiles for: each product that has one, and the newest.
ARCHITECTURES = {"sm_75": 75, "sm_80": 80, "sm_90a": 90, "sm_100": 100}
COMPILED: set[str] = set()  # those seen by NVRTC in this session


@pytest.fixture(autouse=True)
def refuse(reader) -> None:
    """Skips without NVRTC; fails where EGGROLL_REQUIRE wants cuda covered."""
    reader("NVRTC", "cuda", nvrtc.unavailable_because())


INT32 = (
    *("tokens", "targets", "starts", "sizes", "work", "signs", "sorted", "order"),
    *("projection", "moved", "sums", "Z", "listed", "out1", "scales", "vectors"),
    *("handed", "handed_on", "carried", "carried_on"),
    *("votes", "fine", "mean", "size", "feedback", "new_fine", "new_mean", "new_size"),
    *("wanted", "new_feedback", "normal", "turned", "whitening", "change", "half_way", "learnt"),
)
INT64 = "magnitudes", "total", "share", "diagonal"
KINDS = (
    dict.fromkeys(INT32, mx.int32)
    | dict.fromkeys(INT64, mx.int64)
    | {
        "scores": mx.int16,
        "totals": mx.uint64,
        "draws": mx.uint32,
        "words": mx.uint32,
        "mantissas": mx.uint32,
        "lost": mx.uint64,
    }
)
# Kernels whose sums are clipped.
BYTES = ("egg_credits", "egg_value_credits", "egg_credit_vector_votes")


def whole_text(source: KernelSource) -> str:
    """The text that the engine compiles, for arrays of its types."""
    kinds = KINDS | ({"sums": mx.int8} if source.name in BYTES else {})
    kinds |= {"scores": mx.int32} if source.name == "egg_value_credits" else {}
    kinds |= {"output": mx.int32} if "int32_t Value;" in source.header else {}
    dtypes = tuple(kinds.get(name, mx.int8) for name in source.inputs + source.outputs)
    return cuda_text(source, dtypes, source.name)


def resources(architecture: str) -> dict[str, nvrtc.Resources]:
    """Resources of every kernel of both presets, compiled by NVRTC."""
    kernels = dict(cuda_sources(ARCHITECTURES[architecture]))
    with ThreadPoolExecutor(2) as two:
        made = two.map(lambda source: nvrtc.compile(whole_text(source), architecture),
                       kernels.values())  # fmt: skip
        return dict(zip(kernels, made, strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_every_kernel(architecture: str, covered: set[str]):
    """To machine code, without spills, with registers for the threads that a block has."""
    for name, made in resources(architecture).items():
        assert made.spilled == 0, name
        assert made.registers * 32 * cuda_plan.WARPS <= 1 << 16, name
    COMPILED.add(architecture)
    if set(ARCHITECTURES) <= COMPILED:
        covered.add("cuda")


def test_nvrtc_compiles_what_presets_do_not_have():
    """dp4a, tables of gates, rank 4, device memory, logits, sums of 64 bits."""
    program = networks.egg(5000, 36, 1, "table")
    for gpu in (on("dp4a", 2 << 10), on("m16n8k32", 2 << 10)):
        for plan in cuda_plan.cuda_plans(program, gpu, members=8, rank=4):
            assert plan.scratch_bytes or plan.first or plan.scores
            for result in RESULT_OUTPUTS if plan.scores else ("scores",):
                source = StageWriter(plan, Cuda(gpu.product), result, shift=8).source()
                nvrtc.compile(whole_text(source), "sm_80")
        for source in vote_sources(Cuda(gpu.product), 4, False):
            nvrtc.compile(whole_text(source), "sm_80")
    crediting = credit.crediting(program, nodes=True, sigma_shift=2, discount=12, seq_len=32)
    for plan in cuda_plan.cuda_credit_plans(program, crediting, gpu, members=8):
        assert not (plan.readout and plan.logits_shared)
        source = CreditStageWriter(plan, Cuda("dp4a"), shift=6).source()
        nvrtc.compile(whole_text(source), "sm_80")


def test_higher_ranks_do_not_spill():
    program, gpu = networks.egg(256, 128, 1, "table"), target(80)
    plan = cuda_plan.cuda_plans(program, gpu, members=64, rank=8)[1]
    source = StageWriter(plan, Cuda(gpu.product), shift=8).source()
    assert nvrtc.compile(whole_text(source), "sm_80").spilled == 0


def test_nvrtc_refuses_what_is_wrong():
    """The compile check is worth what it notices."""
    source = dict(cuda_sources(80))["seed head"]
    for old, new in (
        ("__dp4a(", "__dp5a("), ("s32.s8.s8.s32", "s32.s8.s8.s16"), ("uint2 v", "uint2 unused, v")
    ):  # fmt: skip
        assert old in source.header
        edited = source._replace(header=source.header.replace(old, new, 1))
        with pytest.raises(nvrtc.CompileError):
            nvrtc.compile(whole_text(edited), "sm_80", "--diag-error=177")


if __name__ == "__main__":
    for architecture in ARCHITECTURES if not nvrtc.unavailable_because() else []:
        print(architecture, {k: made.registers for k, made in resources(architecture).items()})
