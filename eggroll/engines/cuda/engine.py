"""The CUDA engine: a block of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm/cuda; see docs/cuda.md.
Letters: P members, N pairs, T tokens, D width, V vocabulary, K inputs, O outputs, M members of a
block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx

from eggroll.credit import Crediting
from eggroll.engines.cuda import device
from eggroll.engines.cuda.credit_source import credit_kernels, credit_source
from eggroll.engines.cuda.plan import (
    MEMBERS,
    PRODUCTS,
    Target,
    block_members,
    cuda_credit_plans,
    cuda_plans,
    target,
)
from eggroll.engines.cuda.source import stage_source, tile_bytes, vote_sources
from eggroll.engines.gpu.credit import Work
from eggroll.engines.gpu.engine import Kernel, StagedEngine, tape_members
from eggroll.engines.gpu.launch import Launcher, Shape, at_least
from eggroll.engines.gpu.plan import PRODUCTS as MATRIX_KINDS
from eggroll.engines.gpu.plan import padded
from eggroll.engines.gpu.text import Source
from eggroll.errors import InputError
from eggroll.noise import Slices
from eggroll.program import Program, Stage, Weights

LAUNCH_MACS = 1 << 42  # of one launch: seconds at most, as a GPU that drives a display ends longer


@cache
def compiled(source: Source, architecture: int) -> Any:
    """The kernel as MLX compiles it; its name tells all it is made of, as MLX caches by names."""
    parts = (str(architecture), *source.inputs, *source.outputs, source.header, source.body)
    digest = hashlib.sha256("\0".join(parts).encode("ascii")).hexdigest()[:16]
    return mx.fast.cuda_kernel(
        name=f"{source.name}_{digest}",
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
        shared_memory=source.shared,
    )


def launch(
    source: Source,
    inputs: Sequence[mx.array],
    outputs: Sequence[tuple[Shape, mx.Dtype]],
    grid: Shape,
    threadgroup: Shape,
) -> list[mx.array]:
    """Runs a kernel on the GPU through mx.fast.cuda_kernel."""
    shapes, dtypes = zip(*outputs, strict=True)
    return compiled(source, device.architecture())(  # type: ignore[no-any-return]
        inputs=list(inputs),
        output_shapes=list(shapes),
        output_dtypes=list(dtypes),
        grid=grid,
        threadgroup=threadgroup,
    )


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/32][K/32][2][lane][16 bytes], flat.

    A lane is 4 group + quad; its bytes are [input half][row half][4], of outputs 4 group + 2 i +
    row half and inputs 8 quad + 4 input half + 0..3.
    """
    O, K = w.shape
    w = mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)])
    w = w.reshape(padded(O) // 32, 8, 2, 2, padded(K) // 32, 4, 2, 4)
    return w.transpose(0, 4, 2, 1, 5, 6, 3, 7).reshape(-1)


def words(a: mx.array) -> mx.array:
    """Bytes, flat, with zeros up to whole words; kernels read a table by words."""
    return at_least(a, -(-a.size // 4) * 4)


class CudaEngine(StagedEngine):
    """Custom CUDA kernels.

    launcher runs them; members fixes M (0: chosen by the population); on is what kernels are
    generated for (None: this machine's GPU).
    """

    name: ClassVar[str] = "cuda"

    @classmethod
    def unavailable_because(cls) -> str:
        """No GPU, or a small network does not come out as in plain MLX (tried once a process)."""
        if not device.has_gpu():
            return "MLX finds no CUDA GPU"
        why = device.failure(chosen_product())
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        slab: int = 0,
        *,
        launcher: Launcher = launch,
        members: int = 0,
        on: Target | None = None,
    ) -> None:
        super().__init__(program, threads, slab, launcher, members)
        self.on = on or target(device.architecture(), chosen_product())
        self._kernels: dict[tuple[int, int, int, bool], list[Kernel]] = {}
        self._credited: dict[tuple[int, int, Crediting], tuple[Work, list[Source]]] = {}

    @property
    def description(self) -> str:
        return f"cuda (sm_{self.on.architecture}, {self.on.product})"

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        return [self._packed(stage, weights) for stage in self.program.stages]

    def _packed(self, stage: Stage, weights: Weights) -> mx.array:
        parts = [mx.zeros(padded(1), mx.int8)] * all(op.leaf < 0 for op in stage.ops)
        for op in stage.ops:
            if op.leaf >= 0:
                w = weights[self.program.leaves[op.leaf].name]
                flat = packed(w) if op.kind in MATRIX_KINDS else w.reshape(-1)
                parts.append(at_least(flat, padded(flat.size)))
        return mx.concatenate(parts)

    def kernels(self, members: int, noise: Slices | None, logits: bool) -> list[Kernel]:
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, logits)
        if key not in self._kernels:
            plans = cuda_plans(self.program, self.on, members=members, rank=rank)
            product = self.on.product
            sources = [stage_source(plan, shift, product, logits=logits) for plan in plans]
            self._kernels[key] = list(map(Kernel, plans, sources))
        return self._kernels[key]

    def choose_members(self, P: int, rank: int) -> int:
        return block_members(self.program, self.on, rank, P)

    def credit_kernels(self, members: int, shift: int, how: Crediting) -> tuple[Work, list[Source]]:
        key = (members, shift, how)
        if key not in self._credited:
            plans = cuda_credit_plans(self.program, how, self.on, members=members)
            sources = [credit_source(plan, shift, self.on.product) for plan in plans]
            self._credited[key] = Work(plans, credit_kernels(self.on.product)), sources
        return self._credited[key]

    def vote_sources(self, rank: int, clt: bool) -> tuple[Source, Source]:
        return vote_sources(rank, clt, self.on.product)

    def piece(self, P: int, T: int, rank: int) -> tuple[int, int]:
        return piece(self.program, self.on, P, T, rank)

    def credit_piece(self, how: Crediting, P: int, T: int) -> tuple[int, int]:
        return credit_piece(self.program, self.on, how, P, T)

    def tile_bytes(self, members: int) -> int:
        return tile_bytes(self.program.width, members)

    def table_of(self, noise: Slices) -> mx.array:
        return words(noise.table)


def chosen_product() -> str:
    """The product that EGGROLL_CUDA names; empty for the fastest.

    Raises InputError for any other name.
    """
    name = device.switched()
    if name and name not in PRODUCTS:
        raise InputError(
            f"{device.SWITCH}={name!r} is no product of the cuda engine: set it to one of "
            f"{', '.join(PRODUCTS)}, or unset it."
        )
    return name


def piece(program: Program, on: Target, P: int, T: int, rank: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch, bounded in memory and in time.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens
    are cut first.
    """
    plans = [plan for m in MEMBERS for plan in cuda_plans(program, on, members=m, rank=rank)]
    scratch = max(-(-plan.scratch_bytes // plan.members) for plan in plans)
    room = memory() // (2 * (program.width + 7) + scratch)
    room = min(room, LAUNCH_MACS // max(1, *(plan.macs for plan in plans)))
    tokens = min(T, max(room // P, 1))
    return min(P, max(room // tokens // 2 * 2, 2)), tokens


def credit_piece(program: Program, on: Target, how: Crediting, P: int, T: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch where pairs are credited.

    All tokens of a member stay until its scores are known, so its tape bounds the members; in time
    the tokens give way first, as in `piece`.
    """
    each = [cuda_credit_plans(program, how, on, members=m) for m in MEMBERS]
    scratch = max(-(-plan.scratch_bytes // plan.members) for plans in each for plan in plans)
    passed = 2 * (program.width + 7)
    members = min(P, tape_members(each[0], memory(), passed, scratch, T, MEMBERS[0]))
    return piece(program, on, members, T, 0 if how.nodes else 1)


def memory() -> int:
    """Bytes that the arrays between two stages may take: an eighth of the GPU's memory."""
    if not device.has_gpu():
        return 1 << 30
    return min(device.total_memory() // 8, (1 << 31) - 1)
