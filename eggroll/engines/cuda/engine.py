"""The CUDA engine: a block of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm; see docs/cuda.md.
Letters: P members, K inputs, O outputs.
"""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx

from eggroll.credit import Crediting
from eggroll.engines.cuda import device
from eggroll.engines.cuda.dialect import Cuda
from eggroll.engines.cuda.plan import (
    MEMBERS,
    CudaCarryPlan,
    CudaCreditPlan,
    CudaPlan,
    Target,
    block_members,
    cuda_carry_plans,
    cuda_credit_plans,
    cuda_plans,
    target,
)
from eggroll.engines.gpu.engine import StagedEngine
from eggroll.engines.gpu.launch import Launcher, pad_flat
from eggroll.engines.gpu.pace import Pace
from eggroll.engines.gpu.plan import padded
from eggroll.noise import Slices
from eggroll.program import Program


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
    """Bytes, flat, as whole words and one more, at an address of its own.

    Kernels read the noise by words, of which two hold four bytes from anywhere.
    """
    return pad_flat(a, -(-a.size // 4) * 4 + 4)


class CudaEngine(StagedEngine):
    """Custom CUDA kernels.

    on is what kernels are generated for (None: this machine's GPU).
    """

    name = "cuda"
    group_sizes: ClassVar[tuple[int, ...]] = MEMBERS

    @classmethod
    def unavailable_because(cls) -> str:
        """No GPU, or small networks do not come out as on the cpu engine; see trial.py."""
        if not device.has_gpu():
            return "MLX finds no CUDA GPU"
        why = device.trial_error(device.chosen_product())
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        block_tokens: int = 0,
        *,
        launcher: Launcher = device.launch,
        members: int = 0,
        on: Target | None = None,
    ) -> None:
        self.on = on or target(device.architecture(), device.chosen_product())
        dialect, pace = Cuda(self.on.product), Pace(waits=launcher is device.launch)
        super().__init__(program, threads, block_tokens, dialect, launcher, members, pace)

    @property
    def description(self) -> str:
        return f"cuda (sm_{self.on.architecture}, {self.on.product})"

    def plans(self, members: int, rank: int, puts_out: bool = False) -> list[CudaPlan]:
        options = {"members": members, "rank": rank}
        return cuda_plans(self.program, self.on, **options, puts_out=puts_out)

    def credit_plans(
        self, crediting: Crediting, members: int, puts_out: bool = False
    ) -> list[CudaCreditPlan]:
        program, on = self.program, self.on
        return cuda_credit_plans(program, crediting, on, members=members, puts_out=puts_out)

    def carry_plans(self, passing: frozenset[int], members: int) -> list[CudaCarryPlan]:
        return cuda_carry_plans(self.program, passing, self.on, members=members)

    def choose_members(self, P: int, rank: int) -> int:
        return block_members(self.program, self.on, rank, P)

    def packed(self, w: mx.array) -> mx.array:
        return packed(w)

    def table_of(self, noise: Slices) -> mx.array:
        return words(noise.table)

    def memory(self) -> int:
        """An eighth of the GPU's memory."""
        if not device.has_gpu():
            return 1 << 30
        return min(device.total_memory() // 8, (1 << 31) - 1)
