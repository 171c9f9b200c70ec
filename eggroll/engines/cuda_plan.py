"""How a stage runs on an NVIDIA GPU: Metal's plan with other tiles and more shared memory.

Letters: M members of a block, P members, r rank. Nothing here needs MLX or a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from eggroll.engines.metal_plan import MEMBERS, StagePlan
from eggroll.model import Program

WARPS = 8  # of a block
TILE = 32  # outputs of a warp's tile, for 8 members or more
FULL = 264  # blocks that keep 132 multiprocessors busy, two on each
EXP2_BYTES = 64  # of shared memory, beside what the plan counts
LEAST_SHARED = 48 << 10  # bytes of shared memory that every block may have
# Of a block that asks for it, by architecture; from the CUDA programming guide's table.
SHARED = {
    75: 64 << 10,
    **dict.fromkeys((80, 87), 163 << 10),
    **dict.fromkeys((86, 89, 120, 121), 99 << 10),
    **dict.fromkeys((90, 100, 101, 103, 110), 227 << 10),
}
PRODUCTS = ("m16n8k32", "m8n8k16", "dp4a")  # fastest first; kernels are mma_<name>.cu


@dataclass(frozen=True)
class Target:
    """What kernels are generated for: compute capability 10 major + minor, product, memory."""

    architecture: int
    product: str
    shared_bytes: int


def target(architecture: int, product: str = "") -> Target:
    """The target of a compute capability such as 80; product: another than its fastest."""
    fastest = "m16n8k32" if architecture >= 80 else "m8n8k16" if architecture >= 75 else "dp4a"
    return Target(architecture, product or fastest, SHARED.get(architecture, LEAST_SHARED))


class CudaPlan(StagePlan):
    """One stage for blocks of M members with noise of rank r (0: without noise)."""

    def __init__(
        self, program: Program, index: int, *, members: int, rank: int, shared_bytes: int
    ) -> None:
        super().__init__(program, index, members=members, rank=rank)
        self.simdgroups = WARPS
        self.shared_bytes = shared_bytes - (EXP2_BYTES if self.scores else 0)

    def tiles(self, outputs: int) -> int:
        """Rows of 8 outputs that a warp computes at a time."""
        return TILE // 8

    def columns(self, outputs: int) -> int:
        """Groups of 8 members that a warp computes at a time: all, or fewer to use every warp."""
        groups = self.members // 8
        choice = [n for n in (groups, groups // 2, 1) if n and groups % n == 0]
        return next(
            (n for n in choice if self.tile_count(outputs) * (groups // n) >= self.simdgroups), 1
        )


def cuda_plans(program: Program, on: Target, *, members: int, rank: int) -> list[CudaPlan]:
    """A plan per stage for blocks of `members`."""
    of, room = range(len(program.stages)), on.shared_bytes
    return [CudaPlan(program, i, members=members, rank=rank, shared_bytes=room) for i in of]


def block_members(program: Program, on: Target, rank: int, population: int) -> int:
    """M for a network: the least traffic among those that give a GPU enough blocks."""

    def streamed(members: int) -> float:
        plans = cuda_plans(program, on, members=members, rank=rank)
        return sum(plan.weights_read + plan.spilled for plan in plans)

    full = [m for m in MEMBERS if -(-population // m) >= FULL] or list(MEMBERS[-1:])
    return min(full, key=streamed)
