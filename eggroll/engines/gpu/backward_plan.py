"""The backward pass on a GPU, planned: what a stage keeps of every row, and its steps in phases.

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
from eggroll.spec.backward import CLIPPED, final
from eggroll.spec.program import Op, Program, S, X

# Operations whose credit, or whose leaf's votes, depend on the values of their inputs.
READS_INPUTS = ("linear", "score", "sums", "norm", "lookup", "relu", "forget", "mix")
ALONG_ROWS = ("score", "norm")  # on the way back: a simdgroup per member, along its features
BACKWARD_PRODUCTS = ("linear", "score", "sums")  # by a matrix
INT8_CREDITED = (*BACKWARD_PRODUCTS, "embed", "features")  # whose leaf's credit stays, in int8
IN_ERROR_UNITS = ("score", "sums")  # whose outputs' credit is an error itself, without a scale
TAKES_ERRORS = ("output", "sums")  # of the caller
# The values of x and s before the first operation; operation i has value i.
OF_X, OF_S = -1, -2

P = TypeVar("P", bound="BackwardPlan")


class BackwardPlan(StagePlan):
    """A stage whose members have no noise and carry errors back: the score's, or the outputs'.

    Without a score all outputs are put out, as errors may be made of them.
    feedback_leaves: those whose matrix carries credit on; receives_x: whether the stages after it
    return credit of register x. Dictionaries with the name of `starts` hold first rows.
    """

    adjacent: ClassVar[int] = 1  # features of a member that lie side by side

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        feedback_leaves: Collection[int],
        receives_x: bool,
        nax: bool = False,
    ) -> None:
        puts_out = not program.scored
        StagePlan.__init__(
            self, program, index, members=members, rank=0, nax=nax, puts_out=puts_out
        )
        self.plan_backward(feedback_leaves, receives_x)

    def plan_backward(self, feedback_leaves: Collection[int], receives_x: bool) -> None:
        """Finds the backward steps, and lays out what they need."""
        self.receives_x, self.stateful = receives_x, self.stage.state >= 0
        ends = zip(self.stage.ops, final(self.stage), strict=True)
        self.final = [last for op, last in ends if op in self.ops]  # of each operation
        self.steps = self._steps(feedback_leaves)
        self.backward_phases = self._phases()
        taped = {value: self._size(value) for value in self._taped_values()}
        self.tape_starts = self._first_rows(taped, self.adjacent)
        leaves = {step.op.leaf: step for step in self.steps if step.op.leaf >= 0}
        self.credited_leaves = list(leaves)
        int8 = {leaf for leaf, step in leaves.items() if step.op.kind in INT8_CREDITED}
        sizes = self.leaf_sizes
        self.credit_starts = self._first_rows({k: n for k, n in sizes.items() if k in int8})
        self.vector_starts = self._first_rows({k: n for k, n in sizes.items() if k not in int8})
        elsewhere = {S} | ({X} if self.returns_x else set())
        stored = [r for r in self._stored_registers() if r not in elsewhere]
        self.home_starts = self._first_rows({r: self.sizes[r] for r in stored})
        self.feedback_starts = self._feedback_starts()

    def number(self, op: Op) -> int:
        """The place of an operation among the stage's, as equal ones may be there twice."""
        return next(i for i, other in enumerate(self.ops) if other is op)

    def values_of(self, step: BackwardStep) -> int:
        """Values of a row that the step's leaf is credited for."""
        if step.op.kind in IN_ERROR_UNITS:
            return self.program.leaves[step.op.leaf].shape[0]
        return self.sizes[step.op.out]

    def first_error(self, op: Op) -> int:
        """The first of an output's errors among those of all outputs side by side."""
        return sum(output.size for output in self.program.outputs[: op.numbers[0]])

    def _useful_inputs(self) -> list[tuple[bool, ...]]:
        """By operation and input, whether credit of it reaches a leaf, or leaves the stage."""
        reaches, out = {X: not self.first, S: self.stateful}, []
        for op in self.ops:
            useful = tuple(reaches.get(r, False) for r in op.inputs)
            out.append(useful)
            if op.writes:
                reaches[op.out] = op.leaf >= 0 or any(useful)
        return out

    def _values_read(self) -> list[tuple[int, ...]]:
        """The values that each operation reads."""
        values, out = {X: OF_X, S: OF_S}, []
        for i, op in enumerate(self.ops):
            out.append(tuple(values[r] for r in op.inputs))
            if op.writes:
                values[op.out] = i
        return out

    def _steps(self, feedback_leaves: Collection[int]) -> list[BackwardStep]:
        """The operations that have credit, from the last to the first."""
        credited, steps = {S} if self.stateful else set[int](), list[BackwardStep]()
        credited |= {X} if self.receives_x else set()
        self.start_credited = frozenset(credited)
        each = zip(self.ops, self._values_read(), self._useful_inputs(), strict=True)
        for i, (op, values, useful) in reversed(list(enumerate(each))):
            if op.out not in credited if op.writes else op.kind == "output" and not any(useful):
                continue
            credited -= {op.out} if op.writes else set()
            carries = op.kind not in BACKWARD_PRODUCTS or op.leaf in feedback_leaves
            step = BackwardStep(op, i, values, tuple(carries and each for each in useful))
            credited |= {*step.credited_inputs}
            steps.append(step)
        self.returns_x = X in credited and not self.first
        return steps

    def _phases(self) -> list[BackwardPhase]:
        out: list[BackwardPhase] = []
        for step in self.steps:
            alone = step.op.kind in ALONG_ROWS or step.op.kind == "concat"
            extent = 0 if alone else self.extent(step.op)
            if not out or not out[-1].accepts(step, extent):
                out.append(BackwardPhase(extent))
            out[-1].steps.append(step)
        return out

    def _taped_values(self) -> list[int]:
        """Values that the way back reads."""
        values: set[int] = set()
        for step in self.steps:
            values |= {step.number} if step.op.kind in (*CLIPPED, "score") else set()
            values |= {*step.values} if step.op.kind in READS_INPUTS else set()
        return sorted(values)

    def _size(self, value: int) -> int:
        if value < 0:
            return self.program.width
        op = self.ops[value]
        return self.extent(op) if op.kind == "score" else self.sizes[op.out]

    def _stored_registers(self) -> list[int]:
        """Registers whose credit goes from phase to phase."""
        stored: set[int] = set()
        for phase in self.backward_phases:
            local: set[int] = set()
            for step in phase.steps:
                if step.op.writes and step.op.out not in local | self.start_credited:
                    stored.add(step.op.out)
                local -= {step.op.out} if step.op.writes else set()
                if phase.extent and step.op.kind not in BACKWARD_PRODUCTS:
                    local |= {*step.credited_inputs}
                else:
                    stored |= {*step.credited_inputs}
            stored |= local
        return sorted(stored)

    def _first_rows(self, sizes: dict[int, int], unit: int = PAD) -> dict[int, int]:
        """First row of each, which have multiples of `unit`; products read PAD at a time."""
        out, row = {}, 0
        for key, size in sizes.items():
            out[key] = row
            row += -(-size // unit) * unit
        return out

    def _row_count(self, starts: dict[int, int], sizes: dict[int, int], unit: int = PAD) -> int:
        return max((row + -(-sizes[key] // unit) * unit for key, row in starts.items()), default=0)

    @property
    def tape_rows(self) -> int:
        sizes = {value: self._size(value) for value in self.tape_starts}
        return self._row_count(self.tape_starts, sizes, self.adjacent)

    @property
    def leaf_sizes(self) -> dict[int, int]:
        """Leaf -> values of a row that it is credited for."""
        return {step.op.leaf: self.values_of(step) for step in self.steps if step.op.leaf >= 0}

    @property
    def credit_rows(self) -> int:
        return self._row_count(self.credit_starts, self.leaf_sizes)

    @property
    def vector_rows(self) -> int:
        return self._row_count(self.vector_starts, self.leaf_sizes)

    @property
    def home_rows(self) -> int:
        return self._row_count(self.home_starts, dict(enumerate(self.sizes)))

    def _feedback_starts(self) -> dict[int, int]:
        """Leaf -> offset of its matrix, transposed and packed, in the order of the way back."""
        starts, offset = {}, 0
        for phase in self.backward_phases:
            for step in phase.products:
                O, K = self.program.leaves[step.op.leaf].shape
                starts[step.op.leaf] = offset
                offset += padded(O) * padded(K)
        return starts

    @property
    def totals_bytes(self) -> int:
        """Bytes of a threadgroup's sums of |c|, of every thread's own."""
        return 8 * 32 * self.simdgroups * len(self.credited_leaves)

    @property
    def backward_scratch(self) -> int:
        """Bytes of device memory of one threadgroup on the way back."""
        return self.totals_bytes + 4 * self.home_rows * self.members

    @property
    def token_bytes(self) -> int:
        """Bytes that a member leaves per token: tape, credit in int8, and that of x."""
        return self.tape_rows + self.credit_rows + 4 * self.program.width


class BackwardStep(NamedTuple):
    """An operation that has credit."""

    op: Op
    number: int  # among the stage's operations
    values: tuple[int, ...]  # that it read: numbers of operations, or OF_X, OF_S
    credits_input: tuple[bool, ...]

    @property
    def credited_inputs(self) -> list[int]:
        """Registers of the inputs that get credit."""
        return [r for r, yes in zip(self.op.inputs, self.credits_input, strict=True) if yes]


@dataclass
class BackwardPhase:
    """Steps with a barrier behind them, then products that carry their credit on, and a barrier.

    extent: values of a member that the steps go through, element by element; 0: along rows, or
    of concat.
    """

    extent: int
    steps: list[BackwardStep] = field(default_factory=list)

    @property
    def products(self) -> list[BackwardStep]:
        return [s for s in self.steps if s.op.kind in BACKWARD_PRODUCTS and s.credits_input[0]]

    @property
    def rounds(self) -> bool:
        """True if leaves have credit element by element, which is rounded by chance."""
        return self.extent > 0 and any(s.op.leaf >= 0 and s.op.writes for s in self.steps)

    def accepts(self, step: BackwardStep, extent: int) -> bool:
        """True if a step may follow in this phase: it needs no credit that products bring first."""
        awaited = {product.op.inputs[0] for product in self.products}
        touched = {step.op.out} if step.op.writes else set[int]()
        if step.op.kind not in BACKWARD_PRODUCTS:
            touched |= {*step.credited_inputs}
        return extent == self.extent > 0 and not awaited & touched


def backward_plans(
    program: Program, feedback_leaves: Collection[int], *, members: int, nax: bool = False
) -> list[BackwardPlan]:
    """A plan per stage for threadgroups of `members`."""

    def plan(index: int, receives_x: bool) -> BackwardPlan:
        return BackwardPlan(
            program, index,
            members=members, feedback_leaves=feedback_leaves, receives_x=receives_x, nax=nax,
        )  # fmt: skip

    return plans_from_last(plan, len(program.stages))


def plans_from_last(plan: Callable[[int, bool], P], stages: int) -> list[P]:
    """Plans of stages, made from the last to the first, each told if the next returns x credit."""
    plans: list[P] = []
    for index in reversed(range(stages)):
        plans.append(plan(index, bool(plans) and plans[-1].returns_x))
    return plans[::-1]
