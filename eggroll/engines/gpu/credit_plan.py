"""Token credit on a GPU: the tape that a stage leaves, and the work that follows the stages.

Letters: P members, N pairs, T tokens, M members of a threadgroup, D width, V vocabulary, K inputs
and O outputs of a leaf. Nothing here needs MLX or a GPU; the arithmetic is docs/estimators.md's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import isqrt
from typing import ClassVar, NamedTuple

from eggroll import fixed_point as fx
from eggroll.credit import SILENT, Crediting, CreditKind
from eggroll.engines.gpu.counts import Cost, cost
from eggroll.engines.gpu.plan import Phase, StagePlan, best_members, rows_read
from eggroll.program import Program

BY_SIGN, BY_ONE, BY_ROW, BY_SUM = range(4)  # ways of credits.h
ROW_ENTRIES = 512  # of a part, at least
PART_SUMS = 1 << 22  # of all parts, at most
SPARE = 8  # bytes after a pair's logits, so that pairs begin in different banks


class Kept(NamedTuple):
    """Inputs of a product on the tape: the register that holds them, their row there, K."""

    register: int
    row: int
    inputs: int


class CreditPlan(StagePlan):
    """A stage whose pairs are credited: it leaves what its matrices were given.

    Noise on nodes needs no x B, so such a plan is one without noise of its own. Where the program
    puts out, its members have the noise and leave nothing else.
    """

    together = 1  # rows of the tape that lie in one element of it
    unscored: ClassVar[tuple[str, ...]] = ("output",)  # of sums the inputs are kept

    def __init__(
        self,
        program: Program,
        index: int,
        crediting: Crediting,
        *,
        members: int,
        nax: bool = False,
        puts_out: bool = False,
    ) -> None:
        StagePlan.__init__(
            self, program, index,
            members=members, rank=0 if crediting.nodes else 1, nax=nax, puts_out=puts_out,
        )  # fmt: skip
        self.trace(crediting, puts_out)

    def trace(self, crediting: Crediting, puts_out: bool) -> None:
        """Finds the products whose inputs are kept, and the readout."""
        self.crediting = crediting
        products = [op for phase in self.phases for op in phase.products if not puts_out]
        self.traced = [op for op in products if crediting.kinds[op.leaf] == CreditKind.INPUTS]
        self.readout = next(
            (op for op in products if crediting.kinds[op.leaf] == CreditKind.READOUT), None
        )

    @cached_property
    def tape(self) -> dict[int, Kept]:
        """Leaf -> where its inputs lie; what several matrices read is there once."""
        out: dict[int, Kept] = {}
        at: dict[tuple[int, int], Kept] = {}
        written: Counter[int] = Counter()
        row = 0
        for op in self.stage.ops:
            if op in self.traced:
                value = op.inputs[0], written[op.inputs[0]]
                if value not in at:
                    at[value] = Kept(op.inputs[0], row, self.sizes[op.inputs[0]])
                    row += -(-at[value].inputs // self.together) * self.together
                out[op.leaf] = at[value]
            written[op.out] += op.writes
        return out

    @property
    def tape_rows(self) -> int:
        rows = max((kept.row + kept.inputs for kept in self.tape.values()), default=0)
        return -(-rows // self.together) * self.together

    def kept_first(self, phase: Phase) -> list[Kept]:
        """The inputs that a phase puts on the tape, as no phase before it has."""
        now = [self.tape[op.leaf] for op in phase.products if op.leaf in self.tape]
        done = [
            self.tape[op.leaf]
            for other in self.phases[: self.phases.index(phase)]
            for op in other.products
            if op.leaf in self.tape
        ]
        return [kept for kept in dict.fromkeys(now) if kept not in done]

    @property
    def logit_stride(self) -> int:
        """Bytes from one pair's logits to the next one's, where tokens are drawn."""
        return -(-self.program.vocabulary // 8) * 8 + SPARE if self.readout else 0

    @property
    def logit_bytes(self) -> int:
        return self.logit_stride * self.members // 2

    @property
    def logits_shared(self) -> bool:
        """True if logits fit into half of the threadgroup memory, and others leave it."""
        others = self.spare_bytes + self.likelihood_bytes
        return self.logit_bytes <= min(self.shared_bytes // 2, self.shared_bytes - others)

    @property
    def kept_bytes(self) -> int:
        return self.logit_bytes if self.logits_shared else 0

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + self.logit_bytes * (not self.logits_shared)

    @property
    def tape_bytes(self) -> int:
        """Bytes a pair leaves per token: inputs, x B, the readout's inputs and its two rows."""
        projections = 0 if self.crediting.nodes else 4 * len(self.traced)
        read = self.sizes[self.readout.inputs[0]] + 8 if self.readout else 0
        return self.tape_rows + projections + read

    @property
    def noise_shifts(self) -> list[int]:
        """Shift of every leaf's noise on nodes; a vector's product of two bytes has Q more."""
        shifts = ((self.crediting.shifts[leaf], at.shape) for leaf, at in self.layout.items())
        return [s + fx.Q * (len(shape) == 1 and s != SILENT) for s, shape in shifts]

    @property
    def noise_bytes(self) -> int:
        if not self.crediting.nodes:
            return super().noise_bytes
        total = 0
        for op in self.stage.ops:
            if op.leaf >= 0 and self.crediting.shifts[op.leaf] != SILENT:
                shape = self.program.leaves[op.leaf].shape
                if op.kind in ("embed", "features"):
                    total += shape[1] * (op.numbers[0] if op.numbers else 1)
                else:
                    total += shape[0] if len(shape) == 2 else 2 * shape[0]
        return total


def credit_plans(
    program: Program,
    crediting: Crediting,
    *,
    members: int,
    nax: bool = False,
    puts_out: bool = False,
) -> list[CreditPlan]:
    """A plan per stage for threadgroups of `members`."""
    of = range(len(program.stages))
    return [
        CreditPlan(program, i, crediting, members=members, nax=nax, puts_out=puts_out) for i in of
    ]


class CreditList(NamedTuple):
    """The different credits of a program: work for credits.h, and which of them is a leaf's."""

    work: list[tuple[int, ...]]  # way, discount, leaf of signs or slice, place, shift
    of: dict[int, int]  # leaf -> its credit


def credit_list(plans: Sequence[CreditPlan]) -> CreditList:
    """The credits of a program: with nodes, what shares noise and discount shares its credit."""
    crediting, leaves = plans[0].crediting, plans[0].program.leaves
    place = {op.leaf: i for i, op in enumerate(op for plan in plans for op in plan.traced)}
    found: dict[tuple[int, ...], int] = {}
    of: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        kind, discount = crediting.kinds[i], crediting.discounts[i]
        if kind in (CreditKind.NONE, CreditKind.READOUT):
            continue
        if crediting.nodes:
            row = (BY_SIGN, discount, crediting.owners[i], 0, 0)
        elif kind == CreditKind.TOKENS:
            row = (BY_ROW, discount, i, leaf.shape[1], 4)
        elif kind == CreditKind.INPUTS:
            row = (BY_SUM, discount, i, place[i], 4 + isqrt(leaf.shape[1]).bit_length())
        else:
            row = (BY_ONE, discount, i, 0, 0)
        of[i] = found.setdefault(row, len(found))
    return CreditList(list(found), of)


class TraceWork(NamedTuple):
    """Sums and votes of the matrices of one stage.

    traces: [first input, K, row of the tape, credit]; inputs: of all; fours: of inputs, each matrix
    begins a new one; tiles: as VoteWork has them, but of the owner's noise, and besides where A
    begins in its slice and the first input; votes: of all, in the order of `leaves`.
    """

    leaves: list[int]
    traces: list[tuple[int, ...]]
    inputs: int
    fours: int
    tiles: list[tuple[int, ...]]
    votes: int


def trace_work(plan: CreditPlan, of: dict[int, int], side: int) -> TraceWork:
    """The work of a stage whose leaves have the credits `of`, in tiles of side x side votes."""
    traces: list[tuple[int, ...]] = []
    tiles: list[tuple[int, ...]] = []
    first = offset = 0
    for op in plan.traced:
        O, K = plan.program.leaves[op.leaf].shape
        owner = plan.crediting.owners[op.leaf]
        traces.append((first, K, plan.tape[op.leaf].row, of[op.leaf]))
        at = plan.program.leaves[owner].shape[1]
        corners = product(range(0, O, side), range(0, K, side))
        tiles += [(owner, row, column, O, K, offset, at, first) for row, column in corners]
        first += K
        offset += O * K
    fours = sum(-(-trace[1] // 4) for trace in traces)
    return TraceWork([op.leaf for op in plan.traced], traces, first, fours, tiles, offset)


def vector_work(
    program: Program, crediting: Crediting, of: dict[int, int]
) -> list[tuple[int, ...]]:
    """[owner, element, credit, where A begins in the owner's slice or -1] of single votes."""
    out: list[tuple[int, ...]] = []
    for i, leaf in enumerate(program.leaves):
        if crediting.kinds[i] == CreditKind.SCALAR:
            owner = crediting.owners[i]
            at = -1 if owner == i else program.leaves[owner].shape[1]
            out += [(owner, k, of[i], at) for k in range(leaf.shape[0])]
    return out


def row_shares(entries: int, votes: int) -> tuple[int, int]:
    """(parts, entries of each) for the sums of rows, `votes` in all.

    Some rows have a large part of the entries, and a simdgroup goes through them one by one: so a
    part is short, as long as the sums of all parts are few.
    """
    parts = max(1, min(entries // ROW_ENTRIES, PART_SUMS // votes))
    share = -(-entries // parts)
    return -(-entries // share), share


class After(NamedTuple):
    """Costs after the stages: launches per update and chunk, multiply-adds of a member."""

    launches: int
    per_token: float
    per_member: float


def afterwards(plans: Sequence[CreditPlan]) -> dict[str, After]:
    """Counts of what follows the stages, from the work that the kernels are given."""
    program, crediting = plans[0].program, plans[0].crediting
    found, works = credit_list(plans), [p for p in plans if p.traced]
    traced = [trace_work(plan, found.of, 1 << 20) for plan in works]
    vectors = len(vector_work(program, crediting, found.of))
    rows = {
        kind: [leaf.shape[1] for i, leaf in enumerate(program.leaves) if crediting.kinds[i] == kind]
        for kind in (CreditKind.TOKENS, CreditKind.READOUT)
    }
    lists = [
        (op, program.leaves[op.leaf].shape[1])
        for plan in plans
        for op in plan.ops
        if op.kind == "features" and crediting.kinds[op.leaf] == CreditKind.FEATURES
    ]
    featured = After(len(lists), sum(rows_read(op) * D for op, D in lists) / 2, 0)
    # Pairs do all this, so a member counts half.
    return {
        "credits": After(1, len(found.work) / 2, 0),
        "sums of inputs": After(len(traced), sum(work.inputs for work in traced) / 2, 0),
        "votes of matrices": After(len(traced), 0, sum(work.votes for work in traced) / 2),
        "votes of vectors": After(int(vectors > 0), 0, vectors / 2),
        "embedding": After(len(rows[CreditKind.TOKENS]), sum(rows[CreditKind.TOKENS]) / 2, 0),
        "readout": After(len(rows[CreditKind.READOUT]), sum(rows[CreditKind.READOUT]), 0),
    } | ({"features": featured} if lists else {})


def credit_table(program: Program, crediting: Crediting, population: int) -> str:
    """Markdown: the cost of token credit on a network, as docs/metal.md has it."""
    M = best_members(program, 0 if crediting.nodes else 1, population)
    plans = credit_plans(program, crediting, members=M)
    names = ["embedding", *["layer"] * (len(plans) - 2), "head"]
    rows = [f"| stage | {' | '.join(Cost._fields)} | tape |", "|---|" + "---:|" * 8]
    for name, plan in zip(names, plans, strict=True):
        counts = " | ".join(f"{count:,.0f}" for count in (*cost(plan), plan.tape_bytes / 2))
        rows += [f"| {name} | {counts} |"] * (f"| {name} | {counts} |" not in rows)
    rows += ["", "| afterwards | launches | per token | per member |", "|---|---:|---:|---:|"]
    for name, after in afterwards(plans).items():
        rows += [f"| {name} | {' | '.join(f'{count:,.0f}' for count in after)} |"]
    return f"M = {M} members\n\n" + "\n".join(rows) + "\n"
