"""The Metal engine: a threadgroup of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm/metal; see docs/metal.md.
Letters: P members, N pairs, T tokens, D width, V vocabulary, K inputs, O outputs, M members of a
threadgroup.
"""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx

from eggroll.credit import Crediting
from eggroll.engines import trial
from eggroll.engines.gpu.credit import Work
from eggroll.engines.gpu.credit_plan import credit_plans
from eggroll.engines.gpu.engine import Kernel, StagedEngine, tape_members
from eggroll.engines.gpu.launch import LEAST, Launcher, at_least, launch
from eggroll.engines.gpu.plan import MEMBERS, PRODUCTS, best_members, padded, stage_plans
from eggroll.engines.gpu.text import Source
from eggroll.engines.metal.credit_source import credit_source
from eggroll.engines.metal.source import stage_source, vote_sources
from eggroll.noise import Slices
from eggroll.program import Program, Stage, Weights

LAUNCH_MACS = 1 << 38  # of one launch: a fraction of a second, as macOS ends longer ones
WHOLE = 32  # members of the largest threadgroup: pieces of these leave none half empty


def framed(w: mx.array) -> mx.array:
    """A matrix [O, K] as NAX reads it: rows after each other, with zeros up to multiples of PAD."""
    O, K = w.shape
    return mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)]).reshape(-1)


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/8][K/32][lane][4 steps][2], flat.

    Lane bits 4, 2, 1 are the row of an 8 x 8 matrix, bits 3, 0 and the element its column.
    """
    O, K = w.shape
    w = framed(w).reshape(padded(O) // 8, 2, 2, 2, padded(K) // 32, 4, 2, 2, 2)
    return w.transpose(0, 4, 1, 6, 2, 3, 7, 5, 8).reshape(-1)


class MetalEngine(StagedEngine):
    """Custom Metal kernels.

    launcher runs them; members fixes M (0: chosen by the population); nax switches the path of the
    newer matrix units on or off (None: on where a trial on this machine gives the right integers).
    """

    name: ClassVar[str] = "metal"

    @classmethod
    def unavailable_because(cls) -> str:
        """No GPU, or a small network does not come out as in plain MLX (tried once a process)."""
        if not mx.metal.is_available():
            return "MLX finds no Metal GPU"
        why = trial.failure(False)
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        slab: int = 0,
        *,
        launcher: Launcher = launch,
        members: int = 0,
        nax: bool | None = None,
    ) -> None:
        super().__init__(program, threads, slab, launcher, members)
        self.nax = trial.nax_usable() if nax is None else nax
        self._kernels: dict[tuple[int, int, int, bool], list[Kernel]] = {}
        self._credited: dict[tuple[int, int, Crediting], tuple[Work, list[Source]]] = {}

    @property
    def description(self) -> str:
        return f"metal ({'NAX' if self.nax else 'simdgroup matrices'})"

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        return [self._packed(stage, weights) for stage in self.program.stages]

    def _packed(self, stage: Stage, weights: Weights) -> mx.array:
        parts = [mx.zeros(LEAST, mx.int8)] * all(op.leaf < 0 for op in stage.ops)
        for op in stage.ops:
            if op.leaf >= 0:
                w = weights[self.program.leaves[op.leaf].name]
                arrange = framed if self.nax else packed
                flat = arrange(w) if op.kind in PRODUCTS else w.reshape(-1)
                parts.append(at_least(flat, padded(flat.size)))
        return mx.concatenate(parts)

    def kernels(self, members: int, noise: Slices | None, logits: bool) -> list[Kernel]:
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, logits)
        if key not in self._kernels:
            plans = stage_plans(self.program, members=members, rank=rank, nax=self.nax)
            sources = [stage_source(plan, shift, logits=logits) for plan in plans]
            self._kernels[key] = list(map(Kernel, plans, sources))
        return self._kernels[key]

    def choose_members(self, P: int, rank: int) -> int:
        return best_members(self.program, rank, P, self.nax)

    def vote_sources(self, rank: int, clt: bool) -> tuple[Source, Source]:
        return vote_sources(rank, clt)

    def piece(self, P: int, T: int, rank: int) -> tuple[int, int]:
        return piece(self.program, P, T, rank)

    def credit_piece(self, how: Crediting, P: int, T: int) -> tuple[int, int]:
        return credit_piece(self.program, how, P, T)

    def tile_bytes(self, members: int) -> int:
        return members * self.program.width

    def credit_kernels(self, members: int, shift: int, how: Crediting) -> tuple[Work, list[Source]]:
        key = (members, shift, how)
        if key not in self._credited:
            plans = credit_plans(self.program, how, members=members, nax=self.nax)
            self._credited[key] = Work(plans), [credit_source(plan, shift) for plan in plans]
        return self._credited[key]


def piece(program: Program, P: int, T: int, rank: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch, bounded in memory and in time.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens
    are cut first.
    """
    plans = stage_plans(program, members=MEMBERS[-1], rank=rank)
    room = memory() // (2 * program.width + max(plan.scratch_bytes for plan in plans))
    room = min(room, LAUNCH_MACS // max(1, *(plan.macs for plan in plans)))
    tokens = min(T, max(room // P, 1))
    return min(P, max(room // tokens // 2 * 2, 2)), tokens


def credit_piece(program: Program, how: Crediting, P: int, T: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch where pairs are credited.

    All tokens of a member stay until its scores are known, so its tape bounds the members; in time
    the tokens give way first, as in `piece`.
    """
    plans = credit_plans(program, how, members=MEMBERS[-1])
    scratch = max(plan.scratch_bytes for plan in plans)
    members = min(P, tape_members(plans, memory(), 2 * program.width, scratch, T, WHOLE))
    return piece(program, members, T, 0 if how.nodes else 1)


def memory() -> int:
    """Bytes that the arrays between two stages may take: an eighth of the working set."""
    if not mx.metal.is_available():
        return 1 << 30
    return min(int(mx.device_info()["max_recommended_working_set_size"]) // 8, (1 << 31) - 1)
