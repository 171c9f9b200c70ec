"""The Metal engine: a threadgroup of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm; see docs/metal.md.
Letters: P members, K inputs, O outputs.
"""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx

from eggroll.credit import Crediting
from eggroll.engines.gpu.carry_plan import CarryPlan, carry_plans
from eggroll.engines.gpu.credit_plan import CreditPlan, credit_plans
from eggroll.engines.gpu.engine import StagedEngine
from eggroll.engines.gpu.launch import Launcher
from eggroll.engines.gpu.pace import Pace, whole_portions
from eggroll.engines.gpu.plan import MEMBERS, StagePlan, best_members, padded, stage_plans
from eggroll.engines.metal import device
from eggroll.engines.metal.dialect import Metal
from eggroll.program import Program


def pad_matrix(w: mx.array) -> mx.array:
    """A matrix [O, K] as NAX reads it: rows after each other, with zeros up to multiples of PAD."""
    O, K = w.shape
    return mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)]).reshape(-1)


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/8][K/32][lane][4 steps][2], flat.

    Lane bits 4, 2, 1 are the row of an 8 x 8 matrix, bits 3, 0 and the element its column.
    """
    O, K = w.shape
    w = pad_matrix(w).reshape(padded(O) // 8, 2, 2, 2, padded(K) // 32, 4, 2, 2, 2)
    return w.transpose(0, 4, 1, 6, 2, 3, 7, 5, 8).reshape(-1)


class MetalEngine(StagedEngine):
    """Custom Metal kernels.

    nax switches the path of the newer matrix units on or off (None: on where a trial on this
    machine gives the right integers).
    """

    name = "metal"
    group_sizes: ClassVar[tuple[int, ...]] = MEMBERS

    @classmethod
    def unavailable_because(cls) -> str:
        """No GPU, or small networks do not come out as on the cpu engine; see trial.py."""
        if not mx.metal.is_available():
            return "MLX finds no Metal GPU"
        why = device.trial_error(False)
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        block_tokens: int = 0,
        *,
        launcher: Launcher = device.launch,
        members: int = 0,
        nax: bool | None = None,
    ) -> None:
        pace = Pace(waits=launcher is device.launch)
        super().__init__(program, threads, block_tokens, Metal(), launcher, members, pace)
        if pace.waits:
            whole_portions()
        self.nax_failure = device.nax_failure() if nax is None else ""
        self.nax = not device.nax_unused_because() if nax is None else nax

    @property
    def description(self) -> str:
        unused = f"; NAX is not used: {self.nax_failure}" if self.nax_failure else ""
        return f"metal ({'NAX' if self.nax else 'simdgroup matrices'}{unused})"

    @property
    def remedy(self) -> str:
        return f"{device.SWITCH}=0 leaves NAX unused; " if self.nax else ""

    def plans(self, members: int, rank: int, puts_out: bool = False) -> list[StagePlan]:
        options = {"members": members, "rank": rank}
        return stage_plans(self.program, **options, nax=self.nax, puts_out=puts_out)

    def credit_plans(
        self, crediting: Crediting, members: int, puts_out: bool = False
    ) -> list[CreditPlan]:
        program, nax = self.program, self.nax
        return credit_plans(program, crediting, members=members, nax=nax, puts_out=puts_out)

    def carry_plans(self, passing: frozenset[int], members: int) -> list[CarryPlan]:
        return carry_plans(self.program, passing, members=members, nax=self.nax)

    def choose_members(self, P: int, rank: int) -> int:
        return best_members(self.program, rank, P, self.nax)

    def packed(self, w: mx.array) -> mx.array:
        return pad_matrix(w) if self.nax else packed(w)

    def memory(self) -> int:
        """An eighth of the working set."""
        if not mx.metal.is_available():
            return 1 << 30
        return min(int(mx.device_info()["max_recommended_working_set_size"]) // 8, (1 << 31) - 1)
