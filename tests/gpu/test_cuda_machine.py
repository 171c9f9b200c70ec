"""The machine code of CUDA's kernels: blocks of a multiprocessor, instructions issued, no spills.

cuda/machine.py says how. `PYTHONPATH=tests python -m gpu.test_cuda_machine` records the counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import in_order
import machine
import nvrtc
import pytest
import sass
from warp_walk import PARAMETERS, Launch, Walk, WalkError

from eggroll import bench
from eggroll.bench import prediction as performance
from eggroll.engines.cuda import Cuda, CudaPlan, block_members, cuda_plans, target
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.stage import StageWriter
from gpu.test_cuda_compile import whole_text

RECORD = Path(__file__).parents[1] / "cuda" / "counts.json"
LARGE = 262_144  # members, so that M is the largest
ALIKE = 0.1  # part by which the model of performance.py may differ from machine code


@pytest.fixture(autouse=True)
def refuse(reader) -> None:
    """Skips without NVRTC or nvdisasm; fails where EGGROLL_REQUIRE wants cuda covered."""
    reader("NVRTC", "cuda", machine.unavailable_because())


def stages(architecture: str, population: int) -> Iterator[tuple[str, CudaPlan, KernelSource]]:
    """The kinds of stages of both presets, with the plans of a population."""
    gpu = target(machine.number_of(architecture))
    for name in ("seed", "paper"):
        program = performance.network(bench.PRESETS[name])
        M = block_members(program, gpu, 1, population)
        plans = cuda_plans(program, gpu, members=M, rank=1)
        for stage, plan in zip(
            ("embedding", "layer", "head"), (*plans[:2], plans[-1]), strict=True
        ):
            yield f"{name} {stage}", plan, StageWriter(plan, Cuda(gpu.product), shift=8).source()


@cache
def made(source: KernelSource, architecture: str) -> machine.Machine:
    return machine.machine(whole_text(source), architecture)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("population", [10240, LARGE])
def test_blocks_of_a_multiprocessor(architecture: str, population: int):
    """Two where the plan says so, by registers and shared memory; and nothing spills."""
    for name, plan, source in stages(architecture, population):
        resources = made(source, architecture).resources
        assert resources.spilled == 0, name
        assert plan.blocks == 2, name
        assert machine.blocks(resources, source.shared, source.threads, architecture) >= 2, name


def test_registers_and_shared_memory_make_blocks():
    """As the occupancy calculator has them: registers by 256 of a warp, and 1 KiB of the system."""
    for registers, shared, architecture, blocks in (
        (128, 0, "sm_90a", 2), (129, 0, "sm_90a", 1), (96, 113 << 10, "sm_90a", 2),
        (96, (113 << 10) + 1, "sm_90a", 1), (40, 81 << 10, "sm_80", 2), (255, 0, "sm_80", 1),
        (32, 0, "sm_75", 4), (64, 32 << 10, "sm_75", 2),
    ):  # fmt: skip
        found = machine.blocks(nvrtc.Resources(registers, 0), shared, 256, architecture)
        assert found == blocks, (registers, shared)


def test_launch_bounds_bound_the_registers():
    layer = next(source for name, _, source in stages("sm_90a", LARGE) if name == "paper layer")
    free, tight = (
        nvrtc.compile(whole_text(layer._replace(blocks=blocks)), "sm_90a").registers
        for blocks in (0, 4)
    )
    assert tight <= 64 < free


LOOPS = """
__global__ void loops(const int* sizes, int* out) {
  int sum = 0;
  for (int i = 0; i < sizes[0]; ++i) {
    asm volatile("prmt.b32 %0, %0, %0, 0x0123;" : "+r"(sum));
    for (unsigned j = threadIdx.x / 32; j < 37; j += 8)
      asm volatile("dp4a.s32.s32 %0, %0, %0, 7;" : "+r"(sum));
  }
  out[threadIdx.x] = sum;
}
__device__ int unused;
"""


def test_a_walk_takes_the_turns_of_loops():
    """Nested ones: an end from an array, a part for each warp. An unknown end is an error."""
    code = sass.disassembled(nvrtc.compiled(LOOPS, "sm_80")[1])
    for T, warp in ((1, 0), (3, 0), (3, 7)):
        launch = Launch(PARAMETERS[80], {0: [T]}, 32 * warp)
        counts = Walk(code, launch).run()
        dots = sum(n for name, n in counts.items() if name.startswith("IDP"))
        assert dots == T * len(range(warp, 37, 8))
        assert counts["PRMT"] == T
    with pytest.raises(WalkError, match="unknown end"):
        Walk(code, Launch(PARAMETERS[80], {})).run()


def counted(population: int) -> dict[str, dict[str, float]]:
    """Registers, shared bytes, blocks and warp instructions of the stages on an H100 or H200."""
    out = {}
    for name, plan, source in stages("sm_90a", population):
        code = made(source, "sm_90a")
        found = machine.issued(code, source, plan.members)
        out[f"{name}, M = {plan.members}"] = {
            "registers": code.resources.registers,
            "shared": source.shared,
            "blocks": machine.blocks(code.resources, source.shared, source.threads, "sm_90a"),
            "token": round(found.token, 1),
            "launch": round(found.launch, 1),
            "model": round(performance.instructions(plan), 1),
        }
    return out


def test_counts_are_the_recorded_ones():
    """Sees every change of the machine code; and the model of the prediction is near it.

    Meant? `PYTHONPATH=tests python -m gpu.test_cuda_machine` records them anew.
    """
    now = counted(LARGE)
    assert now == json.loads(RECORD.read_text())
    for name, found in now.items():
        assert found["model"] == pytest.approx(found["token"], rel=ALIKE), name


def test_matrix_products_are_those_of_the_network():
    """A walk comes by 12 D^2 multiply-adds of a member, 4096 an instruction."""
    for name, plan, source in stages("sm_90a", LARGE):
        if name == "paper layer":
            one, two = (
                sum(
                    made(source, "sm_90a").code[i].name.startswith("IMMA") for t in found for i in t
                )
                for found in (machine.traces(made(source, "sm_90a"), source, T) for T in (1, 2))
            )
            assert (two - one) * 4096 == 12 * 256 * 256 * plan.members


def test_two_blocks_issue_as_the_prediction_has_it():
    """The in-order model: a second block fills what the first one waits, up to ISSUED."""
    for name, plan, source in stages("sm_90a", LARGE):
        if name != "paper layer":
            continue
        code = made(source, "sm_90a")
        far = plan.members * (plan.weights_read + plan.noise_bytes / 2 + plan.spilled)
        traces = machine.traces(code, source, 1)
        rates = [
            blocks * machine.total(traces) / in_order.cycles(code.code, traces, blocks, far)
            for blocks in (1, 2)
        ]
        assert rates[1] > 1.4 * rates[0]
        assert rates[1] / in_order.SCHEDULERS == pytest.approx(performance.ISSUE_SHARE, rel=0.1)


if __name__ == "__main__":
    RECORD.write_text(json.dumps(counted(LARGE), indent=1) + "\n")
