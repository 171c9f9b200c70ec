"""The kernel that carries errors back through a stage, and what each operation has in it.

Letters: M members, D width, K inputs and O outputs of a leaf, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eggroll.backward import BETWEEN_LEAVES, BOUND, CLIPPED, FRACTION, reduced
from eggroll.engines.gpu.carry_kernel import CarryKernel
from eggroll.engines.gpu.carry_plan import BackPhase, Step
from eggroll.engines.gpu.operations import table_name

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
