"""Random programs: every operation on any register, and whatever else a declaration may hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from eggroll.program import Program, Register

Pick = Callable[[Sequence[Any]], Any]  # one of some options
TABLES = ["sigmoid", "tanh"]
WIDEST = 40  # register


class Builder:
    """A program under construction, whose every choice is made by `pick`."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.net = Program(pick(range(2, 41)), pick(range(1, WIDEST + 1)))
        self.values: list[Register] = []  # registers that may be read
        self.count = 0

    def some(self, size: int = 0) -> Register:
        """A register; of the given size if asked."""
        return self.pick([r for r in self.values if size in (0, r.size)])

    def out(self, size: int) -> Register | None:
        """The register for a result of this size: None for a new one, or one already in use."""
        return self.pick([None, self.some(size)])

    def outputs(self) -> int:
        return self.pick([self.net.width, self.pick(range(1, WIDEST + 1))])

    def operation(self, kind: str) -> None:
        """Adds an operation on registers that fit."""
        made = EMIT[kind](self, self.net, self.some(), f"{kind}{self.count}")
        self.count += 1
        self.values += [made] * (made is not None and made not in self.values)

    def stage(self, index: int, *, last: bool) -> None:
        """Adds a stage of up to a dozen operations."""
        net, D, state = self.net, self.net.width, self.pick([False, True])
        x, s = net.stage(f"{index}.", state=state)
        self.values = [x, s] if state else [x]
        if index == 0:
            net.embed("embedding")
        kinds = [kind for kind in EMIT if kind != "score"]
        plan = [self.pick(kinds) for _ in range(self.pick(range(12)))]
        if last:
            plan.insert(self.pick(range(len(plan) + 1)), "score")
        for kind in plan:
            self.operation(kind)
        if state:
            net.mix(self.some(D), self.some(D), self.some(D), out=s)
        if not last:
            net.add(self.some(D), self.some(D), out=x)


# operation -> adds it to the builder's program; a: its first input, n: the name of its leaf
EMIT: dict[str, Callable[[Builder, Program, Register, str], Register | None]] = {
    "embed": lambda build, net, a, n: net.embed(n),
    "linear": lambda build, net, a, n: net.linear(a, n, build.outputs()),
    "norm": lambda build, net, a, n: net.norm(a, n),
    "add": lambda build, net, a, n: net.add(a, build.some(a.size), build.out(a.size)),
    "add_bias": lambda build, net, a, n: net.add_bias(a, build.some(a.size), n),
    "lookup": lambda build, net, a, n: net.lookup(a, build.pick(TABLES)),
    "forget": lambda build, net, a, n: net.forget(a, build.some(a.size)),
    "mix": lambda build, net, a, n: net.mix(
        a, build.some(a.size), build.some(a.size), build.out(a.size)
    ),
    "score": lambda build, net, a, n: net.score(a, n),
}


def random_program(pick: Pick) -> Program:
    """A program of one to three stages."""
    builder, stages = Builder(pick), pick([1, 2, 3])
    for i in range(stages):
        builder.stage(i, last=i == stages - 1)
    builder.net.check()
    return builder.net


def seeded_program(seed: int) -> Program:
    """The same program for the same seed."""
    return random_program(random.Random(seed).choice)


def every_operation() -> Program:
    """Each operation once, in order of the table, on x; each result is added to x."""
    build = Builder(random.Random(0).choice)
    net, D = build.net, build.net.width
    x, s = net.stage(state=True)
    net.embed("embedding")
    build.values = [x, s]
    for kind, emit in EMIT.items():
        if kind == "score":
            continue
        made = emit(build, net, x, kind)
        made = made if made.size == D else net.linear(made, f"{kind}.back", D)
        net.add(x, made, out=x)
    net.add(x, s, out=s)
    EMIT["score"](build, net, x, "head")
    net.check()
    return net
