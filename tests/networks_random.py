"""Random programs: every operation on any register, and whatever else a declaration may hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from eggroll.spec.program import FORWARD_ONLY, MAX_REGISTERS, Program, Register

Pick = Callable[[Sequence[Any]], Any]  # one of some options
TABLES = ["sigmoid", "tanh"]
WIDEST = 40  # register, but for lists of features and what concat joins
SEED = 239  # of `every_operation`: two lists of features, a table of its own, shared noise
SOURCES = ("embed", "input", "features")  # operations that need no register


class Builder:
    """A program under construction, whose every choice is made by `pick`.

    joined: a stage passes on all that is found in it, and a score comes last, so that little is
    found in vain.
    """

    def __init__(self, pick: Pick, *, joined: bool = False) -> None:
        self.pick, self.joined = pick, joined
        self.net = Program(pick(range(2, 41)), pick(range(1, WIDEST + 1)))
        self.values: list[Register] = []  # registers that may be read
        self.count = 0

    def some(self, size: int = 0) -> Register:
        """A register; of the given size if asked."""
        return self.pick([r for r in self.values if size in (0, r.size)])

    def sized(self, size: int) -> Register:
        """A register of the given size, by a linear operation if there is none."""
        if any(r.size == size for r in self.values):
            return self.some(size)
        self.count += 1
        self.values.append(self.net.linear(self.some(), f"sized{self.count}", size))
        return self.values[-1]

    def out(self, size: int) -> Register | None:
        """The register for a result of this size: None for a new one, or one already in use."""
        return self.pick([None, self.some(size)])

    def outputs(self) -> int:
        return self.pick([self.net.width, self.pick(range(1, WIDEST + 1))])

    def features(self, name: str) -> Register:
        """Lists of few features, which share a leaf with just enough rows or some more."""
        lists, size = self.pick([1, 1, 2, 3]), self.pick(range(1, 24))
        count = max(1, (lists - 1) * size) + self.pick([0, 1, 7, 40])
        active, shift = self.pick(range(1, 7)), self.pick([0, 0, 1, 3])
        return self.net.features(name, count, size, active=active, lists=lists, shift=shift)

    def concat(self) -> Register:
        """Two registers, or three of which one is there twice."""
        narrow = [r for r in self.values if r.size <= WIDEST] or self.values[:1]
        a, b = self.pick(narrow), self.pick(narrow)
        return self.net.concat(a, b, *self.pick([[], [], [a]]))

    def table(self, name: str) -> str:
        """A table: of the two that are always there, or one without any order."""
        if self.pick([True, False]):
            return self.pick(TABLES)
        first, by = self.pick(range(-127, 128)), self.pick([1, 31, 100])
        return self.net.table(name, [(first + by * i) % 255 - 127 for i in range(255)])

    def summand(self, a: Register, name: str) -> Register:
        """The register, or a linear result of its size that nobody else will read.

        Matrices that are only summed share their noise.
        """
        if len(self.net.stages[-1].registers) > MAX_REGISTERS - 12 or self.pick([True, False]):
            return a
        return self.net.linear(self.some(), name, a.size)

    def output(self, x: Register, name: str) -> None:
        """An output, or the logits of a policy, whose leaf has no noise on what it gives."""
        if self.pick([True, True, True, False]):
            self.net.output(x, name)
        else:
            self.net.policy(x, name, self.outputs())

    def operation(self, kind: str) -> None:
        """Adds an operation on registers that fit."""
        name = f"{kind}{self.count}"
        made = EMIT[kind](self, self.net, None if kind in SOURCES else self.some(), name)
        self.count += 1
        self.values += [made] * (made is not None and made not in self.values)

    def sum(self) -> Register:
        """The sum of all that nothing has read, or of as much as there are registers for."""
        net, stage = self.net, self.net.stages[-1]
        read = {i for op in stage.ops for i in op.inputs}
        total = net.add(self.sized(net.width), self.sized(net.width))
        for r in [r for r in self.values if r.index not in read]:
            if len(stage.registers) == MAX_REGISTERS:
                break
            part = r if r.size == net.width else net.linear(r, f"part{r.index}", net.width)
            net.add(total, part, out=total)
        return total

    def stage(self, index: int, *, last: bool, scored: bool) -> None:
        """Adds a stage of a dozen operations or so."""
        net, D, state = self.net, self.net.width, self.pick([False, True])
        x, s = net.stage(f"{index}.", state=state)
        self.values = [x] * (index > 0) + [s] * state
        kinds = [kind for kind in EMIT if kind != "score"]
        plan = [self.pick(kinds) for _ in range(self.pick(range(12)))]
        if last:
            end = "score" if scored else self.pick(["output", "sums"])
            if not self.joined:
                plan.insert(self.pick(range(len(plan) + 1)), end)
        for kind in [self.pick(SOURCES)] * (index == 0) + plan:
            self.operation(kind)
        if state:
            net.mix(self.some(D), self.some(D), self.some(D), out=s)
        if not last:
            net.add(self.sum() if self.joined else self.sized(D), self.sized(D), out=x)
        elif self.joined:
            EMIT[end](self, net, self.sum(), "head")


# operation -> adds it to the builder's program; a: its first input, None for a source; n: the name
# of its leaf, table or output
EMIT: dict[str, Callable[[Builder, Program, Any, str], Register | None]] = {
    "embed": lambda build, net, a, n: net.embed(n),
    "linear": lambda build, net, a, n: net.linear(a, n, build.outputs()),
    "norm": lambda build, net, a, n: net.norm(a, n),
    "add": lambda build, net, a, n: net.add(a, build.some(a.size), build.out(a.size)),
    "add_bias": lambda build, net, a, n: net.add_bias(
        build.summand(a, f"{n}.a"), build.summand(build.some(a.size), f"{n}.b"), n
    ),
    "lookup": lambda build, net, a, n: net.lookup(a, build.table(n)),
    "forget": lambda build, net, a, n: net.forget(a, build.some(a.size)),
    "mix": lambda build, net, a, n: net.mix(
        a, build.some(a.size), build.some(a.size), build.out(a.size)
    ),
    "score": lambda build, net, a, n: net.score(a, n),
    "input": lambda build, net, a, n: net.input(net.inputs or build.pick(range(1, WIDEST + 1))),
    "features": lambda build, net, a, n: build.features(n),
    "bias": lambda build, net, a, n: net.bias(build.summand(a, f"{n}.a"), n, build.out(a.size)),
    "relu": lambda build, net, a, n: net.relu(a, build.out(a.size)),
    "concat": lambda build, net, a, n: build.concat(),
    "output": lambda build, net, a, n: build.output(a, n),
    "sums": lambda build, net, a, n: net.sums(a, n, build.outputs()),
}


def random_program(pick: Pick, *, joined: bool = False) -> Program:
    """A program of one to three stages, with a score or outputs or both; joined: see Builder."""
    builder = Builder(pick, joined=joined)
    stages, scored = pick([1, 2, 3]), pick([True, True, False])
    for i in range(stages):
        builder.stage(i, last=i == stages - 1, scored=scored)
    if not builder.net.leaves:
        builder.net.sums(builder.some(), "leaf", builder.outputs())
    builder.net.check()
    return builder.net


def seeded_program(seed: int, *, joined: bool = False) -> Program:
    """The same program for the same seed; joined: see Builder."""
    return random_program(random.Random(seed).choice, joined=joined)


def kinds(program: Program) -> set[str]:
    """Its operations."""
    return {op.kind for stage in program.stages for op in stage.ops}


def passable(seed: int) -> bool:
    """True if errors can be carried back through all operations of a seed's programs."""
    programs = (seeded_program(seed), seeded_program(seed, joined=True))
    return not any(kinds(program) & FORWARD_ONLY for program in programs)


def unscored_seeds() -> list[int]:
    """Seeds whose programs have outputs alone, through all of whose operations errors go back."""
    return [seed for seed in range(96) if not seeded_program(seed).scored and passable(seed)]


def every_operation(*, without: Collection[str] = ()) -> Program:
    """Each operation once, in order of the table, on x; each result is added to x."""
    build = Builder(random.Random(SEED).choice)
    net, D = build.net, build.net.width
    x, s = net.stage(state=True)
    net.embed("embedding")
    net.add(x, s, out=x)
    build.values = [x]
    for kind, emit in EMIT.items():
        if kind == "score" or kind in without:
            continue
        made = emit(build, net, x, kind)
        if made is None:
            continue
        made = made if made.size == D else net.linear(made, f"{kind}.back", D)
        net.add(x, made, out=x)
    net.add(x, s, out=s)
    EMIT["score"](build, net, x, "head")
    net.check()
    return net
