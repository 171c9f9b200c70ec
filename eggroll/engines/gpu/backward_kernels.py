"""The kernels of the backward pass: a stage that leaves a tape, and the way back through it.

Letters: M members of a threadgroup, T tokens, D width, K inputs and O outputs of a leaf, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from eggroll.engines.gpu.backward_plan import (
    IN_ERROR_UNITS,
    OF_S,
    OF_X,
    TAKES_ERRORS,
    BackwardPhase,
    BackwardPlan,
    BackwardStep,
)
from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.plan import PAD, padded
from eggroll.engines.gpu.stage import KernelWriter, StageWriter, table_name
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import BETWEEN_LEAVES, BOUND, CLIPPED, FRACTION, reduced
from eggroll.spec.program import Op, S, X

Home = Literal["was", "c"]  # names of pointers to credit: as the next stage left it, and its own
GROWING = ("lookup",)  # operations that give an input more than their own credit


class TapeStageWriter(StageWriter):
    """Writes a stage without noise that leaves a tape, [threadgroup][T][rows][M]."""

    plan: BackwardPlan

    def __init__(self, plan: BackwardPlan, dialect: Dialect) -> None:
        super().__init__(plan, dialect)

    def outputs(self) -> list[str]:
        return super().outputs() + ["tape"] * bool(self.plan.tape_starts)

    def files(self) -> list[str]:
        return [*super().files(), "carry_tape"]

    def tape_place(self, value: int) -> str:
        return f"kept + {self.plan.tape_starts[value] * self.plan.members}"

    def token(self) -> None:
        plan, tape = self.plan, self.plan.tape_starts
        if tape:
            size = plan.tape_rows * plan.members
            at = f"({self.dialect.stage_group} * T + t) * {size}"
            self(f"{self.dialect.device}int8_t* const kept = tape + {at};")
        taped = [(r, value) for r, value in ((X, OF_X), (S, OF_S)) if value in tape]
        for r, value in taped:
            self(f"egg::store_tile<{plan.program.width}>(r{r}, {self.tape_place(value)}, lane);")
        if taped:  # which the first operations may write
            self.barrier()

    def row_written(self, op: Op) -> None:
        number = self.plan.number(op)
        if number in self.plan.tape_starts:
            arguments = f"{self.tape_place(number)}, r{op.out}, {self.dialect.row}"
            self(f"egg::keep_row<{self.plan.sizes[op.out]}>({arguments});")

    def element_written(self, op: Op, value: str) -> None:
        number, feature = self.plan.number(op), self.dialect.feature
        if number in self.plan.tape_starts:
            size = self.plan.extent(op)
            within = f"if ({feature} < {self.dialect.rows_of(size)}) " if size % PAD else ""
            self(f"{within}egg::keep_value({self.tape_place(number)}, {feature}, member, {value});")

    def scored_tile(self, op: Op) -> None:
        if self.plan.number(op) in self.plan.tape_starts:
            self(*self.dialect.element_loop(self.plan, self.plan.extent(op), head=True))
            self.element_written(op, f"logit{self.dialect.element}")
            self("}")


class BackwardWriter(KernelWriter):
    """Writes the kernel that carries errors back through a stage, phase after phase."""

    plan: BackwardPlan

    def __init__(self, plan: BackwardPlan, dialect: Dialect) -> None:
        super().__init__(plan, dialect)
        self.homes: dict[int, Home] = {}  # of the registers that have credit in memory
        self.value_count = 0  # values that the text declares

    def source(self) -> KernelSource:
        """The kernel."""
        plan = self.plan
        names = ["noise", "common", "weights", "mixed", "carry", *self.dialect.product_files(plan)]
        names += ["carry_lanes", *self.files()]
        header = self.dialect.header(self.constants(), names)
        inputs, outputs, body = tuple(self.inputs()), tuple(self.outputs()), self.body()
        return KernelSource(
            "egg_carry", inputs, outputs, header, body, self.shared, 0, 32 * plan.simdgroups
        )

    def has(self, *kinds: str) -> bool:
        return any(step.op.kind in kinds for step in self.plan.steps)

    def files(self) -> list[str]:
        return [f"carry_{kind}" for kind in ("norm", "score") if self.has(kind)]

    def inputs(self) -> list[str]:
        plan = self.plan
        names = ["weights", "sizes", "scales", "words", "tokens"]
        names += ["targets"] * self.has("score") + ["errors"] * self.has(*TAKES_ERRORS)
        names += ["tape"] * bool(plan.tape_starts)
        names += ["matrices"] * bool(plan.feedback_starts)
        return names + ["handed"] * plan.receives_x + ["carried"] * plan.stateful

    def outputs(self) -> list[str]:
        plan = self.plan
        names = ["credits"] * bool(plan.credit_starts) + ["vectors"] * bool(plan.vector_starts)
        names += ["magnitudes"] * bool(plan.credited_leaves) + ["handed_on"] * plan.returns_x
        return names + ["carried_on"] * plan.stateful + ["scratch"] * bool(plan.backward_scratch)

    @property
    def has_results(self) -> bool:
        """True if it leaves anything but scratch."""
        return bool({*self.outputs()} - {"scratch"})

    def constants(self) -> str:
        plan, dialect = self.plan, self.dialect
        text = dialect.constants(
            M=plan.members, LD=plan.members, THREADS=32 * plan.simdgroups, RANK=0, SHIFT=0,
            PERTURBED=False, BESIDE=dialect.adjacent, **{dialect.simdgroups: plan.simdgroups},
        )  # fmt: skip
        for name in sorted({step.op.table for step in plan.steps if step.op.table}):
            values = plan.program.tables[name].tolist()
            text += dialect.array("int8_t", table_name(plan.program, name), values, gathered=True)
        if self.has("score"):
            text += dialect.array("uint", "ERROR_EXP2", fx.exp2_table().tolist(), gathered=True)
        return text

    def body(self) -> str:
        """All rows, from the last to the first."""
        dialect = self.dialect
        self.declare()
        self.begin()
        self.barrier()
        self(f"for ({dialect.uint} back = 0; back < T; ++back) {{")
        self.begin_row()
        for phase in self.plan.backward_phases:
            self.phase(phase)
        self.end_row()
        self("}")
        self.add_totals()
        return "\n".join(self.lines) + "\n"

    def phase(self, phase: BackwardPhase) -> None:
        if phase.extent:
            self.elements(phase)
        else:
            (step,) = phase.steps
            LONE_STEPS[step.op.kind](self, step)
        self.barrier()
        if phase.products:
            for step in phase.products:
                self.product(step)
            self.barrier()

    def take_credit(self, register: int) -> str:
        """Takes a register's credit out of memory; returns the pointer to it."""
        return f"{self.homes.pop(register)}{register}"

    def credit_target(self, register: int) -> tuple[str, str, str]:
        """Pointers to where credit goes and to what it is added to, and whether it is added."""
        target = f"c{register}"
        adds = register in self.homes
        source = f"{self.homes[register]}{register}" if adds else target
        self.homes[register] = "c"
        return target, source, "true" if adds else "false"

    def elements(self, phase: BackwardPhase) -> None:
        """Operations that look at one element at a time, whose credit a thread holds."""
        plan = self.plan
        leaves = [step.op.leaf for step in phase.steps if step.op.leaf >= 0]
        self("{")
        rounds = -(-phase.extent * plan.members // (32 * plan.simdgroups)) + 1
        size = "uint32_t" if rounds * BOUND < 1 << 32 else "uint64_t"
        for leaf in leaves:
            self(f"{size} size{leaf} = 0;")
        self.open_element_loop(phase.extent)
        if phase.rounds:
            word = "drawn" if self.steady else self.own_value("words")
            self(f"const uint32_t word = {word} + k;")
        self.local: dict[int, str] = {}
        for step in phase.steps:
            if step.op.writes:
                c = self.credit_of(step.op.out)
                del self.local[step.op.out]
            else:
                c = self.error_of(step.op)
            if step.op.kind in CLIPPED:
                held = "held" if plan.final[step.number] else "unclipped"
                c = self.declare_value(f"egg::{held}({c}, {self.value(step.number)})")
            credits = ELEMENT_STEPS[step.op.kind](self, step, c)
            inputs = zip(step.op.inputs, step.credits_input, credits, strict=True)
            for register, wanted, credit in inputs:
                if wanted and credit:
                    self.add_credit(register, credit, step.op.kind in GROWING)
        for register, name in self.local.items():
            self(f"c{register}[i] = {name};")
            self.homes[register] = "c"
        self("}")
        for leaf in leaves:
            self(f"{self.total_of(plan.credited_leaves.index(leaf))} += size{leaf};")
        self("}")

    def error_of(self, op: Op) -> str:
        """The caller's error of an output, at the element; a member that is not there has none."""
        size = sum(output.size for output in self.plan.program.outputs)
        member, uint = "mine" if self.steady else "egg::member_of(i)", self.dialect.uint
        row = "read" if self.steady else f"(first + min({uint}({member}), members - 1)) * T"
        at = f"({row} + t) * {size} + {self.plan.first_error(op)} + k"
        return self.declare_value(f"{member} < members ? int(errors[{at}]) : 0")

    def declare_value(self, value: str) -> str:
        """Declares a value; gives its name."""
        self.value_count += 1
        self(f"const int v{self.value_count} = {value};")
        return f"v{self.value_count}"

    def credit_of(self, register: int) -> str:
        """The credit of a register's element, taken out of memory if it is there."""
        if register not in self.local:
            self.local[register] = self.declare_value(f"{self.take_credit(register)}[i]")
        return self.local[register]

    def add_credit(self, register: int, credit: str, grows: bool) -> None:
        """Adds to an input's credit. grows: whether `credit` alone may be beyond the bound."""
        if register in self.local or register in self.homes:
            credit, grows = f"{self.credit_of(register)} + {credit}", True
        self.local[register] = self.declare_value(f"egg::bounded({credit})" if grows else credit)

    def value(self, number: int) -> str:
        """A value of the tape, at the element."""
        return f"kept[{self.plan.tape_starts[number] * self.plan.members} + i]"

    def inputs_of(self, step: BackwardStep) -> list[str]:
        return [self.value(number) for number in step.values]

    def word(self, leaf: int, word: str) -> str:
        """A random word of a leaf, before it is mixed."""
        return f"{word} + {leaf * BETWEEN_LEAVES & 0xFFFFFFFF}u"

    def rounded(self, step: BackwardStep, c: str) -> str:
        """Credit of a leaf in int8, an error as it is; it counts for its next scale."""
        leaf = step.op.leaf
        self(f"size{leaf} += uint32_t(abs({c}));")
        if step.op.kind in IN_ERROR_UNITS:
            return c
        mixed = f"egg::mixed({self.word(leaf, 'word')})"
        return self.declare_value(f"egg::to_int8({c}, {mixed}, scale{leaf})")

    def store_credit(self, step: BackwardStep, c: str) -> None:
        """Credit of a leaf goes where votes are counted from, and products read it."""
        at = self.plan.credit_starts[step.op.leaf] * self.plan.members
        self(f"small[{at} + i] = int8_t({self.rounded(step, c)});")

    def product(self, step: BackwardStep) -> None:
        """Carries the credit of a matrix's outputs to its inputs."""
        plan, dialect, op = self.plan, self.dialect, step.op
        (O, K), (register,) = plan.program.leaves[op.leaf].shape, op.inputs
        target, source, adds = self.credit_target(register)
        a, n = reduced(K)
        scale = str(FRACTION) if op.kind in IN_ERROR_UNITS else f"scale{op.leaf}"
        credits = f"small + {plan.credit_starts[op.leaf] * plan.members}"
        values, matrix = dialect.tape_pointer(plan, credits), plan.feedback_starts[op.leaf]
        self("{", *dialect.tile_loop(plan, K, False), dialect.tile_sums(plan, "total", K))
        self(
            f"egg::send_back<{O}, {K}, {a}, {n}, {adds}{dialect.tile_template}>({target}, "
            f"{source}, total, matrices + {matrix}, {values}, {scale}, {dialect.tile});",
            "}", "}",
        )  # fmt: skip

    def along_rows(self, step: BackwardStep, call: str) -> None:
        """A call for every member, by a simdgroup, that gives a lane's part of the sum of |c|."""
        uint, dialect = self.dialect.uint, self.dialect
        self(
            f"for ({uint} m = {dialect.in_lane}; m < M; m += {dialect.simdgroups})",
            f"{self.total_of(self.plan.credited_leaves.index(step.op.leaf))} += {call};",
        )

    def barrier(self) -> None:
        self(self.dialect.barrier(True))

    def pointer(self, kind: str, name: str, value: str, *, const: bool = False) -> None:
        space = f"{'const ' * const}{self.dialect.device}"
        self(f"{space}{kind}* const {name} = {value};")

    def declare(self) -> None:
        plan, dialect = self.plan, self.dialect
        if plan.spare_bytes:
            self.share("int", "spare", plan.spare_bytes)
        self(
            f"const {dialect.uint} group = {dialect.group}, first = group * M;",
            f"const {dialect.uint} T = sizes[0], members = sizes[1] - first;",
            f"const egg::Lane lane = {dialect.lane(plan)};",
        )
        if plan.backward_scratch:
            of_group = f"scratch + group * {plan.backward_scratch}u"
            self.spilled("uint64_t", "sums", of_group)
            self.spilled("int", "homes", of_group, plan.totals_bytes // 4)
        for r, row in plan.home_starts.items():
            self.pointer("int", f"c{r}", f"homes + {row * plan.members}")
        for leaf, row in plan.vector_starts.items():
            at = f"(group * {plan.vector_rows} + {row}) * {plan.members}"
            self.pointer("int", f"z{leaf}", f"vectors + {at}")
        if plan.stateful:
            self.pointer("int", f"c{S}", f"carried_on + group * {self.width}")
        for leaf in plan.credited_leaves:
            self(f"const int scale{leaf} = scales[{leaf}];")
        if self.steady:
            place, uint = dialect.in_group, dialect.uint
            self(
                f"const {uint} mine = egg::member_of({place}), begin = egg::feature_of({place});",
                f"const {uint} read = (first + min(mine, members - 1)) * T;",
            )

    @property
    def steady(self) -> bool:
        """True if a thread has the elements of one member only, in all loops."""
        return 32 * self.plan.simdgroups % (self.plan.members * self.dialect.adjacent) == 0

    @property
    def width(self) -> int:
        """Elements of a threadgroup's activations of a row, as they are passed on."""
        return self.dialect.tile_bytes(self.plan.program.width, self.plan.members)

    def begin(self) -> None:
        """Sums are zero, and the state's credit is what later rows left."""
        plan = self.plan
        for i in range(len(plan.credited_leaves)):
            self(f"{self.total_of(i)} = 0;")
        if plan.vector_starts:
            size = plan.vector_rows * plan.members
            self.open_loop(size)
            self(f"vectors[group * {size} + i] = 0;", "}")
        if plan.stateful:
            self.open_loop(self.width)
            self(f"c{S}[i] = carried[group * {self.width} + i];", "}")

    def total_of(self, i: int) -> str:
        """This thread's sum of |c| of a leaf."""
        return f"sums[{i} * THREADS + {self.dialect.in_group}]"

    def open_loop(self, size: int) -> None:
        """Opens a loop over elements, as all such loops deal them out."""
        uint, thread = self.dialect.uint, self.dialect.in_group
        self(f"for ({uint} i = {thread}; i < {size}; i += THREADS) {{")

    def open_element_loop(self, extent: int) -> None:
        """Opens a loop over the elements of a member's features k, of which there are `extent`."""
        dialect, size = self.dialect, self.dialect.tile_bytes(extent, self.plan.members)
        if self.steady:
            self(
                f"for ({dialect.uint} i = {dialect.in_group}, k = begin; i < {size}; "
                "i += THREADS, k += THREADS / M) {"
            )
        else:
            self.open_loop(size)
            self(f"const {dialect.uint} k = egg::feature_of(i);")
        if extent % dialect.adjacent:
            self(f"if (k >= {extent}) continue;")

    def begin_row(self) -> None:
        plan, uint = self.plan, self.dialect.uint
        self(f"const {uint} t = T - 1 - back, row = group * T + t;")
        if plan.tape_starts:
            at = f"tape + row * {plan.tape_rows * plan.members}"
            self.pointer("int8_t", "kept", at, const=True)
        if plan.credit_starts:
            self.pointer("int8_t", "small", f"credits + row * {plan.credit_rows * plan.members}")
        if plan.receives_x:
            self.pointer("int", f"was{X}", f"handed + row * {self.width}", const=True)
        if plan.returns_x:
            self.pointer("int", f"c{X}", f"handed_on + row * {self.width}")
        for leaf, row in plan.credit_starts.items():
            self.fill("small", row, plan.leaf_sizes[leaf], padded(plan.leaf_sizes[leaf]))
        if plan.returns_x:
            self.fill(f"c{X}", 0, plan.program.width, self.width // plan.members)
        if self.steady and self.rounds:
            self(f"const uint32_t drawn = {self.own_value('words')};")
        self.homes = {r: "was" if r == X else "c" for r in plan.start_credited}

    @property
    def rounds(self) -> bool:
        """True if a phase rounds credit by chance."""
        return any(phase.rounds for phase in self.plan.backward_phases)

    def fill(self, array: str, row: int, size: int, rows: int) -> None:
        """Zeros in the rows behind `size` of them, which nothing else writes."""
        if size == rows:
            return
        M, begin = self.plan.members, size // self.dialect.adjacent * self.dialect.adjacent
        self.open_loop((rows - begin) * M)
        at = f"egg::feature_of(i) >= {size - begin}"
        self(f"if ({at}) {array}[{(row + begin) * M} + i] = 0;", "}")

    def end_row(self) -> None:
        """Credit of x leaves the stage, that of the state goes to the row before."""
        plan = self.plan
        if plan.returns_x and self.homes[X] == "was":
            self.open_loop(self.width)
            self(f"c{X}[i] = was{X}[i];", "}")
        if plan.stateful:
            self.open_loop(self.width)
            if S in self.homes:  # a document's state begins at zero
                self(f"if ({self.own_value('tokens')} == 0) c{S}[i] = 0;", "}")
            else:
                self(f"c{S}[i] = 0;", "}")
        self.barrier()

    def own_value(self, array: str) -> str:
        """The element's member's value of an array [P, T]."""
        if self.steady:
            return f"{array}[read + t]"
        return self.member_value(array, "egg::member_of(i)")

    def member_value(self, array: str, member: str) -> str:
        """A member's value of an array [P, T]; those past the end read the last one's."""
        uint = self.dialect.uint
        return f"{array}[(first + min({uint}({member}), members - 1)) * T + t]"

    def add_totals(self) -> None:
        plan, dialect = self.plan, self.dialect
        if not plan.credited_leaves:
            return
        self.barrier()
        count = len(plan.credited_leaves)
        self(
            f"for ({dialect.uint} i = {dialect.in_group}; i < {count}; i += THREADS) {{",
            "uint64_t sum = 0;",
            f"for ({dialect.uint} j = 0; j < THREADS; ++j) sum += sums[i * THREADS + j];",
            f"magnitudes[group * {count} + i] = int64_t(sum);",
            "}",
        )


def norm_back(write: BackwardWriter, step: BackwardStep) -> None:
    plan, op = write.plan, step.op
    (D,), (x,) = plan.program.leaves[op.leaf].shape, op.inputs
    c, passes = write.take_credit(op.out), step.credits_input[0]
    target, source, adds = write.credit_target(x) if passes else (f"z{op.leaf}", c, "false")
    kept = (f"kept + {plan.tape_starts[v] * plan.members}" for v in (step.values[0], step.number))
    last = write.plan.final[step.number]
    write.along_rows(
        step,
        f"egg::norm_back<{D}, {'true' if passes else 'false'}, {adds}, "
        f"{'true' if last else 'false'}>({target}, {source}, {c}, "
        f"z{op.leaf}, {', '.join(kept)}, {write.weights(op)}, "
        f"{write.word(op.leaf, write.member_value('words', 'm'))}, scale{op.leaf}, m, lane)",
    )


def score_back(write: BackwardWriter, step: BackwardStep) -> None:
    plan, op = write.plan, step.op
    V = plan.program.leaves[op.leaf].shape[0]
    write.along_rows(
        step,
        f"egg::score_back<{V}>(small + {plan.credit_starts[op.leaf] * plan.members}, "
        f"kept + {plan.tape_starts[step.number] * plan.members}, "
        f"{write.member_value('targets', 'm')}, "
        f"{write.word(op.leaf, write.member_value('words', 'm'))}, m, m < members, lane)",
    )


def concat_back(write: BackwardWriter, step: BackwardStep) -> None:
    plan, op, first = write.plan, step.op, 0
    c, sizes = write.take_credit(op.out), [plan.sizes[r] for r in op.inputs]
    for i, (register, size) in enumerate(zip(op.inputs, sizes, strict=True)):
        if step.credits_input[i]:
            if i and op.inputs[0] == register:
                write.barrier()
            target, source, adds = write.credit_target(register)
            write.open_element_loop(size)
            credit = f"{c}[egg::place(k + {first}, egg::member_of(i))]"
            if adds == "true":
                credit = f"egg::bounded({source}[i] + {credit})"
            write(f"{target}[i] = {credit};", "}")
        first += size


InputCredits = Sequence[str]  # credit of each input, or nothing


def linear_back(write: BackwardWriter, step: BackwardStep, c: str) -> InputCredits:
    write.store_credit(step, c)
    return [""]


def row_back(write: BackwardWriter, step: BackwardStep, c: str) -> InputCredits:
    write.store_credit(step, c)
    return []


def bias_back(write: BackwardWriter, step: BackwardStep, c: str) -> InputCredits:
    z = f"z{step.op.leaf}[i]"
    write(f"{z} = egg::wrapping({z}, {write.rounded(step, c)});")
    return [c] * len(step.op.inputs)


def lookup_back(write: BackwardWriter, step: BackwardStep, c: str) -> InputCredits:
    (x,) = write.inputs_of(step)
    return [f"egg::of_lookup({c}, {x}, {table_name(write.plan.program, step.op.table)})"]


def forget_back(write: BackwardWriter, step: BackwardStep, c: str) -> InputCredits:
    f, s = write.inputs_of(step)
    return [f"egg::part_of({c}, {s})", f"egg::part_of({c}, {f} + 127)"]


def mix_back(write: BackwardWriter, step: BackwardStep, c: str) -> InputCredits:
    f, h, s = write.inputs_of(step)
    to_h = write.declare_value(f"egg::part_of({c}, {f} + 127)")
    return [f"egg::part_of({c}, {h} - {s})", to_h, f"{c} - {to_h}"]


# Operations element by element: write the leaf's share of the credit, return that of the inputs.
ELEMENT_STEPS: dict[str, Callable[[BackwardWriter, BackwardStep, str], InputCredits]] = {
    "embed": row_back,
    "features": row_back,
    "input": lambda write, step, c: [],
    "linear": linear_back,
    "output": lambda write, step, c: [f"{c} * {1 << FRACTION}"],
    "sums": linear_back,
    "add": lambda write, step, c: [c, c],
    "add_bias": bias_back,
    "bias": bias_back,
    "lookup": lookup_back,
    "forget": forget_back,
    "mix": mix_back,
    "relu": lambda write, step, c: [f"egg::of_relu({c}, {write.inputs_of(step)[0]})"],
}
# Operations that read along a member's features, or move them.
LONE_STEPS: dict[str, Callable[[BackwardWriter, BackwardStep], None]] = {
    "norm": norm_back,
    "score": score_back,
    "concat": concat_back,
}
