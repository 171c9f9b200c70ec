"""Random programs: every operation on any register, and whatever else a declaration may hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from eggroll.program import OPERATIONS, Program, Register

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

    def operation(self, kind: str) -> None:
        """Adds an operation on registers that fit."""
        net, name, a = self.net, f"{kind}{self.count}", self.some()
        self.count += 1
        b, c, out = self.some(a.size), self.some(a.size), self.pick([None, self.some(a.size)])
        match kind:
            case "embed":
                made = net.embed(name)
            case "linear":
                made = net.linear(a, name, self.pick([net.width, self.pick(range(1, WIDEST + 1))]))
            case "norm":
                made = net.norm(a, name)
            case "add":
                made = net.add(a, b, out)
            case "add_bias":
                made = net.add_bias(a, b, name)
            case "lookup":
                made = net.lookup(a, self.pick(TABLES))
            case "forget":
                made = net.forget(a, b)
            case "mix":
                made = net.mix(a, b, c, out)
            case "score":
                net.score(a, name)
                made = a
            case _:
                raise AssertionError(f"random programs need a case for {kind}")
        self.values += [made] * (made not in self.values)

    def stage(self, index: int, *, last: bool) -> None:
        """Adds a stage of up to a dozen operations."""
        net, D, state = self.net, self.net.width, self.pick([False, True])
        x, s = net.stage(f"{index}.", state=state)
        self.values = [x, s] if state else [x]
        if index == 0:
            net.embed("embedding")
        kinds = [kind for kind in OPERATIONS if kind != "score"]
        plan = [self.pick(kinds) for _ in range(self.pick(range(12)))]
        if last:
            plan.insert(self.pick(range(len(plan) + 1)), "score")
        for kind in plan:
            self.operation(kind)
        if state:
            net.mix(self.some(D), self.some(D), self.some(D), out=s)
        if not last:
            net.add(self.some(D), self.some(D), out=x)


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
