"""The kernel of a stage whose members will carry errors back: it also leaves what they need.

Letters: M members of a threadgroup, T tokens.
"""

from __future__ import annotations

from eggroll.engines.gpu.carry_plan import OF_S, OF_X, CarryPlan
from eggroll.engines.gpu.dialect import Dialect
from eggroll.engines.gpu.plan import PAD
from eggroll.engines.gpu.stage import StageWriter
from eggroll.program import Op, S, X


class TapeStageWriter(StageWriter):
    """Writes a stage without noise that leaves a tape, [threadgroup][T][rows][M]."""

    def __init__(self, plan: CarryPlan, dialect: Dialect) -> None:
        super().__init__(plan, dialect, "scores")
        self.carried = plan

    def outputs(self) -> list[str]:
        return super().outputs() + ["tape"] * bool(self.carried.tape)

    def files(self) -> list[str]:
        return [*super().files(), "carry_tape"]

    def kept_at(self, value: int) -> str:
        return f"kept + {self.carried.tape[value] * self.plan.members}"

    def token(self) -> None:
        plan, tape = self.carried, self.carried.tape
        if tape:
            size = plan.tape_rows * plan.members
            at = f"({self.dialect.stage_group} * T + t) * {size}"
            self(f"{self.dialect.device}int8_t* const kept = tape + {at};")
        begins = [(r, v) for r, v in ((X, OF_X), (S, OF_S)) if v in tape]
        for r, value in begins:
            self(f"egg::store_tile<{plan.program.width}>(r{r}, {self.kept_at(value)}, lane);")
        if begins:  # which the first operations may write
            self.barrier()

    def row_written(self, op: Op) -> None:
        number = self.carried.number(op)
        if number in self.carried.tape:
            arguments = f"{self.kept_at(number)}, r{op.out}, {self.dialect.row}"
            self(f"egg::keep_row<{self.plan.sizes[op.out]}>({arguments});")

    def element_written(self, op: Op, value: str) -> None:
        number, feature = self.carried.number(op), self.dialect.feature
        if number in self.carried.tape:
            size = self.plan.extent(op)
            within = f"if ({feature} < {self.dialect.rows_of(size)}) " if size % PAD else ""
            self(f"{within}egg::keep_value({self.kept_at(number)}, {feature}, member, {value});")

    def scored_tile(self, op: Op) -> None:
        if self.carried.number(op) in self.carried.tape:
            self(*self.dialect.element_loop(self.plan, self.plan.extent(op), head=True))
            self.element_written(op, f"logit{self.dialect.element}")
            self("}")
