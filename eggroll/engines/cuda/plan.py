"""The plan of a stage on an NVIDIA GPU: that of gpu/plan.py with other tiles and more memory.

Letters: M members of a block, P members, r rank. Nothing here needs MLX or a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from eggroll.credit import Crediting
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.plan import StagePlan
from eggroll.program import Program

WARPS = 8  # of a block; a thread may then have as many registers as there can be
MEMBERS = (64, 32, 16, 8)  # that a block may hold
TILE = 32  # outputs of a warp's tile, for 8 members or more
MULTIPROCESSORS = 132  # of a large GPU, as MLX does not tell
CACHED = 64 << 10  # bytes of a stage's weights that may stay in a multiprocessor's own cache
EXP2_WORDS = 16  # of shared memory, beside what the plan counts
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
    """The GPU that kernels are written for: 10 major + minor capability, product, memory."""

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
        self,
        program: Program,
        index: int,
        *,
        members: int,
        rank: int,
        shared_bytes: int,
        puts_out: bool = False,
    ) -> None:
        super().__init__(program, index, members=members, rank=rank, puts_out=puts_out)
        self.simdgroups = WARPS
        self.shared_bytes = shared_bytes - (4 * EXP2_WORDS if self.scores else 0)

    def tiles(self, outputs: int) -> int:
        """Rows of 8 outputs that a warp computes at a time."""
        return TILE // 8

    def columns(self, outputs: int) -> int:
        """Groups of 8 members that a warp computes at a time: 4, or fewer to use every warp.

        More than 4 take all its registers, and the weights of a tile stay near for the next 4.
        """
        groups = self.members // 8
        choice = [n for n in (4, 2, 1) if n <= groups]
        return next(
            (n for n in choice if self.tile_count(outputs) * (groups // n) >= self.simdgroups), 1
        )


class CudaCreditPlan(CreditPlan, CudaPlan):
    """A stage whose pairs are credited, for blocks of M members."""

    together = 4  # inputs of a member that are a word, in registers and on the tape

    def __init__(
        self,
        program: Program,
        index: int,
        crediting: Crediting,
        *,
        members: int,
        shared_bytes: int,
        puts_out: bool = False,
    ) -> None:
        CudaPlan.__init__(
            self, program, index, members=members, rank=0 if crediting.nodes else 1,
            shared_bytes=shared_bytes, puts_out=puts_out,
        )  # fmt: skip
        self.trace(crediting, puts_out)


def cuda_credit_plans(
    program: Program, crediting: Crediting, on: Target, *, members: int, puts_out: bool = False
) -> list[CudaCreditPlan]:
    """A plan per stage for blocks of `members`."""
    options = {"members": members, "shared_bytes": on.shared_bytes}
    of = range(len(program.stages))
    return [CudaCreditPlan(program, i, crediting, **options, puts_out=puts_out) for i in of]


def cuda_plans(
    program: Program, on: Target, *, members: int, rank: int, puts_out: bool = False
) -> list[CudaPlan]:
    """A plan per stage for blocks of `members`."""
    options = {"members": members, "rank": rank, "shared_bytes": on.shared_bytes}
    of = range(len(program.stages))
    return [CudaPlan(program, i, **options, puts_out=puts_out) for i in of]


def block_members(program: Program, on: Target, rank: int, population: int) -> int:
    """M for a network: the least traffic among those that give every multiprocessor a block.

    Where traffic is alike, the largest that gives each two, so that one runs while one waits.
    """

    def blocks(members: int) -> int:
        return -(-population // members)

    def streamed(members: int) -> float:
        plans = cuda_plans(program, on, members=members, rank=rank)
        far = [plan.weights_read for plan in plans if plan.weight_bytes > CACHED]
        return sum(far) + sum(plan.spilled for plan in plans)

    full = [m for m in MEMBERS if blocks(m) >= MULTIPROCESSORS] or list(MEMBERS[-1:])
    return min(full, key=lambda m: (streamed(m), blocks(m) < 2 * MULTIPROCESSORS, -m))
