"""Token credit on a GPU: the tape that stages leave, and credits and votes once tokens are scored.

Letters: P members, N pairs, T tokens, M members of a threadgroup, D width, V vocabulary, K inputs
and O outputs of a leaf, Z votes; lanes are the pairs of whole threadgroups, N or a few more. The
arithmetic is docs/estimators.md's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import isqrt
from typing import ClassVar, NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect, KernelSource
from eggroll.engines.gpu.launch import SMALLEST_INPUT, Launcher, OutputShapes
from eggroll.engines.gpu.plan import (
    Phase,
    StageCost,
    StagePlan,
    best_members,
    rows_read,
    stage_cost,
)
from eggroll.engines.gpu.stage import StageResult, StageWriter
from eggroll.engines.gpu.votes import CreditKernels, launch_counts, split_terms, sum_rows
from eggroll.spec import fixed_point as fx
from eggroll.spec.credit import SILENT, Crediting, CreditKind, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Op, Program

BY_SIGN, BY_ONE, BY_ROW, BY_SUM = range(4)  # ways of credits.h
GAP = 8  # bytes after a pair's logits, so that pairs begin in different banks


class CreditPlan(StagePlan):
    """A stage whose pairs are credited: it leaves a tape of the inputs of its matrices.

    Noise on nodes needs no x B, so such a plan is one without noise of its own. Where the program
    puts out, its members have the noise and leave only their outputs.
    """

    element_rows = 1  # rows of the tape in one of its elements
    left_out: ClassVar[tuple[str, ...]] = ("output",)  # as votes need the inputs of sums

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
        """Finds the products with traces, sums of credit x input, and the readout."""
        self.crediting = crediting
        products = [op for phase in self.phases for op in phase.products if not puts_out]
        self.traced = [op for op in products if crediting.kinds[op.leaf] == CreditKind.INPUTS]
        self.readout = next(
            (op for op in products if crediting.kinds[op.leaf] == CreditKind.READOUT), None
        )

    @cached_property
    def tape(self) -> dict[int, TapedInputs]:
        """Leaf -> its inputs; those that several matrices read are there once."""
        tape: dict[int, TapedInputs] = {}
        values: dict[tuple[int, int], TapedInputs] = {}
        writes: Counter[int] = Counter()
        row = 0
        for op in self.stage.ops:
            if op in self.traced:
                value = op.inputs[0], writes[op.inputs[0]]
                if value not in values:
                    values[value] = TapedInputs(op.inputs[0], row, self.sizes[op.inputs[0]])
                    row += -(-values[value].inputs // self.element_rows) * self.element_rows
                tape[op.leaf] = values[value]
            writes[op.out] += op.writes
        return tape

    @property
    def tape_rows(self) -> int:
        rows = max((taped.row + taped.inputs for taped in self.tape.values()), default=0)
        return -(-rows // self.element_rows) * self.element_rows

    def newly_taped(self, phase: Phase) -> list[TapedInputs]:
        """The inputs that a phase puts on the tape, as no phase before it has."""
        now = [self.tape[op.leaf] for op in phase.products if op.leaf in self.tape]
        before = [
            self.tape[op.leaf]
            for other in self.phases[: self.phases.index(phase)]
            for op in other.products
            if op.leaf in self.tape
        ]
        return [taped for taped in dict.fromkeys(now) if taped not in before]

    @property
    def logit_stride(self) -> int:
        """Bytes from one pair's logits to the next one's, where tokens are drawn."""
        return -(-self.program.vocabulary // 8) * 8 + GAP if self.readout else 0

    @property
    def logit_bytes(self) -> int:
        return self.logit_stride * self.members // 2

    @property
    def logits_shared(self) -> bool:
        """True if logits fit into half of the threadgroup memory, and others leave it."""
        others = self.spare_bytes + self.likelihood_bytes
        return self.logit_bytes <= min(self.shared_bytes // 2, self.shared_bytes - others)

    @property
    def extra_bytes(self) -> int:
        return self.logit_bytes if self.logits_shared else 0

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + self.logit_bytes * (not self.logits_shared)

    @property
    def tape_bytes(self) -> int:
        """Bytes a pair leaves per token: inputs, x B, the readout's inputs and its two rows."""
        projections = 0 if self.crediting.nodes else 4 * len(self.traced)
        readout = self.sizes[self.readout.inputs[0]] + 8 if self.readout else 0
        return self.tape_rows + projections + readout

    @property
    def noise_shifts(self) -> list[int]:
        """Shift of every leaf's noise on nodes; a vector's product of two bytes has Q more."""
        shifts = ((self.crediting.shifts[leaf], to.shape) for leaf, to in self.layout.items())
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


class TapedInputs(NamedTuple):
    """The inputs of a product on the tape."""

    register: int  # that holds them
    row: int  # the first one on the tape
    inputs: int  # K


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


class CreditStageWriter(StageWriter):
    """Writes a stage that leaves a tape, and tokens drawn for the readout; or only outputs.

    shift: of noise on weights, Q + sigma_shift. sizes: T, members, pairs, the first token's number,
    words of signs, pairs of all threadgroups.
    """

    plan: CreditPlan

    def __init__(
        self, plan: CreditPlan, dialect: Dialect, result: StageResult = "scores", *, shift: int
    ) -> None:
        super().__init__(plan, dialect, result, shift=shift)
        self.nodes = plan.crediting.nodes
        self.noise_files = ("turns", "nodes") if self.nodes else ("weights",)
        if self.nodes or plan.readout:
            self.noise_files = ("mixed", *self.noise_files)
        # The plan of noise on nodes has none, as it takes no x B.
        self.rank, self.perturbed = 1, True

    def node_shift(self, op: Op) -> int:
        return self.plan.noise_shifts[self.leaf(op)] if self.nodes else -1

    def inputs(self) -> list[str]:
        return super().inputs() + ["signs"] * self.nodes + ["draws"] * bool(self.plan.readout)

    def outputs(self) -> list[str]:
        plan = self.plan
        names = ["tape"] * bool(plan.traced)
        names += ["projection"] * bool(plan.traced and not self.nodes)
        return super().outputs() + names + ["read", "moved"] * bool(plan.readout)

    def constants(self) -> str:
        text = super().constants()
        if self.nodes:
            text += self.dialect.array("int", "SHIFTS", self.plan.noise_shifts or [SILENT])
            text += self.dialect.constants(GROUPED=bool(self.plan.crediting.group))
        return text + self.dialect.constants(LOGITS=self.plan.logit_stride)

    def files(self) -> list[str]:
        return [*super().files(), "tape"] + ["draw"] * bool(self.plan.readout)

    def opening(self) -> None:
        plan, (logit, size) = self.plan, self.dialect.logit
        if self.nodes:
            self("noise.signs = signs;", "noise.words = sizes[4];")
        if plan.readout and plan.logits_shared:
            self.share(logit, "own", plan.logit_bytes)
        elif plan.readout:
            self.spilled(logit, "own", "spilled", (plan.scratch_bytes - plan.logit_bytes) // size)

    def token(self) -> None:
        if self.nodes:
            self("noise.t = sizes[3] + t;")

    def products(self, phase: Phase) -> None:
        plan, pairs, group = self.plan, self.plan.members // 2, self.dialect.stage_group
        for taped in plan.newly_taped(phase):
            at = f"(({group} * T + t) * {plan.tape_rows} + {taped.row}) * {pairs}"
            self(f"egg::keep<{taped.inputs}>(tape + {at}, r{taped.register}, lane);")
        for op in phase.products:
            if op in plan.traced and not self.nodes:
                at = f"({plan.traced.index(op)} * T + t) * sizes[5] + first / 2"
                self(f"egg::keep_sums(projection + {at}, {self.sums_of(op)}, lane);")
            if op == plan.readout:
                K, x = plan.sizes[op.inputs[0]], op.inputs[0]
                at = f"(first / 2 * T + t) * {K}"
                self(f"egg::keep_rows<{K}>(read + {at}, r{x}, T, members, lane);")

    def scored_tile(self, op: Op) -> None:
        if op == self.plan.readout:
            self(f"egg::keep_logits<{self.plan.program.vocabulary}>(own, logit, tile, lane);")

    def scored_token(self) -> None:
        if self.plan.readout:
            V = self.plan.program.vocabulary
            self(
                f"egg::draw<{V}>(moved + (first / 2 * T + t) * 2, targets + first * T + t, "
                f"draws + first / 2 * T + t, own, {self.exp2}hits, T, members, lane);"
            )


class CreditRun:
    """Collects the stages' outputs for some pairs, tokens chunk by chunk, and counts their votes.

    batch: of all chunks.
    """

    def __init__(
        self,
        launcher: Launcher,
        work: CreditWork,
        noise: Slices,
        credit_noise: CreditNoise,
        batch: Batch,
    ) -> None:
        self.launcher, self.work, self.kernels = launcher, work, work.kernels
        self.noise, self.credit_noise = noise, credit_noise
        self.program, self.crediting, self.credits = work.program, work.crediting, work.credits
        self.tokens = batch.tokens.astype(mx.int32)
        self.features = batch.members(slice(0, None, 2)).features
        P, self.T = batch.size
        self.N, M = P // 2, work.plans[0].members
        self.lanes = -(-P // M) * M // 2
        self.tapes: list[tuple[int, int, dict[int, mx.array]]] = []  # first token, tokens, stages
        self.projections: list[mx.array] = []  # x B, int32 [products, T, lanes]
        self.readout: mx.array | None = None

    def output_shapes(self, T: int, plan: StagePlan) -> OutputShapes:
        """Shapes and types of the arrays that a stage leaves of T tokens."""
        assert isinstance(plan, CreditPlan)
        K = plan.sizes[plan.readout.inputs[0]] if plan.readout else 0
        return {
            "tape": ((self.lanes * T * plan.tape_rows,), mx.int8),
            "projection": ((len(plan.traced), T, self.lanes), mx.int32),
            "read": ((self.N, T, K), mx.int8),
            "moved": ((self.N, T, 2), mx.int32),
        }

    def add(self, first: int, T: int, outputs: Sequence[dict[str, mx.array]]) -> None:
        """Takes the stages' outputs of tokens first .. first + T - 1; counts their readout."""
        tapes = {i: of["tape"] for i, of in enumerate(outputs) if "tape" in of}
        self.tapes.append((first, T, tapes))
        new = [of["projection"].reshape(-1, T, self.lanes) for of in outputs if "projection" in of]
        self.projections += [mx.concatenate(new)] if new else []
        for plan, of_stage in zip(self.work.plans, outputs, strict=True):
            if plan.readout:
                Z = self._read(self.program.leaves[plan.readout.leaf].shape, of_stage)
                self.readout = Z if self.readout is None else self.readout + Z

    def votes(self, scores: mx.array) -> dict[str, mx.array]:
        """Z int32 of every leaf. scores: int16 [P, T] of all tokens, or int32 in their place."""
        credits, sums = self._weigh(scores)
        flat: dict[int, mx.array] = {}
        for stage in self.work.traces:
            flat |= self._matrices(stage, credits)
        if self.work.vectors:
            flat |= self._vectors(sums)
        votes = {}
        for i, leaf in enumerate(self.program.leaves):
            kind = self.crediting.kinds[i]
            if kind == CreditKind.READOUT:
                assert self.readout is not None
                flat[i] = self.readout
            elif kind == CreditKind.TOKENS:
                flat[i] = self._embedded(i, credits)
            elif kind == CreditKind.FEATURES:
                flat[i] = self._featured(i, credits)
            z = flat[i] if i in flat else mx.zeros(math.prod(leaf.shape), mx.int32)
            votes[leaf.name] = z.reshape(leaf.shape)
        return votes

    def _weigh(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        """Credits int8 [credits, T, lanes] of tokens, and their clipped sums [credits, lanes]."""
        C, words = len(self.credits.work), self.credit_noise.signs.shape[2]
        sizes = [C, self.T, self.N, words, self.lanes, self.crediting.credit_shift]
        sizes += [1 << (8 - self.program.score_bits), self.crediting.unit_shift]
        empty = mx.zeros(SMALLEST_INPUT, mx.int32)
        projections = mx.concatenate(self.projections, axis=1) if self.projections else empty
        kernel, noise = self.kernels.credits, self.noise
        if self.crediting.group:
            sizes, kernel = [*sizes, self.crediting.group], self.kernels.of_groups
        elif scores.dtype != mx.int16:
            kernel = self.kernels.of_values
        arrays = [scores, self.tokens, self.credit_noise.signs, noise.starts, projections]
        credits, sums = launch_counts(
            self.launcher, kernel, [*arrays, noise.table, self.work.credit_rows], sizes,
            [((C, self.T, self.lanes), mx.int8), ((C, self.lanes), mx.int8)], C * self.lanes,
        )  # fmt: skip
        return credits, sums

    def _matrices(self, stage: int, credits: mx.array) -> dict[int, mx.array]:
        """Leaf -> flat Z of the matrices of a stage."""
        work, plan = self.work.traces[stage], self.work.plans[stage]
        total: mx.array | None = None
        for first, T, tapes in self.tapes:
            sizes = [len(work.traces), work.inputs, self.N, T, first, self.T, plan.tape_rows]
            sizes += [plan.members // 8, self.lanes // 4]
            (sums,) = launch_counts(
                self.launcher, self.kernels.traces,
                [tapes[stage], credits, self.work.trace_lists[stage]], sizes,
                [((self.N * work.inputs,), mx.int32)], work.fours * self.lanes,
            )  # fmt: skip
            total = sums if total is None else total + sums
        assert total is not None
        parts, share = split_terms(self.N, len(work.tiles), self.work.vote_groups)
        (Z,) = launch_counts(
            self.launcher, self.kernels.matrices,
            [self.noise.table, self.noise.starts, total, self.work.tile_lists[stage]],
            [self.N, share, work.votes, 4 + self.crediting.credit_shift],
            [((parts, work.votes), mx.int32)], len(work.tiles) * VOTE_THREADS, parts,
        )  # fmt: skip
        sizes = [math.prod(self.program.leaves[leaf].shape) for leaf in work.leaves]
        ends = np.cumsum(sizes)[:-1].tolist()
        return dict(zip(work.leaves, mx.split(Z.sum(axis=0), ends), strict=True))

    def _vectors(self, sums: mx.array) -> dict[int, mx.array]:
        """Leaf -> Z of the vectors; sums int8 [credits, lanes]."""
        count = self.work.vectors
        parts, share = split_terms(self.N, -(-count // VOTE_THREADS), self.work.vote_groups)
        (Z,) = launch_counts(
            self.launcher, self.kernels.vectors,
            [self.noise.table, self.noise.starts, sums, self.work.vector_list],
            [self.N, share, count, self.lanes], [((parts, count), mx.int32)], count, parts,
        )  # fmt: skip
        leaves = [i for i, kind in enumerate(self.crediting.kinds) if kind == CreditKind.SCALAR]
        ends = np.cumsum([self.program.leaves[i].shape[0] for i in leaves])[:-1].tolist()
        return dict(zip(leaves, mx.split(Z.sum(axis=0), ends), strict=True))

    def _embedded(self, leaf: int, credits: mx.array) -> mx.array:
        """Z [V, D] of an embedding."""
        begin = self.credits.of[leaf] * self.T * self.lanes
        arrays = [self.noise.table, self.noise.starts[leaf], credits]
        sizes, shape = [self.T, self.lanes, begin], self.program.leaves[leaf].shape
        return self._sum_rows(self.kernels.embedded, arrays, self.tokens[0::2], shape, sizes)

    def _featured(self, leaf: int, credits: mx.array) -> mx.array:
        """Z [count, D] of sparse features."""
        op = next(op for stage in self.program.stages for op in stage.ops if op.leaf == leaf)
        lists, active, first, _ = op.numbers
        indices, begin = lists * active, self.credits.of[leaf] * self.T * self.lanes
        assert self.features is not None
        arrays = [self.noise.table, self.noise.starts[leaf], credits]
        sizes = [self.T, self.lanes, begin, indices, active, int(self.crediting.nodes)]
        rows, shape = self.features[..., first : first + indices], self.program.leaves[leaf].shape
        return self._sum_rows(self.kernels.featured, arrays, rows, shape, sizes)

    def _read(self, shape: tuple[int, ...], outputs: dict[str, mx.array]) -> mx.array:
        """Z [V, K] of the readout."""
        return self._sum_rows(self.kernels.read, [outputs["read"]], outputs["moved"], shape, [])

    def _sum_rows(
        self,
        source: KernelSource,
        arrays: Sequence[mx.array],
        rows: mx.array,
        shape: tuple[int, ...],
        sizes: Sequence[int],
    ) -> mx.array:
        """Sums of entries by the rows that they name; negative ones name none."""
        rows = rows.reshape(-1)
        order = mx.argsort(rows)
        return sum_rows(
            self.launcher, source, arrays, rows[order], order.astype(mx.int32), shape, sizes
        )


# The work after the stages, as lists that kernels take.


class CreditWork:
    """The work that follows the stages of these plans, as lists that kernels take.

    vote_groups: threadgroups that keep the GPU busy.
    """

    def __init__(
        self, plans: Sequence[CreditPlan], kernels: CreditKernels, vote_groups: int
    ) -> None:
        self.kernels, self.vote_groups = kernels, vote_groups
        self.plans, self.program, self.crediting = plans, plans[0].program, plans[0].crediting
        self.credits = credit_list(plans)
        self.traces = {
            i: trace_work(plan, self.credits.of, VOTE_SIDE)
            for i, plan in enumerate(plans)
            if plan.traced
        }
        vectors = vector_work(self.program, self.crediting, self.credits.of)
        self.credit_rows, self.vector_list = as_int32(self.credits.work), as_int32(vectors)
        self.trace_lists = {i: as_int32(work.traces) for i, work in self.traces.items()}
        self.tile_lists = {i: as_int32(work.tiles) for i, work in self.traces.items()}
        self.vectors = len(vectors)


def as_int32(rows: Sequence[tuple[int, ...]]) -> mx.array:
    return mx.array(np.array(rows, np.int32))


class CreditList(NamedTuple):
    """The different credits of a program."""

    # For credits.h: way, discount, leaf of the signs or slice, place, shift.
    work: list[tuple[int, ...]]
    of: dict[int, int]  # leaf -> index of its credit


def credit_list(plans: Sequence[CreditPlan]) -> CreditList:
    """The credits of a program: with nodes, leaves of one noise and discount have the same."""
    crediting, leaves = plans[0].crediting, plans[0].program.leaves
    place = {op.leaf: i for i, op in enumerate(op for plan in plans for op in plan.traced)}
    indices: dict[tuple[int, ...], int] = {}
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
        of[i] = indices.setdefault(row, len(indices))
    return CreditList(list(indices), of)


class TraceWork(NamedTuple):
    """Sums of credit x input, and votes, of the matrices of one stage."""

    leaves: list[int]
    traces: list[tuple[int, ...]]  # (first input, K, row of the tape, credit)
    inputs: int  # of all
    fours: int  # of inputs; each matrix begins a new one
    # As of VoteWork, but of the owner's noise; besides, where A begins there and the first input.
    tiles: list[tuple[int, ...]]
    votes: int  # of all, in the order of `leaves`


def trace_work(plan: CreditPlan, of: dict[int, int], side: int) -> TraceWork:
    """The work of a stage whose leaves have the credits `of`, in tiles of side x side votes."""
    traces: list[tuple[int, ...]] = []
    tiles: list[tuple[int, ...]] = []
    first = offset = 0
    for op in plan.traced:
        O, K = plan.program.leaves[op.leaf].shape
        owner = plan.crediting.owners[op.leaf]
        traces.append((first, K, plan.tape[op.leaf].row, of[op.leaf]))
        begin = plan.program.leaves[owner].shape[1]
        corners = product(range(0, O, side), range(0, K, side))
        tiles += [(owner, row, column, O, K, offset, begin, first) for row, column in corners]
        first += K
        offset += O * K
    fours = sum(-(-trace[1] // 4) for trace in traces)
    return TraceWork([op.leaf for op in plan.traced], traces, first, fours, tiles, offset)


def vector_work(
    program: Program, crediting: Crediting, of: dict[int, int]
) -> list[tuple[int, ...]]:
    """(owner, element, credit, where A begins in the owner's slice or -1) of single votes."""
    work: list[tuple[int, ...]] = []
    for i, leaf in enumerate(program.leaves):
        if crediting.kinds[i] == CreditKind.SCALAR:
            owner = crediting.owners[i]
            begin = -1 if owner == i else program.leaves[owner].shape[1]
            work += [(owner, k, of[i], begin) for k in range(leaf.shape[0])]
    return work


# Its costs.


class FollowUpCost(NamedTuple):
    """The cost of a kind of work after the stages."""

    launches: int  # per update and chunk
    per_token: float  # multiply-adds of a member, as below
    per_member: float


def follow_up_costs(plans: Sequence[CreditPlan]) -> dict[str, FollowUpCost]:
    """The costs of all work after the stages, counted from the lists that kernels take."""
    program, crediting = plans[0].program, plans[0].crediting
    credits = credit_list(plans)
    traces = [trace_work(plan, credits.of, 1 << 20) for plan in plans if plan.traced]
    vectors = len(vector_work(program, crediting, credits.of))
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
    featured = FollowUpCost(len(lists), sum(rows_read(op) * D for op, D in lists) / 2, 0)
    # Pairs do all this, so a member counts half.
    return {
        "credits": FollowUpCost(1, len(credits.work) / 2, 0),
        "sums of inputs": FollowUpCost(len(traces), sum(work.inputs for work in traces) / 2, 0),
        "votes of matrices": FollowUpCost(len(traces), 0, sum(work.votes for work in traces) / 2),
        "votes of vectors": FollowUpCost(int(vectors > 0), 0, vectors / 2),
        "embedding": FollowUpCost(
            len(rows[CreditKind.TOKENS]), sum(rows[CreditKind.TOKENS]) / 2, 0
        ),
        "readout": FollowUpCost(len(rows[CreditKind.READOUT]), sum(rows[CreditKind.READOUT]), 0),
    } | ({"features": featured} if lists else {})


def credit_table(program: Program, crediting: Crediting, population: int) -> str:
    """Markdown: the cost of token credit on a network, as docs/metal.md has it."""
    M = best_members(program, 0 if crediting.nodes else 1, population)
    plans = credit_plans(program, crediting, members=M)
    names = ["embedding", *["layer"] * (len(plans) - 2), "head"]
    rows = [f"| stage | {' | '.join(StageCost._fields)} | tape |", "|---|" + "---:|" * 8]
    for name, plan in zip(names, plans, strict=True):
        counts = " | ".join(f"{count:,.0f}" for count in (*stage_cost(plan), plan.tape_bytes / 2))
        rows += [f"| {name} | {counts} |"] * (f"| {name} | {counts} |" not in rows)
    rows += ["", "| afterwards | launches | per token | per member |", "|---|---:|---:|---:|"]
    for name, costs in follow_up_costs(plans).items():
        rows += [f"| {name} | {' | '.join(f'{count:,.0f}' for count in costs)} |"]
    return f"M = {M} members\n\n" + "\n".join(rows) + "\n"
