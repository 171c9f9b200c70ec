"""The plan of a stage on an NVIDIA GPU: that of gpu/plan.py with other tiles and more memory.

Letters: M members of a block, P members, r rank. Nothing here needs MLX or a GPU.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Self

from eggroll.credit import Crediting
from eggroll.engines.gpu.carry_plan import CarryPlan, chained
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.plan import StagePlan, padded
from eggroll.program import Program

WARPS = 8  # of a block; a thread may then have as many registers as there can be
MEMBERS = (64, 32, 16, 8)  # that a block may hold
TILE = 32  # outputs of a warp's tile, for 8 members or more
MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 100: 148}  # of a large GPU, as MLX does not tell
OTHERS = 132  # H100, and those not in the table
NEAR, FAR = 1024, 47  # multiply-adds, and bytes from the second cache, in a cycle of one of them
WAIT = 100  # cycles of a block at a barrier
CACHED = 64 << 10  # bytes of a stage's weights that may stay in a multiprocessor's own cache
EXP2_WORDS = 16  # of shared memory, beside what the plan counts
LEAST_SHARED = 48 << 10  # bytes of shared memory that every block may have
# The same where two blocks share a multiprocessor; each takes 1 KiB besides, from sm_80 on.
HALF = {
    75: 32 << 10,
    **dict.fromkeys((80, 87), 81 << 10),
    **dict.fromkeys((86, 89, 120, 121), 49 << 10),
    **dict.fromkeys((90, 100, 101, 103, 110), 113 << 10),
}
SPILL = 4  # bytes of weights that one of a register in device memory is worth
# Of a block that asks for it, by architecture; from the CUDA programming guide's table.
SHARED = {
    75: 64 << 10,
    **dict.fromkeys((80, 87), 163 << 10),
    **dict.fromkeys((86, 89, 120, 121), 99 << 10),
    **dict.fromkeys((90, 100, 101, 103, 110), 227 << 10),
}
PRODUCTS = ("m16n8k32", "m8n8k16", "dp4a")  # fastest first; kernels are mma_<name>.cu


class Target(NamedTuple):
    """The GPU that kernels are written for: 10 major + minor capability, product, memory.

    half_bytes: of shared memory, with which two blocks fit on a multiprocessor.
    """

    architecture: int
    product: str
    shared_bytes: int
    half_bytes: int


def target(architecture: int, product: str = "") -> Target:
    """The target of a compute capability such as 80; product: another than its fastest."""
    fastest = "m16n8k32" if architecture >= 80 else "m8n8k16" if architecture >= 75 else "dp4a"
    shared = (of.get(architecture, LEAST_SHARED) for of in (SHARED, HALF))
    return Target(architecture, product or fastest, *shared)


class CudaPlan(StagePlan):
    """One stage for blocks of M members with noise of rank r (0: without noise)."""

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        rank: int,
        puts_out: bool = False,
    ) -> None:
        super().__init__(program, index, members=members, rank=rank, puts_out=puts_out)
        self.simdgroups = WARPS

    def on(self, gpu: Target) -> Self:
        """The plan for a GPU: for two blocks on a multiprocessor, unless too much would leave it.

        Where one waits for memory or at a barrier, the other one goes on.
        """
        own = 4 * EXP2_WORDS if self.scores else 0
        half, whole = copy(self), copy(self)
        # Higher ranks need more registers than half of them.
        half.shared_bytes, half.blocks = gpu.half_bytes - own, 2 if self.rank <= 1 else 1
        whole.shared_bytes, whole.blocks = gpu.shared_bytes - own, 1
        beyond = SPILL * (half.spilled - whole.spilled)
        return half if beyond <= self.weights_read else whole

    def tiles(self, outputs: int) -> int:
        """Rows of 8 outputs that a warp computes at a time."""
        return TILE // 8

    @property
    def vectors_at(self) -> int:
        """Bytes of device memory before the vectors that a launch keeps."""
        return -(-super().scratch_bytes // 8) * 8

    @cached_property
    def kept_vectors(self) -> dict[int, int]:
        """Each as words [pairs][quads][2]; weights' noise is the same at every token."""
        if not self.perturbed:
            return {}
        vectors = [leaf for leaf, at in self.layout.items() if len(at.shape) == 1]
        sizes = [padded(self.layout[leaf].shape[0]) * self.members for leaf in vectors]
        starts = accumulate(sizes[:-1], initial=self.vectors_at)
        return dict(zip(vectors, starts, strict=False))

    @property
    def scratch_bytes(self) -> int:
        vectors = (padded(self.layout[leaf].shape[0]) for leaf in self.kept_vectors)
        return self.vectors_at + sum(vectors) * self.members

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
        puts_out: bool = False,
    ) -> None:
        CudaPlan.__init__(
            self, program, index,
            members=members, rank=0 if crediting.nodes else 1, puts_out=puts_out,
        )  # fmt: skip
        self.trace(crediting, puts_out)


class CudaCarryPlan(CarryPlan, CudaPlan):
    """A stage whose members carry errors back, for blocks of M members."""

    beside = 8

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        passing: Collection[int],
        handed: bool,
    ) -> None:
        CudaPlan.__init__(self, program, index, members=members, rank=0)
        self.carry(passing, handed)


def cuda_carry_plans(
    program: Program, passing: Collection[int], on: Target, *, members: int
) -> list[CudaCarryPlan]:
    """A plan per stage for blocks of `members`."""

    def plan(index: int, handed: bool) -> CudaCarryPlan:
        return CudaCarryPlan(program, index, members=members, passing=passing, handed=handed).on(on)

    return chained(plan, len(program.stages))


def cuda_credit_plans(
    program: Program, crediting: Crediting, on: Target, *, members: int, puts_out: bool = False
) -> list[CudaCreditPlan]:
    """A plan per stage for blocks of `members`."""
    of = range(len(program.stages))
    return [
        CudaCreditPlan(program, i, crediting, members=members, puts_out=puts_out).on(on) for i in of
    ]


def cuda_plans(
    program: Program, on: Target, *, members: int, rank: int, puts_out: bool = False
) -> list[CudaPlan]:
    """A plan per stage for blocks of `members`."""
    of = range(len(program.stages))
    return [CudaPlan(program, i, members=members, rank=rank, puts_out=puts_out).on(on) for i in of]


def block_members(program: Program, on: Target, rank: int, population: int) -> int:
    """M for a network: the least cycles of the multiprocessor that gets most blocks.

    A member takes those of its products, twice as many where a block is alone, those of what comes
    from the second cache, and its part of the block's barriers.
    """
    multiprocessors = MULTIPROCESSORS.get(on.architecture, OTHERS)

    def cycles(members: int) -> float:
        total = 0.0
        for plan in cuda_plans(program, on, members=members, rank=rank):
            far = plan.weights_read if plan.weight_bytes > CACHED else 0
            total += plan.macs * (2 / plan.blocks) / NEAR + (far + plan.spilled) / FAR
            total += WAIT * plan.barriers / members
        blocks = -(-population // members)
        return -(-blocks // multiprocessors) * members * total

    return min(MEMBERS, key=lambda m: (cycles(m), -m))
