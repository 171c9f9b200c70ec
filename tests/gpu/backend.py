"""The GPU engines under emulation, as the tests that hold for both take them.

Letters: M members of a threadgroup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cuda_emulator
import emulator
import mlx.core as mx
import numpy as np
import oracle
from networks import Case, random_case
from networks_credit import Credited
from test_credit import same

from eggroll import engines
from eggroll.engines import guard
from eggroll.engines.cuda import Cuda, CudaEngine, Target, cuda_credit_plans, cuda_plans, target
from eggroll.engines.gpu.credit import CreditPlan, CreditStageWriter, credit_plans
from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.gpu.plan import StagePlan, stage_plans
from eggroll.engines.gpu.stage import StageWriter
from eggroll.engines.metal import Metal, MetalEngine
from eggroll.spec.credit import Crediting
from eggroll.spec.noise import slice_length
from eggroll.spec.program import Program

NO_ROOM = 16 << 10  # bytes of shared memory that are too few for wide networks


def on(product: str = "m16n8k32", shared_bytes: int = 0) -> Target:
    """An NVIDIA GPU that has the product, with other shared memory if asked."""
    found = target(75 if product == "m8n8k16" else 80, product)
    return (
        found._replace(shared_bytes=shared_bytes, half_bytes=shared_bytes)
        if shared_bytes
        else found
    )


class MetalGpu:
    """The Metal engine; its variants are "" and "nax". Apple's memory is always cramped."""

    name, kind, largest = "metal", MetalEngine, 32
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    dialect: Dialect = Metal()
    over_mean = "egg::over_mean(v, mean, egg::reciprocal_of(mean))"

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # where kernels are compiled, once for all tests

    def launcher(self, **options: Any) -> emulator.Emulator:
        """Runs every launch in one order of the threads, unless told otherwise."""
        return emulator.Emulator(self.folder, **options)

    def options(self, variant: str = "", cramped: bool = False) -> dict[str, Any]:
        """Options of the engine. variant: of the matrix product; cramped: little shared memory."""
        return {"nax": variant == "nax"}

    def plans(
        self, program: Program, members: int, rank: int, cramped: bool = False
    ) -> Sequence[StagePlan]:
        return stage_plans(program, members=members, rank=rank)

    def credit_plans(
        self, program: Program, crediting: Crediting, members: int, cramped: bool = False
    ) -> Sequence[CreditPlan]:
        return credit_plans(program, crediting, members=members)


class CudaGpu:
    """The CUDA engine; its variants are the products, "" is m16n8k32."""

    name, kind, largest = "cuda", CudaEngine, 64
    barrier = "__syncthreads();\n"
    dialect: Dialect = Cuda("m16n8k32")
    over_mean = "egg::clip(egg::over_mean(v, egg::reciprocal_of(mean)))"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def launcher(self, **options: Any) -> emulator.Emulator:
        return cuda_emulator.CudaEmulator(self.folder, **options)

    def options(self, variant: str = "", cramped: bool = False) -> dict[str, Any]:
        return {"on": on(variant or "m16n8k32", NO_ROOM * cramped)}

    def plans(
        self, program: Program, members: int, rank: int, cramped: bool = False
    ) -> Sequence[StagePlan]:
        gpu = self.options(cramped=cramped)["on"]
        return cuda_plans(program, gpu, members=members, rank=rank)

    def credit_plans(
        self, program: Program, crediting: Crediting, members: int, cramped: bool = False
    ) -> Sequence[CreditPlan]:
        gpu = self.options(cramped=cramped)["on"]
        return cuda_credit_plans(program, crediting, gpu, members=members)


Gpu = MetalGpu | CudaGpu
GPUS: dict[str, type[Gpu]] = {"metal": MetalGpu, "cuda": CudaGpu}


def engine(
    gpu: Gpu,
    program: Program,
    launcher: emulator.Emulator,
    members: int = 0,
    variant: str = "",
    cramped: bool = False,
) -> GpuEngine:
    """The engine with M members of a threadgroup (0: as it takes by itself)."""
    options = gpu.options(variant, cramped)
    return gpu.kind(program, launcher=launcher, members=members, **options)


def install(gpu: Gpu, monkeypatch, launcher: emulator.Emulator, variant: str = "") -> None:
    """Lets commands find the engine, which runs in the emulation."""

    class Emulated(gpu.kind):  # type: ignore[misc, name-defined]
        @classmethod
        def unavailable_because(cls) -> str:
            return ""

        def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
            options = gpu.options(variant)
            super().__init__(program, threads, block_tokens, launcher=launcher, **options)

    monkeypatch.setitem(engines.ENGINES, gpu.name, Emulated)
    monkeypatch.setattr(guard, "SHARE", 0.0)  # later looks follow the clock, as would launches


def stage_source(gpu: Gpu, plan: StagePlan, shift: int = 8) -> KernelSource:
    return StageWriter(plan, gpu.dialect, shift=shift).source()


def credit_source(gpu: Gpu, plan: CreditPlan, shift: int = 6) -> KernelSource:
    return CreditStageWriter(plan, gpu.dialect, shift=shift).source()


def per_token(source: KernelSource) -> str:
    """The part of a stage's kernel that runs for every token."""
    return source.body.partition("++t)")[2]


def check_scores(engine: GpuEngine, case: Case, *, noise: bool = True) -> np.ndarray:
    scores, state, _ = case.oracle(noise)
    prepared = engine.prepare(case.leaves)
    got, after = engine.evaluate(prepared, case.slices if noise else None, case.batch)
    np.testing.assert_array_equal(np.array(got), scores)
    np.testing.assert_array_equal(np.array(after), state)
    return scores


def check_votes(engine: GpuEngine, case: Case, fitness: np.ndarray, *, clt: bool = True) -> None:
    Z = engine.votes(mx.array(fitness.astype(np.int8)), case.slices, clt)
    want = oracle.votes(case.weights, case.noise(), fitness, clt)
    assert list(Z) == list(want)
    for name, z in Z.items():
        np.testing.assert_array_equal(np.array(z), want[name], err_msg=name)


def check_credit(engine: GpuEngine, made: Credited) -> None:
    same(made.run(engine), made.oracle())


def at_the_end(case: Case) -> Case:
    """The case with every slice ending where the table ends, so that a byte more is seen."""
    for i, leaf in enumerate(case.program.leaves):
        case.starts[i] = case.table.size - slice_length(leaf.shape, case.rank)
    return case


def beyond_float() -> Case:
    """K is 1200 in layer0.down, and all its products are 127 * 127: their sum is above 2^24."""
    case = random_case(1, D=300, V=2, T=1, P=2)
    for name in ("embedding", "layer0.norm2", "layer0.up", "layer0.down"):
        case.weights[name][:] = 127
    return at_the_end(case)


def faulty(old: str, new: str, found: list[bool]) -> Callable[[KernelSource], KernelSource]:
    """Puts a fault into kernels; `found` says of each whether it got in."""

    def edit(source: KernelSource) -> KernelSource:
        found.append(old in source.header + source.body)
        header, body = (text.replace(old, new) for text in (source.header, source.body))
        return source._replace(header=header, body=body)

    return edit
