"""Base of the writers of stage kernels: lines of text, memory, and the names of what it holds.

Letters: M members of a threadgroup, T tokens.
"""

from __future__ import annotations

from typing import Literal

from eggroll.engines.gpu.dialect import Dialect
from eggroll.engines.gpu.plan import StagePlan
from eggroll.program import Op

Result = Literal["scores", "logits", "likelihoods", "outputs"]
SIZES = {"int": 4, "uint": 4, "uint32_t": 4, "char2": 2, "int8_t": 1}  # bytes of what is shared


class KernelWriter:
    """Collects the lines of a kernel.

    result: what the stage leaves; shift: of the noise, Q + sigma_shift.
    """

    def __init__(
        self, plan: StagePlan, dialect: Dialect, result: Result = "scores", *, shift: int = 0
    ) -> None:
        self.plan, self.dialect, self.result, self.shift = plan, dialect, result, shift
        self.rank, self.perturbed = plan.rank, plan.perturbed
        self.scored = plan.scores and result != "logits"
        self.exact = result == "likelihoods"
        self.lines: list[str] = []
        self.local: dict[int, str] = {}  # register -> the value that a lane holds of it
        self.shared = 0  # bytes of threadgroup memory given out

    def __call__(self, *lines: str) -> None:
        self.lines += lines

    def scored_tile(self, op: Op) -> None:
        """Hook: after a tile of logits."""

    def node_shift(self, op: Op) -> int:
        """Shift of an operation's noise on nodes; -1 where its weights have the noise."""
        return -1

    @property
    def wide(self) -> bool:
        """True if a sum of EXP2, each below 2^(16 + score bits), needs 64 bits."""
        program = self.plan.program
        return self.exact or program.vocabulary > 1 << (16 - program.score_bits)

    @property
    def exp2(self) -> str:
        """The argument for EXP2, where threadgroup memory has a copy."""
        return "exp2, " if self.dialect.exp2_words else ""

    def barrier(self) -> None:
        self(self.dialect.barrier(bool(self.plan.scratch_bytes)))

    def share(self, kind: str, name: str, size: int) -> None:
        """Declares an array of `size` bytes in threadgroup memory, aligned to 16."""
        each = (8 if self.wide else 4) if kind == "Total" else SIZES[kind]
        self(*self.dialect.share(kind, name, size // each, self.shared))
        self.shared += -(-size // 16) * 16

    def spilled(self, kind: str, name: str, memory: str, at: int = 0) -> None:
        """Declares a pointer into this threadgroup's device memory."""
        pointer, offset = f"{self.dialect.device}{kind}*", f" + {at}" if at else ""
        self(f"{pointer} const {name} = reinterpret_cast<{pointer}>({memory}){offset};")

    def at_token(self, t: str) -> str:
        """Offset of a token's activations in [threadgroup][T][tile_bytes]."""
        size = self.dialect.tile_bytes(self.plan.program.width, self.plan.members)
        return f"({self.dialect.stage_group} * T + {t}) * {size}"

    def row_of(self, array: str, size: int) -> str:
        """A pointer to this token's row of the first member, in an array [P, T, size]."""
        return f"{array} + (first * T + t) * {size}"

    def weights(self, op: Op) -> str:
        return f"weights + {self.plan.layout[op.leaf].offset}"

    def leaf(self, op: Op) -> int:
        return self.plan.layout[op.leaf].index

    def vector(self, op: Op) -> str:
        """Arguments that give an operation its vector: as kept, or what it is made from."""
        if op.leaf in self.plan.kept_vectors:
            return f"kept{self.leaf(op)}"
        return f"{self.weights(op)}, noise, {self.leaf(op)}"

    def sums_of(self, op: Op) -> str:
        """A pointer to x B of a product, among those of its phase."""
        plan = self.plan
        if not plan.perturbed:
            return self.dialect.no_sums[1]
        phase = next(p for p in plan.phases if op in p.products)
        return f"sums + {phase.products.index(op) * plan.rank * plan.members}"
