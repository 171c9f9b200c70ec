"""The kernel of a stage, written from its plan: constants, kernel files, then the body.

The operations themselves are in extensions/int8_gemm/{gpu,metal,cuda}, one file each, ASCII.
Letters: M members of a threadgroup, T tokens, V vocabulary, K inputs and O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from eggroll import fixed_point as fx
from eggroll.engines.gpu.operations import (
    COPIES,
    ELEMENTS,
    ROWS,
    TILES,
    output_name,
    table_name,
)
from eggroll.engines.gpu.plan import ALONE, PRODUCTS, Phase, StagePlan, crossed
from eggroll.engines.gpu.source import Source
from eggroll.engines.gpu.writer import KernelWriter, Result
from eggroll.program import Op, S, X

OPERATIONS = {**ROWS, **TILES, **ELEMENTS, **COPIES}
# What a head leaves: of every token, or the last one's logits. Names of its outputs.
RESULTS: dict[Result, tuple[str, ...]] = {
    "scores": ("scores",),
    "logits": ("logits",),
    "likelihoods": ("totals", "target_logits"),
}


class StageWriter(KernelWriter):
    """Writes the kernel of a stage; a derived writer adds to it by the hooks."""

    noise_files: Sequence[str] = ("weights",)  # the kernel files with the noise's functions

    def source(self) -> Source:
        """The kernel."""
        names = ["noise", "common", *self.noise_files, *self.files()]
        header = self.dialect.header(self.constants(), names)
        inputs, outputs, body = tuple(self.inputs()), tuple(self.outputs()), self.body()
        size = self.shared, self.plan.blocks, 32 * self.plan.simdgroups
        return Source("egg_stage", inputs, outputs, header, body, *size)

    def inputs(self) -> list[str]:
        plan = self.plan
        names = ["weights", "table", "starts", "sizes", "tokens"]
        names += ["targets"] * self.scored
        names += ["shown"] * self.has("input") + ["listed"] * self.has("features")
        return names + ["passed"] * (not plan.first) + ["state"] * (plan.stage.state >= 0)

    def outputs(self) -> list[str]:
        plan = self.plan
        names = ["passed_on"] * plan.passes_on + ["state_after"] * (plan.stage.state >= 0)
        names += RESULTS[self.result] if plan.scores else map(output_name, plan.given)
        return names + ["scratch"] * bool(plan.scratch_bytes)

    def has(self, kind: str) -> bool:
        """Whether the stage has an operation of this kind."""
        return any(op.kind == kind for op in self.plan.ops)

    def files(self) -> list[str]:
        """Kernel files of the stage's operations, each after those it needs."""
        kinds = list(dict.fromkeys(op.kind for op in self.plan.ops))
        linear = ["linear"] * (bool({*ALONE} & {*kinds}) and "linear" not in kinds)
        log2 = ["log2"] * ("score" in kinds)
        return [*self.dialect.product_files(self.plan), *linear, *log2, *kinds]

    def constants(self) -> str:
        plan, dialect = self.plan, self.dialect
        text = dialect.constants(M=plan.members, LD=plan.stride)
        text += dialect.constants(**{dialect.simdgroups: plan.simdgroups})
        return text + dialect.constants(
            THREADS=32 * plan.simdgroups, RANK=self.rank, SHIFT=self.shift,
            PERTURBED=self.perturbed,
        ) + self.tables()  # fmt: skip

    def tables(self) -> str:
        """The integer tables that the stage's operations look up."""
        program, array = self.plan.program, self.dialect.array
        names = sorted({op.table for op in self.plan.ops if op.table})
        values = [program.tables[name].tolist() for name in names]
        text = "".join(
            array("int8_t", table_name(program, name), of, gathered=True)
            for name, of in zip(names, values, strict=True)
        )
        if self.plan.scores:
            text += self.score_tables()
        return text

    def score_tables(self) -> str:
        """EXP2 and LOG2 of the score's unit, 2^-SCORE_BITS; if exact, EXP2 of the exact loss."""
        dialect, bits = self.dialect, self.plan.program.score_bits
        text = dialect.constants(SCORE_BITS=bits, EXACT=self.exact)
        text += f"typedef {dialect.ulong if self.wide else dialect.uint} Total;\n"
        if not self.exact:
            powers = fx.exp2_table(bits).tolist()[-dialect.exp2_words :]
        else:
            powers = (fx.exp2_mantissas() if dialect.exp2_words else fx.exact_exp2()).tolist()
        wide = self.exact and not dialect.exp2_words
        text += dialect.array("ulong" if wide else "uint", "EXP2", powers)
        breakpoints = fx.log2_breakpoints(bits).tolist()
        return text + dialect.array("ulong", "LOG2", breakpoints, gathered=True)

    def opening(self) -> None:
        """Hook: declarations."""

    def token(self) -> None:
        """Hook: the start of a token."""

    def products(self, phase: Phase) -> None:
        """Hook: before the tiles of a phase, when all inputs of its products are there."""

    def row_written(self, op: Op) -> None:
        """Hook: after a row operation, whose result the same lanes have of all of them."""

    def element_written(self, op: Op, value: str) -> None:
        """Hook: after an operation's value of an element, which a lane holds."""

    def scored_token(self) -> None:
        """Hook: after a token's scores."""

    def body(self) -> str:
        """All T tokens of the stage, phase after phase."""
        plan, D = self.plan, self.plan.program.width
        self.declare_memory()
        self.declare()
        self.opening()
        if self.scored and self.dialect.exp2_words:
            self("egg::load_exp2(exp2, lane);")
        self.keep_vectors()
        self.load_state()
        self.move_in("0")
        self.barrier()
        self(f"for ({self.dialect.uint} t = 0; t < T; ++t) {{")
        self.token()
        for phase in plan.phases:
            self.row_part(phase)
            self.tile_part(phase)
        if plan.passes_on:
            self(f"egg::store_tile<{D}>(r{X}, passed_on + {self.at_token('t')}, lane);")
        self("if (t + 1 < T) {")
        self.move_in("t + 1")
        self("}")
        self.barrier()
        self("}")
        if plan.stage.state >= 0:
            self(f"egg::store_state<{D}>(r{S}, state_after + first * {D}, members, lane);")
        return "\n".join(self.lines) + "\n"

    def declare_memory(self) -> None:
        """Threadgroup memory and this threadgroup's share of device memory."""
        plan, dialect = self.plan, self.dialect
        unit, unit_bytes = dialect.unit
        shared = plan.shared_rows * plan.stride
        if shared:
            self.share(unit, "shared", shared)
        if plan.sums_bytes and plan.sums_shared:
            self.share("int", "sums", plan.sums_bytes)
        if plan.spare_bytes:
            self.share("int", "spare", plan.spare_bytes)
        if self.scored:
            self.share("Total", "parts", plan.simdgroups * plan.members * (8 if self.wide else 4))
            self.share("int", "hits", 4 * plan.members)
            if dialect.exp2_words:
                self.share("uint32_t", "exp2", 4 * dialect.exp2_words)
        if plan.scratch_bytes:
            self.spilled(unit, "spilled", f"scratch + {dialect.group} * {plan.scratch_bytes}u")
        if plan.sums_bytes and not plan.sums_shared:
            at = plan.spilled_rows * plan.stride // unit_bytes
            self.spilled("int", "sums", f"spilled + {at}")
        if not plan.sums_bytes and dialect.no_sums[0]:
            self(dialect.no_sums[0])

    def declare(self) -> None:
        """Registers and the coordinates of this threadgroup."""
        plan, dialect = self.plan, self.dialect
        unit, unit_bytes = dialect.unit
        for r, place in sorted(plan.places.items()):
            space = dialect.threadgroup if place.shared else dialect.device
            base, at = "shared" if place.shared else "spilled", place.row * plan.stride
            self(f"{space}{unit}* const r{r} = {base} + {at // unit_bytes};")
        self(
            f"const {dialect.uint} first = {dialect.group} * M;",
            f"const {dialect.uint} T = sizes[0], members = sizes[1] - first;",
            f"const egg::Lane lane = {dialect.lane(plan)};",
            "egg::Noise noise;",
            "noise.table = table;",
            "noise.starts = starts;",
            "noise.first = first / 2;",
            "noise.pairs = sizes[2];",
        )

    def keep_vectors(self) -> None:
        """Vectors get their noise once, where it is the same at every token."""
        for leaf, at in self.plan.kept_vectors.items():
            place, (size,) = self.plan.layout[leaf], self.plan.program.leaves[leaf].shape
            kept = f"kept{place.index}"
            kind, size_of = self.dialect.kept
            self.spilled(kind, kept, "spilled", at // size_of)
            arguments = f"weights + {place.offset}, noise, {place.index}"
            self(f"egg::keep_vector<{size}>({kept}, {arguments}, lane);")

    def load_state(self) -> None:
        """The state comes in, or is zero where it is not kept."""
        D = self.plan.program.width
        if S not in self.plan.lives:
            return
        if self.plan.stage.state >= 0:
            self(f"egg::load_state<{D}>(r{S}, state + first * {D}, members, lane);")
        else:
            self(f"egg::fill<{D}>(r{S}, lane);")
        if self.dialect.state_barrier:
            self.barrier()

    def move_in(self, t: str) -> None:
        """The token's activations come in, and a document mark zeroes the state."""
        plan, D = self.plan, self.plan.program.width
        if X in plan.lives and not plan.first:
            self(f"egg::load_tile<{D}>(r{X}, passed + {self.at_token(t)}, lane);")
        elif X in plan.lives and reads_first(plan, X):
            self(f"egg::fill<{D}>(r{X}, lane);")
        if S in plan.lives:
            self(f"egg::restart<{D}>(r{S}, tokens + first * T + {t}, T, members, lane);")

    def row_part(self, phase: Phase) -> None:
        """Row operations and the low-rank sums of the coming products, a simdgroup per pair."""
        plan, row = self.plan, self.dialect.row
        if not plan.has_rows(phase):
            return
        self(*self.dialect.row_loop())
        # No barrier between them: a lane has the same features of a member in all of them.
        for op in phase.rows:
            ROWS[op.kind](self, op)
            self.row_written(op)
        for op in phase.products if plan.perturbed else []:
            K, x = plan.program.leaves[op.leaf].shape[1], op.inputs[0]
            self(f"egg::dots<{K}>({self.sums_of(op)}, r{x}, noise, {self.leaf(op)}, {row});")
        self("}")
        self.barrier()

    def tile_part(self, phase: Phase) -> None:
        """Products and what follows them element by element, in tiles of outputs x members."""
        plan, dialect = self.plan, self.dialect
        if not phase.tiles:
            return
        self.products(phase)
        kind, outputs = phase.tiles[0].kind, plan.extent(phase.tiles[0])
        if kind == "sums" and phase.tiles[0] not in plan.given:  # only its inputs are asked for
            self.barrier()
            return
        head = kind == "score"
        scored = head and self.scored
        self("{")
        if scored:
            self("egg::Likelihood likelihood;")
            self("egg::begin(likelihood, targets + first * T + t, T, members, lane);")
        self(*dialect.tile_loop(plan, outputs, head))
        written = sorted({op.out for op in phase.tiles if op.writes})
        names = ["logit"] if head else [f"v{r}" for r in written]
        self(*(dialect.tile_values(plan, name, outputs, head) for name in names))
        if kind == "sums":
            self(dialect.tile_sums(plan, "total", outputs))
        for op in phase.products:
            TILES[op.kind](self, op)
        if kind not in ALONE:
            self.element_loop(phase, outputs)
        self("}")
        if scored:
            self("egg::gather(parts, likelihood, lane);")
        self("}")
        self.barrier()
        if scored:
            results = ", ".join(f"{name} + first * T + t" for name in RESULTS[self.result])
            self(f"egg::finish({results}, parts, hits, T, members, lane);")
            self.scored_token()

    def element_loop(self, phase: Phase, outputs: int) -> None:
        """The operations that follow the products, on a lane's own values of the registers."""
        dialect, value = self.dialect, self.dialect.value
        self(*dialect.element_loop(self.plan, outputs))
        self.local = {op.out: f"v{op.out}{dialect.element}" for op in phase.products}
        for op in phase.tiles:
            if op.kind not in PRODUCTS:
                for r in op.inputs:
                    if r not in self.local and r not in crossed(op):
                        self(f"const {value} m{r} = egg::get(r{r}, {dialect.feature}, member);")
                        self.local[r] = f"m{r}"
                self.element(op)
            self.element_written(op, self.local[op.out] if op.writes else "")
            if self.plan.kept(op):
                self(f"egg::put(r{op.out}, {dialect.feature}, member, {self.local[op.out]});")
        self("}")

    def element(self, op: Op) -> None:
        """An operation on the lane's value of one element of each member of a pair."""
        if op.kind in COPIES:
            COPIES[op.kind](self, op)
            return
        argument = ELEMENTS[op.kind](self, op)
        self(*self.dialect.elementwise(op, [self.local[r] for r in op.inputs], argument))
        self.local[op.out] = f"v{op.out}{self.dialect.element}"


def reads_first(plan: StagePlan, register: int) -> bool:
    """True if the stage reads a register before it writes it."""
    for op in plan.ops:
        if register in op.inputs:
            return True
        if op.writes and op.out == register:
            return False
    return False
