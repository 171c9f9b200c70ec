"""Base of the kernel that carries errors back through a stage: its rows from the last to the first.

Letters: M members of a threadgroup, T tokens, D width, K inputs and O outputs of a leaf.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from eggroll import fixed_point as fx
from eggroll.engines.gpu.carry_plan import BackPhase, CarryPlan
from eggroll.engines.gpu.dialect import Dialect
from eggroll.engines.gpu.operations import table_name
from eggroll.engines.gpu.plan import padded
from eggroll.engines.gpu.source import Source
from eggroll.engines.gpu.writer import KernelWriter
from eggroll.program import S, X

Home = Literal["was", "c"]  # credit of x as it was handed, or where all registers have theirs


class CarryKernel(KernelWriter):
    """Writes what is around the phases: arrays, sums, and the credit of x and of the state."""

    def __init__(self, plan: CarryPlan, dialect: Dialect) -> None:
        super().__init__(plan, dialect)
        self.carried = plan
        self.homes: dict[int, Home] = {}  # of the registers that have credit in memory
        self.names = 0

    def source(self) -> Source:
        """The kernel."""
        plan = self.carried
        names = ["noise", "common", "weights", "mixed", "carry", *self.dialect.product_files(plan)]
        names += ["carry_lanes", *self.files()]
        header = self.dialect.header(self.constants(), names)
        inputs, outputs, body = tuple(self.inputs()), tuple(self.outputs()), self.body()
        return Source(
            "egg_carry", inputs, outputs, header, body, self.shared, 0, 32 * plan.simdgroups
        )

    def has(self, *kinds: str) -> bool:
        return any(step.op.kind in kinds for step in self.carried.steps)

    def files(self) -> list[str]:
        return [f"carry_{kind}" for kind in ("norm", "score") if self.has(kind)]

    def inputs(self) -> list[str]:
        plan = self.carried
        names = ["weights", "sizes", "scales", "words", "tokens"]
        names += ["targets"] * self.has("score") + ["tape"] * bool(plan.tape)
        names += ["matrices"] * bool(plan.sent)
        return names + ["handed"] * plan.handed + ["carried"] * plan.stateful

    def outputs(self) -> list[str]:
        plan = self.carried
        names = ["credits"] * bool(plan.credits) + ["vectors"] * bool(plan.vectors)
        names += ["magnitudes"] * bool(plan.credited) + ["handed_on"] * plan.hands_on
        return names + ["carried_on"] * plan.stateful + ["scratch"] * bool(plan.back_bytes)

    @property
    def leaves_something(self) -> bool:
        """Whether there is anything to launch it for."""
        return bool({*self.outputs()} - {"scratch"})

    def constants(self) -> str:
        plan, dialect = self.carried, self.dialect
        text = dialect.constants(
            M=plan.members, LD=plan.members, THREADS=32 * plan.simdgroups, RANK=0, SHIFT=0,
            PERTURBED=False, BESIDE=dialect.beside, **{dialect.simdgroups: plan.simdgroups},
        )  # fmt: skip
        for name in sorted({step.op.table for step in plan.steps if step.op.table}):
            values = plan.program.tables[name].tolist()
            text += dialect.array("int8_t", table_name(plan.program, name), values, gathered=True)
        if self.has("score"):
            text += dialect.array("uint", "ERROR_EXP2", fx.exp2_table().tolist(), gathered=True)
        return text

    @abstractmethod
    def phase(self, phase: BackPhase) -> None:
        """Writes a phase, with barriers behind it."""

    def body(self) -> str:
        """All rows, from the last to the first."""
        dialect = self.dialect
        self.declare()
        self.begin()
        self.barrier()
        self(f"for ({dialect.uint} back = 0; back < T; ++back) {{")
        self.begin_row()
        for phase in self.carried.back:
            self.phase(phase)
        self.end_row()
        self("}")
        self.add_totals()
        return "\n".join(self.lines) + "\n"

    def barrier(self) -> None:
        self(self.dialect.barrier(True))

    def pointer(self, kind: str, name: str, value: str, *, const: bool = False) -> None:
        space = f"{'const ' * const}{self.dialect.device}"
        self(f"{space}{kind}* const {name} = {value};")

    def declare(self) -> None:
        plan, dialect = self.carried, self.dialect
        if plan.spare_bytes:
            self.share("int", "spare", plan.spare_bytes)
        self(
            f"const {dialect.uint} group = {dialect.group}, first = group * M;",
            f"const {dialect.uint} T = sizes[0], members = sizes[1] - first;",
            f"const egg::Lane lane = {dialect.lane(plan)};",
        )
        if plan.back_bytes:
            of_group = f"scratch + group * {plan.back_bytes}u"
            self.spilled("uint64_t", "sums", of_group)
            self.spilled("int", "homes", of_group, plan.totals_bytes // 4)
        for r, row in plan.homes.items():
            self.pointer("int", f"c{r}", f"homes + {row * plan.members}")
        for leaf, row in plan.vectors.items():
            at = f"(group * {plan.vector_rows} + {row}) * {plan.members}"
            self.pointer("int", f"z{leaf}", f"vectors + {at}")
        if plan.stateful:
            self.pointer("int", f"c{S}", f"carried_on + group * {self.width}")
        for leaf in plan.credited:
            self(f"const int scale{leaf} = scales[{leaf}];")
        if self.steady:
            place, uint = dialect.in_group, dialect.uint
            self(
                f"const {uint} mine = egg::member_of({place}), begin = egg::feature_of({place});",
                f"const {uint} read = (first + min(mine, members - 1)) * T;",
            )

    @property
    def steady(self) -> bool:
        """Whether a thread has the elements of one member only, in all loops."""
        return 32 * self.plan.simdgroups % (self.plan.members * self.dialect.beside) == 0

    @property
    def width(self) -> int:
        """Elements of a threadgroup's activations of a row, as they are passed on."""
        return self.dialect.tile_bytes(self.plan.program.width, self.plan.members)

    def begin(self) -> None:
        """Sums are zero, and the state's credit is what later rows left."""
        plan = self.carried
        for i in range(len(plan.credited)):
            self(f"{self.total(i)} = 0;")
        if plan.vectors:
            size = plan.vector_rows * plan.members
            self.each(size)
            self(f"vectors[group * {size} + i] = 0;", "}")
        if plan.stateful:
            self.each(self.width)
            self(f"c{S}[i] = carried[group * {self.width} + i];", "}")

    def total(self, i: int) -> str:
        """This thread's sum of |c| of a leaf."""
        return f"sums[{i} * THREADS + {self.dialect.in_group}]"

    def each(self, size: int) -> None:
        """Opens a loop over elements, as all such loops deal them out."""
        uint, thread = self.dialect.uint, self.dialect.in_group
        self(f"for ({uint} i = {thread}; i < {size}; i += THREADS) {{")

    def each_element(self, extent: int) -> None:
        """The same over a member's features k, of which there are `extent`."""
        dialect, size = self.dialect, self.dialect.tile_bytes(extent, self.plan.members)
        if self.steady:
            self(
                f"for ({dialect.uint} i = {dialect.in_group}, k = begin; i < {size}; "
                "i += THREADS, k += THREADS / M) {"
            )
        else:
            self.each(size)
            self(f"const {dialect.uint} k = egg::feature_of(i);")
        if extent % dialect.beside:
            self(f"if (k >= {extent}) continue;")

    def begin_row(self) -> None:
        plan, uint = self.carried, self.dialect.uint
        self(f"const {uint} t = T - 1 - back, row = group * T + t;")
        if plan.tape:
            at = f"tape + row * {plan.tape_rows * plan.members}"
            self.pointer("int8_t", "kept", at, const=True)
        if plan.credits:
            self.pointer("int8_t", "small", f"credits + row * {plan.credit_rows * plan.members}")
        if plan.handed:
            self.pointer("int", f"was{X}", f"handed + row * {self.width}", const=True)
        if plan.hands_on:
            self.pointer("int", f"c{X}", f"handed_on + row * {self.width}")
        for leaf, row in plan.credits.items():
            self.fill("small", row, plan.leaf_sizes[leaf], padded(plan.leaf_sizes[leaf]))
        if plan.hands_on:
            self.fill(f"c{X}", 0, plan.program.width, self.width // plan.members)
        if self.steady and self.rounds:
            self(f"const uint32_t drawn = {self.own('words')};")
        self.homes = {r: "was" if r == X else "c" for r in plan.begins}

    @property
    def rounds(self) -> bool:
        """Whether leaves have credit element by element."""
        steps = [step for phase in self.carried.back if phase.extent for step in phase.steps]
        return any(step.op.leaf >= 0 for step in steps)

    def fill(self, array: str, row: int, size: int, rows: int) -> None:
        """Zeros in the rows behind `size` of them, which nothing else writes."""
        if size == rows:
            return
        M, begin = self.plan.members, size // self.dialect.beside * self.dialect.beside
        self.each((rows - begin) * M)
        at = f"egg::feature_of(i) >= {size - begin}"
        self(f"if ({at}) {array}[{(row + begin) * M} + i] = 0;", "}")

    def end_row(self) -> None:
        """Credit of x leaves the stage, that of the state goes to the row before."""
        plan = self.carried
        if plan.hands_on and self.homes[X] == "was":
            self.each(self.width)
            self(f"c{X}[i] = was{X}[i];", "}")
        if plan.stateful:
            self.each(self.width)
            if S in self.homes:  # a document's state begins at zero
                self(f"if ({self.own('tokens')} == 0) c{S}[i] = 0;", "}")
            else:
                self(f"c{S}[i] = 0;", "}")
        self.barrier()

    def own(self, array: str) -> str:
        """What an element's member has of an array [P, T]."""
        return f"{array}[read + t]" if self.steady else self.reads(array, "egg::member_of(i)")

    def reads(self, array: str, member: str) -> str:
        """What a member has of an array [P, T]; those past the end what the last has."""
        uint = self.dialect.uint
        return f"{array}[(first + min({uint}({member}), members - 1)) * T + t]"

    def add_totals(self) -> None:
        plan, dialect = self.carried, self.dialect
        if not plan.credited:
            return
        self.barrier()
        count = len(plan.credited)
        self(
            f"for ({dialect.uint} i = {dialect.in_group}; i < {count}; i += THREADS) {{",
            "uint64_t sum = 0;",
            f"for ({dialect.uint} j = 0; j < THREADS; ++j) sum += sums[i * THREADS + j];",
            f"magnitudes[group * {count} + i] = int64_t(sum);",
            "}",
        )
