"""The kernel of a stage with token credit: it also keeps the inputs that credit needs.

Letters: M members of a threadgroup, T tokens, V vocabulary, K inputs.
"""

from __future__ import annotations

from eggroll.credit import SILENT
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.dialect import Dialect
from eggroll.engines.gpu.plan import Phase
from eggroll.engines.gpu.stage import StageWriter
from eggroll.engines.gpu.writer import Result
from eggroll.program import Op


class CreditStageWriter(StageWriter):
    """Writes a stage that leaves a tape, and tokens drawn for the readout; or only outputs.

    shift: of noise on weights, Q + sigma_shift. sizes: T, members, pairs, the first token's number,
    words of signs, pairs of all threadgroups.
    """

    def __init__(
        self, plan: CreditPlan, dialect: Dialect, result: Result = "scores", *, shift: int
    ) -> None:
        super().__init__(plan, dialect, result, shift=shift)
        self.credit, self.nodes = plan, plan.crediting.nodes
        self.noise_files = ("turns", "nodes") if self.nodes else ("weights",)
        if self.nodes or plan.readout:
            self.noise_files = ("mixed", *self.noise_files)
        # The plan of noise on nodes has none, as it takes no x B.
        self.rank, self.perturbed = 1, True

    def node_shift(self, op: Op) -> int:
        return self.credit.noise_shifts[self.leaf(op)] if self.nodes else -1

    def inputs(self) -> list[str]:
        return super().inputs() + ["signs"] * self.nodes + ["draws"] * bool(self.credit.readout)

    def outputs(self) -> list[str]:
        plan = self.credit
        names = ["tape"] * bool(plan.traced)
        names += ["projection"] * bool(plan.traced and not self.nodes)
        return super().outputs() + names + ["read", "moved"] * bool(plan.readout)

    def constants(self) -> str:
        text = super().constants()
        if self.nodes:
            text += self.dialect.array("int", "SHIFTS", self.credit.noise_shifts or [SILENT])
            text += self.dialect.constants(GROUPED=bool(self.credit.crediting.group))
        return text + self.dialect.constants(LOGITS=self.credit.logit_stride)

    def files(self) -> list[str]:
        return [*super().files(), "tape"] + ["draw"] * bool(self.credit.readout)

    def opening(self) -> None:
        plan, (logit, size) = self.credit, self.dialect.logit
        if self.nodes:
            self("noise.signs = signs;", "noise.words = sizes[4];")
        if plan.readout and plan.logits_shared:
            self.share(logit, "own", plan.logit_bytes)
        elif plan.readout:
            self.spilled(logit, "own", "spilled", (plan.scratch_bytes - plan.logit_bytes) // size)

    def token(self) -> None:
        if self.nodes:
            self("noise.t = sizes[3] + t;")

    def products(self, phase: Phase) -> None:
        plan, pairs, group = self.credit, self.plan.members // 2, self.dialect.stage_group
        for kept in plan.kept_first(phase):
            at = f"(({group} * T + t) * {plan.tape_rows} + {kept.row}) * {pairs}"
            self(f"egg::keep<{kept.inputs}>(tape + {at}, r{kept.register}, lane);")
        for op in phase.products:
            if op in plan.traced and not self.nodes:
                at = f"({plan.traced.index(op)} * T + t) * sizes[5] + first / 2"
                self(f"egg::keep_sums(projection + {at}, {self.sums_of(op)}, lane);")
            if op == plan.readout:
                K, x = plan.sizes[op.inputs[0]], op.inputs[0]
                at = f"(first / 2 * T + t) * {K}"
                self(f"egg::keep_rows<{K}>(read + {at}, r{x}, T, members, lane);")

    def scored_tile(self, op: Op) -> None:
        if op == self.credit.readout:
            self(f"egg::keep_logits<{self.plan.program.vocabulary}>(own, logit, tile, lane);")

    def scored_token(self) -> None:
        if self.credit.readout:
            V = self.plan.program.vocabulary
            self(
                f"egg::draw<{V}>(moved + (first / 2 * T + t) * 2, targets + first * T + t, "
                f"draws + first / 2 * T + t, own, {self.exp2}hits, T, members, lane);"
            )
