"""The kernel that carries errors back through a stage, and what each operation has in it.

Letters: M members, D width, K inputs and O outputs of a leaf, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from eggroll.engines.gpu.backward_plan import OF_S, OF_X, BackPhase, CarryPlan, Step
from eggroll.engines.gpu.dialect import Dialect, Source
from eggroll.engines.gpu.plan import PAD, padded
from eggroll.engines.gpu.stage import KernelWriter, StageWriter, table_name
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import BETWEEN_LEAVES, BOUND, CLIPPED, FRACTION, reduced
from eggroll.spec.program import Op, S, X

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


GROWING = ("lookup",)  # operations that give an input more than their own credit


class CarryWriter(CarryKernel):
    """Writes the way back of a stage, phase after phase."""

    def phase(self, phase: BackPhase) -> None:
        if phase.extent:
            self.elements(phase)
        else:
            (step,) = phase.steps
            ALONE[step.op.kind](self, step)
        self.barrier()
        if phase.products:
            for step in phase.products:
                self.product(step)
            self.barrier()

    def take(self, register: int) -> str:
        """Where credit in memory is, which is taken."""
        return f"{self.homes.pop(register)}{register}"

    def give(self, register: int) -> tuple[str, str, str]:
        """Where credit goes to, what it is added to, and whether it is."""
        to = f"c{register}"
        adds = register in self.homes
        source = f"{self.homes[register]}{register}" if adds else to
        self.homes[register] = "c"
        return to, source, "true" if adds else "false"

    def elements(self, phase: BackPhase) -> None:
        """Operations that look at one element at a time, whose credit a thread holds."""
        plan = self.carried
        leaves = [step.op.leaf for step in phase.steps if step.op.leaf >= 0]
        self("{")
        rounds = -(-phase.extent * plan.members // (32 * plan.simdgroups)) + 1
        size = "uint32_t" if rounds * BOUND < 1 << 32 else "uint64_t"
        for leaf in leaves:
            self(f"{size} size{leaf} = 0;")
        self.each_element(phase.extent)
        if leaves:
            self(f"const uint32_t word = {'drawn' if self.steady else self.own('words')} + k;")
        self.local: dict[int, str] = {}
        for step in phase.steps:
            c = self.credit_of(step.op.out)
            del self.local[step.op.out]
            if step.op.kind in CLIPPED:
                c = self.named(f"egg::unclipped({c}, {self.value(step.number)})")
            parts = ELEMENTS[step.op.kind](self, step, c)
            for register, given, part in zip(step.op.inputs, step.gives, parts, strict=True):
                if given and part:
                    self.add(register, part, step.op.kind in GROWING)
        for register, name in self.local.items():
            self(f"c{register}[i] = {name};")
            self.homes[register] = "c"
        self("}")
        for leaf in leaves:
            self(f"{self.total(plan.credited.index(leaf))} += size{leaf};")
        self("}")

    def named(self, value: str) -> str:
        """Declares a value; gives its name."""
        self.names += 1
        self(f"const int v{self.names} = {value};")
        return f"v{self.names}"

    def credit_of(self, register: int) -> str:
        """The credit of a register's element, taken out of memory if it is there."""
        if register not in self.local:
            self.local[register] = self.named(f"{self.take(register)}[i]")
        return self.local[register]

    def add(self, register: int, part: str, grows: bool) -> None:
        """Adds to an input's credit. grows: whether the part alone may be beyond the bound."""
        if register in self.local or register in self.homes:
            part, grows = f"{self.credit_of(register)} + {part}", True
        self.local[register] = self.named(f"egg::bounded({part})" if grows else part)

    def value(self, number: int) -> str:
        """A value of the tape, at the element."""
        return f"kept[{self.carried.tape[number] * self.plan.members} + i]"

    def inputs_of(self, step: Step) -> list[str]:
        return [self.value(number) for number in step.read]

    def word(self, leaf: int, word: str) -> str:
        """A random word of a leaf, before it is mixed."""
        return f"{word} + {leaf * BETWEEN_LEAVES & 0xFFFFFFFF}u"

    def rounded(self, step: Step, c: str) -> str:
        """Credit of a leaf in int8; it counts for its next scale."""
        leaf = step.op.leaf
        self(f"size{leaf} += uint32_t(abs({c}));")
        mixed = f"egg::mixed({self.word(leaf, 'word')})"
        return self.named(f"egg::to_int8({c}, {mixed}, scale{leaf})")

    def keep(self, step: Step, c: str) -> None:
        """Credit of a leaf goes where votes are counted from, and products read it."""
        at = self.carried.credits[step.op.leaf] * self.plan.members
        self(f"small[{at} + i] = int8_t({self.rounded(step, c)});")

    def product(self, step: Step) -> None:
        """Sends the credit of a matrix's outputs to its inputs."""
        plan, dialect, op = self.carried, self.dialect, step.op
        (O, K), (register,) = plan.program.leaves[op.leaf].shape, op.inputs
        to, source, adds = self.give(register)
        a, n = reduced(K)
        scale = str(FRACTION) if op.kind == "score" else f"scale{op.leaf}"
        credits = f"small + {plan.credits[op.leaf] * plan.members}"
        self("{", *dialect.tile_loop(plan, K, False), dialect.tile_sums(plan, "total", K))
        self(
            f"egg::send_back<{O}, {K}, {a}, {n}, {adds}{dialect.tile_template}>({to}, {source}, "
            f"total, matrices + {plan.sent[op.leaf]}, {dialect.taped(plan, credits)}, {scale}, "
            f"{dialect.tile});",
            "}", "}",
        )  # fmt: skip

    def along_rows(self, step: Step, call: str) -> None:
        """A call for every member, by a simdgroup, that gives a lane's part of the sum of |c|."""
        uint, dialect = self.dialect.uint, self.dialect
        self(
            f"for ({uint} m = {dialect.in_lane}; m < M; m += {dialect.simdgroups})",
            f"{self.total(self.carried.credited.index(step.op.leaf))} += {call};",
        )


def of_norm(write: CarryWriter, step: Step) -> None:
    plan, op = write.carried, step.op
    (D,), (x,) = plan.program.leaves[op.leaf].shape, op.inputs
    c = write.take(op.out)
    to, source, adds = write.give(x) if step.gives[0] else (f"z{op.leaf}", c, "false")
    kept = (f"kept + {plan.tape[v] * plan.members}" for v in (step.read[0], step.number))
    write.along_rows(
        step,
        f"egg::norm_back<{D}, {'true' if step.gives[0] else 'false'}, {adds}>({to}, {source}, {c}, "
        f"z{op.leaf}, {', '.join(kept)}, {write.weights(op)}, "
        f"{write.word(op.leaf, write.reads('words', 'm'))}, scale{op.leaf}, m, lane)",
    )


def of_score(write: CarryWriter, step: Step) -> None:
    plan, op = write.carried, step.op
    V = plan.program.leaves[op.leaf].shape[0]
    write.along_rows(
        step,
        f"egg::score_back<{V}>(small + {plan.credits[op.leaf] * plan.members}, "
        f"kept + {plan.tape[step.number] * plan.members}, {write.reads('targets', 'm')}, "
        f"{write.word(op.leaf, write.reads('words', 'm'))}, m, m < members, lane)",
    )


def of_concat(write: CarryWriter, step: Step) -> None:
    plan, op, first = write.carried, step.op, 0
    c, sizes = write.take(op.out), [plan.sizes[r] for r in op.inputs]
    for i, (register, size) in enumerate(zip(op.inputs, sizes, strict=True)):
        if step.gives[i]:
            if i and op.inputs[0] == register:
                write.barrier()
            to, source, adds = write.give(register)
            write.each_element(size)
            part = f"{c}[egg::place(k + {first}, egg::member_of(i))]"
            write(f"{to}[i] = {f'egg::bounded({source}[i] + {part})' if adds == 'true' else part};")
            write("}")
        first += size


Parts = Sequence[str]  # credit of each input, or nothing


def of_linear(write: CarryWriter, step: Step, c: str) -> Parts:
    write.keep(step, c)
    return [""]


def of_shown(write: CarryWriter, step: Step, c: str) -> Parts:
    write.keep(step, c)
    return []


def of_bias(write: CarryWriter, step: Step, c: str) -> Parts:
    z = f"z{step.op.leaf}[i]"
    write(f"{z} = egg::wrapping({z}, {write.rounded(step, c)});")
    return [c] * len(step.op.inputs)


def of_lookup(write: CarryWriter, step: Step, c: str) -> Parts:
    (x,) = write.inputs_of(step)
    return [f"egg::of_lookup({c}, {x}, {table_name(write.plan.program, step.op.table)})"]


def of_forget(write: CarryWriter, step: Step, c: str) -> Parts:
    f, s = write.inputs_of(step)
    return [f"egg::part_of({c}, {s})", f"egg::part_of({c}, {f} + 127)"]


def of_mix(write: CarryWriter, step: Step, c: str) -> Parts:
    f, h, s = write.inputs_of(step)
    to_h = write.named(f"egg::part_of({c}, {f} + 127)")
    return [f"egg::part_of({c}, {h} - {s})", to_h, f"{c} - {to_h}"]


# On an element: writes what a leaf has of an operation's credit, gives the credit of its inputs.
ELEMENTS: dict[str, Callable[[CarryWriter, Step, str], Parts]] = {
    "embed": of_shown,
    "features": of_shown,
    "input": lambda write, step, c: [],
    "linear": of_linear,
    "add": lambda write, step, c: [c, c],
    "add_bias": of_bias,
    "bias": of_bias,
    "lookup": of_lookup,
    "forget": of_forget,
    "mix": of_mix,
    "relu": lambda write, step, c: [f"egg::of_relu({c}, {write.inputs_of(step)[0]})"],
}
# The same of what looks along a member's features, or moves them.
ALONE: dict[str, Callable[[CarryWriter, Step], None]] = {
    "norm": of_norm,
    "score": of_score,
    "concat": of_concat,
}
