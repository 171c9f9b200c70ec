"""Credit carried back on a GPU: what a stage keeps of every row, and its way back in phases.

A stage leaves a tape of the values that its credit depends on. On the way back it leaves the credit
of its leaves in int8, from which votes are counted. Both are [threadgroup][T][rows][M members], as
registers are. Letters: T tokens, O outputs and K inputs of a leaf. Nothing here needs MLX or a GPU;
the arithmetic is docs/estimators.md's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

from eggroll.engines.gpu.plan import PAD, StagePlan, padded
from eggroll.spec.backward import CLIPPED
from eggroll.spec.program import Op, Program, S, X

# Operations whose inputs' values their credit, or their leaf's votes, depend on.
REMEMBERED = ("linear", "score", "norm", "lookup", "relu", "forget", "mix")
ALONG_ROWS = ("score", "norm")  # on the way back: a simdgroup per member, along its features
SENDING = ("linear", "score")  # by a matrix
TAPED = ("linear", "score", "embed", "features")  # whose leaf's credit is kept in int8
SUMMED = ("norm", "add_bias", "bias")  # whose votes are a sum over members, made on the way
OF_X, OF_S = -1, -2  # what a row begins with, beside the results of operations 0, 1 and so on

P = TypeVar("P", bound="CarryPlan")


class Step(NamedTuple):
    """An operation that has credit: its number, what it read, and which inputs get credit."""

    op: Op
    number: int
    read: tuple[int, ...]  # values
    gives: tuple[bool, ...]


@dataclass
class BackPhase:
    """Steps with a barrier behind them, then products that send their credit on, and a barrier.

    extent: values of a member that the steps go through, element by element; 0: along rows, or
    of concat.
    """

    extent: int
    steps: list[Step] = field(default_factory=list)

    @property
    def products(self) -> list[Step]:
        return [step for step in self.steps if step.op.kind in SENDING and step.gives[0]]

    def takes(self, step: Step, extent: int) -> bool:
        """Whether a step may follow in the same phase: what products send it must not await."""
        sent = {product.op.inputs[0] for product in self.products}
        touched = {step.op.out}
        if step.op.kind not in SENDING:
            touched |= {r for r, given in zip(step.op.inputs, step.gives, strict=True) if given}
        return extent == self.extent > 0 and not sent & touched


class CarryPlan(StagePlan):
    """A stage whose members have no noise and carry errors back.

    passing: leaves that send credit on by a matrix; handed: whether the stages after it hand
    credit of register x back.
    """

    beside: ClassVar[int] = 1  # features of a member that lie side by side

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        passing: Collection[int],
        handed: bool,
        nax: bool = False,
    ) -> None:
        StagePlan.__init__(self, program, index, members=members, rank=0, nax=nax)
        self.carry(passing, handed)

    def carry(self, passing: Collection[int], handed: bool) -> None:
        """Finds the steps back, and lays out what they need."""
        self.handed, self.stateful = handed, self.stage.state >= 0
        self.steps = self._steps(passing)
        self.back = self._phases()
        self.tape = self._rows({v: self._size(v) for v in self._needed()}, self.beside)
        leaves = {step.op.leaf: step for step in self.steps if step.op.leaf >= 0}
        sizes = {leaf: self.values_of(step) for leaf, step in leaves.items()}
        self.credited = list(leaves)
        taped = {leaf: n for leaf, n in sizes.items() if leaves[leaf].op.kind in TAPED}
        self.credits = self._rows(taped)
        self.vectors = self._rows({leaf: n for leaf, n in sizes.items() if leaf not in taped})
        stored = self._stored()
        elsewhere = {S} | ({X} if self.hands_on else set())
        self.homes = self._rows({r: self.sizes[r] for r in stored if r not in elsewhere})
        self.sent = self._matrices()

    def number(self, op: Op) -> int:
        """The place of an operation among the stage's, as equal ones may be there twice."""
        return next(i for i, other in enumerate(self.ops) if other is op)

    def values_of(self, step: Step) -> int:
        """Values of a row that the step's leaf is credited for."""
        if step.op.kind == "score":
            return self.program.leaves[step.op.leaf].shape[0]
        return self.sizes[step.op.out]

    def _useful(self) -> list[tuple[bool, ...]]:
        """Of each operation, whether credit of its inputs reaches a leaf, or leaves the stage."""
        reaches, out = {X: not self.first, S: self.stateful}, []
        for op in self.ops:
            found = tuple(reaches.get(r, False) for r in op.inputs)
            out.append(found)
            if op.writes:
                reaches[op.out] = op.leaf >= 0 or any(found)
        return out

    def _read(self) -> list[tuple[int, ...]]:
        """Of each operation, the values that it reads."""
        made, out = {X: OF_X, S: OF_S}, []
        for i, op in enumerate(self.ops):
            out.append(tuple(made[r] for r in op.inputs))
            if op.writes:
                made[op.out] = i
        return out

    def _steps(self, passing: Collection[int]) -> list[Step]:
        """The operations that have credit, from the last to the first."""
        has, steps, read = {S} if self.stateful else set[int](), list[Step](), self._read()
        has |= {X} if self.handed else set()
        self.begins = frozenset(has)
        for i, useful in reversed(list(enumerate(self._useful()))):
            op = self.ops[i]
            if op.writes and op.out not in has:
                continue
            has -= {op.out} if op.writes else set()
            sends = op.kind not in SENDING or op.leaf in passing
            gives = tuple(sends and each for each in useful)
            has |= {r for r, given in zip(op.inputs, gives, strict=True) if given}
            steps.append(Step(op, i, read[i], gives))
        self.hands_on = X in has and not self.first
        self.ends = frozenset(has)
        return steps

    def _phases(self) -> list[BackPhase]:
        out: list[BackPhase] = []
        for step in self.steps:
            alone = step.op.kind in ALONG_ROWS or step.op.kind == "concat"
            extent = 0 if alone else self.sizes[step.op.out]
            if not out or not out[-1].takes(step, extent):
                out.append(BackPhase(extent))
            out[-1].steps.append(step)
        return out

    def _needed(self) -> list[int]:
        """Values that the way back looks at."""
        found: set[int] = set()
        for step in self.steps:
            found |= {step.number} if step.op.kind in (*CLIPPED, "score") else set()
            found |= {*step.read} if step.op.kind in REMEMBERED else set()
        return sorted(found)

    def _size(self, value: int) -> int:
        if value < 0:
            return self.program.width
        op = self.ops[value]
        return self.extent(op) if op.kind == "score" else self.sizes[op.out]

    def _stored(self) -> list[int]:
        """Registers whose credit goes from phase to phase."""
        found: set[int] = set()
        for phase in self.back:
            within: set[int] = set()
            for step in phase.steps:
                if step.op.writes and step.op.out not in within | self.begins:
                    found.add(step.op.out)
                within -= {step.op.out}
                given = {r for r, g in zip(step.op.inputs, step.gives, strict=True) if g}
                if phase.extent and step.op.kind not in SENDING:
                    within |= given
                else:
                    found |= given
            found |= within
        return sorted(found)

    def _rows(self, sizes: dict[int, int], unit: int = PAD) -> dict[int, int]:
        """First row of each, which have multiples of `unit`; products read PAD at a time."""
        out, row = {}, 0
        for key, size in sizes.items():
            out[key] = row
            row += -(-size // unit) * unit
        return out

    def rows_of(self, laid: dict[int, int], sizes: dict[int, int], unit: int = PAD) -> int:
        return max((row + -(-sizes[key] // unit) * unit for key, row in laid.items()), default=0)

    @property
    def tape_rows(self) -> int:
        return self.rows_of(self.tape, {v: self._size(v) for v in self.tape}, self.beside)

    @property
    def leaf_sizes(self) -> dict[int, int]:
        return {s.op.leaf: self.values_of(s) for s in self.steps if s.op.leaf >= 0}

    @property
    def credit_rows(self) -> int:
        return self.rows_of(self.credits, self.leaf_sizes)

    @property
    def vector_rows(self) -> int:
        return self.rows_of(self.vectors, self.leaf_sizes)

    @property
    def home_rows(self) -> int:
        return self.rows_of(self.homes, dict(enumerate(self.sizes)))

    def _matrices(self) -> dict[int, int]:
        """Leaf -> offset of its matrix, turned and packed, in the order of the way back."""
        out, at = {}, 0
        for phase in self.back:
            for step in phase.products:
                O, K = self.program.leaves[step.op.leaf].shape
                out[step.op.leaf] = at
                at += padded(O) * padded(K)
        return out

    @property
    def totals_bytes(self) -> int:
        """Bytes of a threadgroup's sums of |c|, of every thread's own."""
        return 8 * 32 * self.simdgroups * len(self.credited)

    @property
    def back_bytes(self) -> int:
        """Device memory of one threadgroup on the way back."""
        return self.totals_bytes + 4 * self.home_rows * self.members

    @property
    def carried_bytes(self) -> int:
        """Bytes that a member leaves per token: tape, credit in int8, and that of x."""
        return self.tape_rows + self.credit_rows + 4 * self.program.width


def carry_plans(
    program: Program, passing: Collection[int], *, members: int, nax: bool = False
) -> list[CarryPlan]:
    """A plan per stage for threadgroups of `members`."""

    def plan(index: int, handed: bool) -> CarryPlan:
        return CarryPlan(program, index, members=members, passing=passing, handed=handed, nax=nax)

    return chained(plan, len(program.stages))


def chained(plan: Callable[[int, bool], P], stages: int) -> list[P]:
    """Plans of stages, from the last to the first told whether the one behind hands x credit."""
    plans: list[P] = []
    for index in reversed(range(stages)):
        plans.append(plan(index, bool(plans) and plans[-1].hands_on))
    return plans[::-1]
