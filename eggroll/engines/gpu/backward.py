"""The backward pass on a GPU: a launch per stage, and the votes counted afterwards.

Letters: P members, T tokens, M members of a threadgroup, D width, K inputs and O outputs of a leaf,
Z votes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.engines.gpu.backward_kernels import BackwardWriter, TapeStageWriter
from eggroll.engines.gpu.backward_plan import BACKWARD_PRODUCTS, BackwardPlan
from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect
from eggroll.engines.gpu.launch import Launcher, OutputShapes, Pace, pad_flat
from eggroll.engines.gpu.plan import StagePlan
from eggroll.engines.gpu.votes import backward_vote_kernels, launch_counts, split_terms, sum_rows
from eggroll.spec.backward import Backward
from eggroll.spec.program import Batch, Op


class TapeChunk(NamedTuple):
    """Consecutive tokens of the members, with the tapes that the stages left of them."""

    first: int
    T: int
    tapes: list[mx.array | None]  # by stage


class BackwardRun:
    """Carries the errors of P members back, tokens chunk by chunk, and adds up votes and sizes.

    matrices: by stage, those that carry credit back, transposed and packed; words: [P, T].
    """

    def __init__(
        self,
        launcher: Launcher,
        pace: Pace,
        dialect: Dialect,
        stages: Sequence[BackwardStage],
        prepared: Sequence[mx.array],
        matrices: Sequence[mx.array],
        back: Backward,
        batch: Batch,
        words: mx.array,
    ) -> None:
        self.launcher, self.pace, self.dialect, self.stages = launcher, pace, dialect, stages
        self.prepared, self.matrices, self.features = prepared, matrices, batch.features
        self.scales = pad_flat(mx.array(back.scales, mx.int32))
        self.tokens, self.words = batch.tokens.astype(mx.int32), words
        self.targets = None if batch.targets is None else batch.targets.astype(mx.int32)
        self.program, self.M = stages[0].plan.program, stages[0].plan.members
        # Errors of outputs: if they are made of labels, set before the way back.
        self.P, self.errors = batch.size[0], batch.errors
        self.groups = -(-self.P // self.M)
        self.kernels = backward_vote_kernels(dialect, self.M)
        self.state_credit: dict[int, mx.array] = {}  # by stage, as later tokens left it
        # Sums so far: the kernel's name and the stage, or the leaf -> flat votes, or sizes.
        self.sums: dict[tuple[str, int], mx.array] = {}

    @property
    def lanes(self) -> int:
        """Members of whole threadgroups."""
        return self.groups * self.M

    @property
    def width(self) -> int:
        """Elements of all threadgroups' activations of a row."""
        return self.groups * self.dialect.tile_bytes(self.program.width, self.M)

    def output_shapes(self, T: int, plan: StagePlan) -> OutputShapes:
        """Shape and type of the tape that a stage leaves of T tokens."""
        assert isinstance(plan, BackwardPlan)
        return {"tape": ((self.groups * T * plan.tape_rows * self.M,), mx.int8)}

    def backward(self, chunk: TapeChunk) -> None:
        """Carries back this chunk's errors, and the credit that the chunks after it left."""
        x_credit: mx.array | None = None
        for i, stage in reversed(list(enumerate(self.stages))):
            if stage.backward:
                self.pace.begin(stage.backward)
                x_credit = self._run_stage(i, chunk, x_credit)
                arrays = [*self.sums.values(), *self.state_credit.values()]
                arrays += [] if x_credit is None else [x_credit]
                # The way back and the votes are twice the products of the way forward.
                self.pace.launched(arrays, 2 * self.P * chunk.T * stage.plan.macs)

    def votes_and_sizes(self) -> tuple[dict[str, mx.array], mx.array]:
        """Z per leaf, and the sums of |c|, int64 [leaves]; zeros for a leaf without credit."""
        leaves, flat = self.program.leaves, dict[int, mx.array]()
        order, sizes = list[int](), [mx.zeros(1, mx.int64)]
        for i, (plan, tiles) in enumerate((stage.plan, stage.tiles) for stage in self.stages):
            if plan.credited_leaves:
                order += plan.credited_leaves
                sizes.append(self.sums["sizes", i])
            first = 0
            for leaf in tiles.leaves:
                last = first + math.prod(leaves[leaf].shape)
                flat[leaf] = self.sums["matrices", i][first:last]
                first = last
            for leaf, row in plan.vector_starts.items():
                flat[leaf] = self.sums["vectors", i][row : row + leaves[leaf].shape[0]]
        flat |= {leaf: Z for (kind, leaf), Z in self.sums.items() if kind == "rows"}
        votes = {
            leaf.name: flat[i].reshape(leaf.shape) if i in flat else mx.zeros(leaf.shape, mx.int32)
            for i, leaf in enumerate(leaves)
        }
        places = [1 + order.index(i) if i in order else 0 for i in range(len(leaves))]
        return votes, mx.concatenate(sizes)[mx.array(places)]

    def _run_stage(self, i: int, chunk: TapeChunk, x_credit: mx.array | None) -> mx.array | None:
        """Carries credit back through one stage; returns that of register x, if it has any."""
        stage, plan, T = self.stages[i], self.stages[i].plan, chunk.T
        window = slice(chunk.first, chunk.first + T)
        inputs = {
            "weights": self.prepared[i], "sizes": mx.array([T, self.P], mx.int32),
            "scales": self.scales, "matrices": self.matrices[i],
            "tape": chunk.tapes[i], "handed": x_credit,
            "carried": self.state_credit.get(i, mx.zeros(self.width, mx.int32)),
        }  # fmt: skip
        for name in ("tokens", "targets", "words", "errors"):
            array = getattr(self, name)
            inputs[name] = None if array is None else pad_flat(array[:, window])
        outputs = self._launch(stage, inputs, T)
        if plan.stateful:
            self.state_credit[i] = outputs["carried_on"]
        self._add_sums(i, plan, outputs)
        if stage.tiles.leaves:
            self._add_matrices(i, T, chunk.tapes[i], outputs["credits"])
        for step in plan.steps:
            if step.op.kind in ("embed", "features"):
                self._add_rows(plan, step.op, chunk, outputs["credits"])
        return outputs["handed_on"] if plan.returns_x else None

    def _launch(
        self, stage: BackwardStage, inputs: Mapping[str, mx.array | None], T: int
    ) -> dict[str, mx.array]:
        """The outputs of a stage's backward kernel, by name."""
        plan, source, M = stage.plan, stage.backward, self.M
        assert source is not None
        shapes: OutputShapes = {
            "credits": ((self.groups * T * plan.credit_rows * M,), mx.int8),
            "vectors": ((self.groups, plan.vector_rows * M), mx.int32),
            "magnitudes": ((self.groups, len(plan.credited_leaves)), mx.int64),
            "handed_on": ((T * self.width,), mx.int32),
            "carried_on": ((self.width,), mx.int32),
            "scratch": ((self.groups * plan.backward_scratch,), mx.int8),
        }
        threads = 32 * plan.simdgroups
        outputs = self.launcher(
            source, [array for name in source.inputs if (array := inputs[name]) is not None],
            [shapes[name] for name in source.outputs],
            (self.groups * threads, 1, 1), (threads, 1, 1),
        )  # fmt: skip
        return dict(zip(source.outputs, outputs, strict=True))

    def _add(self, kind: str, i: int, sums: mx.array) -> None:
        key = kind, i
        self.sums[key] = self.sums[key] + sums if key in self.sums else sums

    def _add_sums(self, i: int, plan: BackwardPlan, outputs: Mapping[str, mx.array]) -> None:
        """Adds the sizes of all leaves and the votes of vectors, which threadgroups have summed."""
        if plan.credited_leaves:
            self._add("sizes", i, outputs["magnitudes"].sum(axis=0))
        if plan.vector_starts:
            adjacent = self.dialect.adjacent
            sums = outputs["vectors"].reshape(-1, plan.vector_rows // adjacent, self.M, adjacent)
            self._add("vectors", i, sums.sum(axis=(0, 2)).reshape(-1))

    def _add_matrices(self, i: int, T: int, tape: mx.array | None, credits: mx.array) -> None:
        """Adds the votes of a stage's matrices."""
        plan, (_, tiles, votes) = self.stages[i].plan, self.stages[i].tiles
        terms = self.groups * T * self.M
        parts, share = split_terms(terms, len(tiles), self.dialect.vote_groups)
        sizes = [terms, share, votes, plan.tape_rows, plan.credit_rows]
        assert tape is not None
        (Z,) = launch_counts(
            self.launcher, self.kernels.matrices, [tape, credits, tiles], sizes,
            [((parts, votes), mx.int32)], len(tiles) * VOTE_THREADS, parts,
        )  # fmt: skip
        self._add("matrices", i, Z.sum(axis=0))

    def _add_rows(self, plan: BackwardPlan, op: Op, chunk: TapeChunk, credits: mx.array) -> None:
        """Adds the votes of an embedding, or of sparse features."""
        window = slice(chunk.first, chunk.first + chunk.T)
        lists, active, first = (*op.numbers, 1, 1, 0)[:3] if op.numbers else (1, 1, 0)
        if op.kind == "embed":
            rows = self.tokens[:, window].reshape(-1)
        else:
            rows = self.features[:, window, first : first + lists * active].reshape(-1)
        order = mx.argsort(rows)
        # The place of each entry's credit: the row of the launch, the member, the list.
        entry, place = order // (lists * active), order % (lists * active) // active
        p, t = entry // chunk.T, entry % chunk.T
        entries = ((p // self.M * chunk.T + t) * self.M + p % self.M) * lists + place
        Z = sum_rows(
            self.launcher, self.kernels.rows, [credits], rows[order], entries.astype(mx.int32),
            self.program.leaves[op.leaf].shape,
            [plan.credit_rows, plan.credit_starts[op.leaf], lists],
        )  # fmt: skip
        self._add("rows", op.leaf, Z)


class BackwardStage:
    """A stage's plan, its kernels forward and backward, and the tiles of its matrices' votes."""

    def __init__(self, plan: BackwardPlan, dialect: Dialect) -> None:
        self.plan = plan
        self.forward = TapeStageWriter(plan, dialect).source()
        writer = BackwardWriter(plan, dialect)
        self.backward = writer.source() if plan.steps and writer.has_results else None
        self.tiles = vote_tiles(plan)


class VoteTiles(NamedTuple):
    """The votes of a stage's matrices."""

    leaves: list[int]
    tiles: mx.array  # int32 [tiles, (leaf, row, column, O, K, offset, rows of x and of credit)]
    votes: int  # of all matrices


def vote_tiles(plan: BackwardPlan) -> VoteTiles:
    """Tiles of VOTE_SIDE x VOTE_SIDE votes."""
    tiles: list[tuple[int, ...]] = []
    leaves, offset = list[int](), 0
    for step in plan.steps:
        if step.op.kind not in BACKWARD_PRODUCTS:
            continue
        O, K = plan.program.leaves[step.op.leaf].shape
        rows = plan.tape_starts[step.values[0]], plan.credit_starts[step.op.leaf]
        corners = product(range(0, O, VOTE_SIDE), range(0, K, VOTE_SIDE))
        tiles += [(step.op.leaf, row, column, O, K, offset, *rows) for row, column in corners]
        leaves.append(step.op.leaf)
        offset += O * K
    return VoteTiles(leaves, mx.array(np.array(tiles, np.int32)), offset)
