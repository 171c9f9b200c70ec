"""Errors carried back on a GPU: the launches there and back, and the votes counted afterwards.

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

from eggroll.engines.gpu.backward_kernels import CarryWriter, TapeStageWriter
from eggroll.engines.gpu.backward_plan import CarryPlan
from eggroll.engines.gpu.credit import row_shares
from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect, Source
from eggroll.engines.gpu.launch import Launcher, Outputs, Pace, pad_flat, split_terms
from eggroll.engines.gpu.plan import StagePlan
from eggroll.engines.gpu.votes import carry_kernels
from eggroll.spec.backward import Backward
from eggroll.spec.program import Batch, Op


class Tiles(NamedTuple):
    """The votes of a stage's matrices: their leaves, the kernel's tiles, and how many votes."""

    leaves: list[int]
    tiles: mx.array
    votes: int


class CarryStage:
    """A stage's plan, its kernels there and back, and its vote tiles."""

    def __init__(self, plan: CarryPlan, dialect: Dialect) -> None:
        self.plan = plan
        self.there = TapeStageWriter(plan, dialect).source()
        back = CarryWriter(plan, dialect)
        self.back = back.source() if plan.steps and back.leaves_something else None
        self.tiles = vote_tiles(plan)


def vote_tiles(plan: CarryPlan) -> Tiles:
    """Tiles of VOTE_SIDE x VOTE_SIDE: leaf, row, column, O, K, offset, rows of x and of credit."""
    tiles: list[tuple[int, ...]] = []
    leaves, offset = list[int](), 0
    for step in plan.steps:
        if step.op.kind not in ("linear", "score"):
            continue
        O, K = plan.program.leaves[step.op.leaf].shape
        rows = plan.tape[step.read[0]], plan.credits[step.op.leaf]
        corners = product(range(0, O, VOTE_SIDE), range(0, K, VOTE_SIDE))
        tiles += [(step.op.leaf, row, column, O, K, offset, *rows) for row, column in corners]
        leaves.append(step.op.leaf)
        offset += O * K
    return Tiles(leaves, mx.array(np.array(tiles, np.int32)), offset)


class Chunk(NamedTuple):
    """Some tokens of the members, and what the way there left of them: arrays by stage."""

    first: int
    T: int
    tapes: list[mx.array | None]


class CarryRun:
    """Carries the errors of P members back, tokens chunk by chunk, and adds up votes and sizes.

    matrices: of each stage, those that send credit back, transposed and packed; words: [P, T].
    """

    def __init__(
        self,
        launcher: Launcher,
        pace: Pace,
        dialect: Dialect,
        stages: Sequence[CarryStage],
        prepared: Sequence[mx.array],
        matrices: Sequence[mx.array],
        back: Backward,
        batch: Batch,
        words: mx.array,
    ) -> None:
        self.launcher, self.pace, self.dialect, self.stages = launcher, pace, dialect, stages
        self.prepared, self.matrices, self.features = prepared, matrices, batch.features
        self.scales = pad_flat(mx.array(back.scales, mx.int32))
        self.tokens, self.targets = batch.tokens.astype(mx.int32), batch.targets.astype(mx.int32)
        self.words = words
        self.program, self.M = stages[0].plan.program, stages[0].plan.members
        self.P = batch.size[0]
        self.groups = -(-self.P // self.M)
        self.kernels = carry_kernels(dialect, self.M)
        self.carried: dict[int, mx.array] = {}  # credit of a stage's state, as later rows left it
        # Sums so far: the kernel's name and the stage, or the leaf -> flat votes, or sizes.
        self.sums: dict[tuple[str, int], mx.array] = {}

    @property
    def lanes(self) -> int:
        """Members of whole threadgroups."""
        return self.groups * self.M

    def found(self) -> tuple[dict[str, mx.array], mx.array]:
        """Z per leaf, and int64 [leaves]: zeros for a leaf without credit."""
        leaves, found = self.program.leaves, dict[int, mx.array]()
        order, sizes = list[int](), [mx.zeros(1, mx.int64)]
        for i, (plan, tiles) in enumerate((stage.plan, stage.tiles) for stage in self.stages):
            if plan.credited:
                order += plan.credited
                sizes.append(self.sums["sizes", i])
            first = 0
            for leaf in tiles.leaves:
                last = first + math.prod(leaves[leaf].shape)
                found[leaf] = self.sums["matrices", i][first:last]
                first = last
            for leaf, row in plan.vectors.items():
                found[leaf] = self.sums["vectors", i][row : row + leaves[leaf].shape[0]]
        found |= {leaf: Z for (kind, leaf), Z in self.sums.items() if kind == "rows"}
        Z = {
            leaf.name: found[i].reshape(leaf.shape)
            if i in found
            else mx.zeros(leaf.shape, mx.int32)
            for i, leaf in enumerate(leaves)
        }
        places = [1 + order.index(i) if i in order else 0 for i in range(len(leaves))]
        return Z, mx.concatenate(sizes)[mx.array(places)]

    @property
    def width(self) -> int:
        """Elements of all threadgroups' activations of a row."""
        return self.groups * self.dialect.tile_bytes(self.program.width, self.M)

    def outputs(self, T: int, plan: StagePlan) -> Outputs:
        """Shape and type of the tape that a stage leaves of T tokens."""
        assert isinstance(plan, CarryPlan)
        return {"tape": ((self.groups * T * plan.tape_rows * self.M,), mx.int8)}

    def back(self, chunk: Chunk) -> None:
        """Carries back what the chunks after this one left, and this one's errors."""
        handed: mx.array | None = None
        for i, stage in reversed(list(enumerate(self.stages))):
            if stage.back:
                self.pace.begin(stage.back)
                handed = self._stage(i, chunk, handed)
                left = [*self.sums.values(), *self.carried.values()]
                left += [] if handed is None else [handed]
                # The way back and the votes are twice the products of the way there.
                self.pace.launched(left, 2 * self.P * chunk.T * stage.plan.macs)

    def _stage(self, i: int, chunk: Chunk, handed: mx.array | None) -> mx.array | None:
        """One stage; gives the credit of register x that it hands back."""
        stage, plan, T = self.stages[i], self.stages[i].plan, chunk.T
        at = slice(chunk.first, chunk.first + T)
        given = {
            "weights": self.prepared[i], "sizes": mx.array([T, self.P], mx.int32),
            "scales": self.scales, "matrices": self.matrices[i],
            "tokens": pad_flat(self.tokens[:, at]), "targets": pad_flat(self.targets[:, at]),
            "words": pad_flat(self.words[:, at]), "tape": chunk.tapes[i], "handed": handed,
            "carried": self.carried.get(i, mx.zeros(self.width, mx.int32)),
        }  # fmt: skip
        left = self._launched(stage, given, T)
        if plan.stateful:
            self.carried[i] = left["carried_on"]
        self._add_sums(i, plan, left)
        if stage.tiles.leaves:
            self._add_matrices(i, T, chunk.tapes[i], left["credits"])
        for step in plan.steps:
            if step.op.kind in ("embed", "features"):
                self._add_rows(plan, step.op, chunk, left["credits"])
        return left["handed_on"] if plan.hands_on else None

    def _launched(
        self, stage: CarryStage, given: Mapping[str, mx.array | None], T: int
    ) -> dict[str, mx.array]:
        """What the way back through a stage leaves, by name."""
        plan, source, M = stage.plan, stage.back, self.M
        assert source is not None
        shapes: Outputs = {
            "credits": ((self.groups * T * plan.credit_rows * M,), mx.int8),
            "vectors": ((self.groups, plan.vector_rows * M), mx.int32),
            "magnitudes": ((self.groups, len(plan.credited)), mx.int64),
            "handed_on": ((T * self.width,), mx.int32),
            "carried_on": ((self.width,), mx.int32),
            "scratch": ((self.groups * plan.back_bytes,), mx.int8),
        }
        threads = 32 * plan.simdgroups
        inputs = [array for name in source.inputs if (array := given[name]) is not None]
        made = self.launcher(
            source, inputs, [shapes[name] for name in source.outputs],
            (self.groups * threads, 1, 1), (threads, 1, 1),
        )  # fmt: skip
        return dict(zip(source.outputs, made, strict=True))

    def _add(self, kind: str, i: int, sums: mx.array) -> None:
        key = kind, i
        self.sums[key] = self.sums[key] + sums if key in self.sums else sums

    def _add_sums(self, i: int, plan: CarryPlan, left: Mapping[str, mx.array]) -> None:
        """Sizes of all leaves, and the votes of vectors, which threadgroups have summed."""
        if plan.credited:
            self._add("sizes", i, left["magnitudes"].sum(axis=0))
        if plan.vectors:
            beside = self.dialect.beside
            each = left["vectors"].reshape(-1, plan.vector_rows // beside, self.M, beside)
            self._add("vectors", i, each.sum(axis=(0, 2)).reshape(-1))

    def _add_matrices(self, i: int, T: int, tape: mx.array | None, credits: mx.array) -> None:
        plan, (_, tiles, votes) = self.stages[i].plan, self.stages[i].tiles
        terms = self.groups * T * self.M
        parts, share = split_terms(terms, len(tiles))
        sizes = [terms, share, votes, plan.tape_rows, plan.credit_rows]
        assert tape is not None
        (Z,) = self._launch(
            self.kernels.matrices, [tape, credits, tiles], sizes, (parts, votes),
            len(tiles) * VOTE_THREADS, parts,
        )  # fmt: skip
        self._add("matrices", i, Z.sum(axis=0))

    def _add_rows(self, plan: CarryPlan, op: Op, chunk: Chunk, credits: mx.array) -> None:
        """Votes of an embedding, or of sparse features."""
        at = slice(chunk.first, chunk.first + chunk.T)
        lists, active, first = (*op.numbers, 1, 1, 0)[:3] if op.numbers else (1, 1, 0)
        if op.kind == "embed":
            named = self.tokens[:, at]
        else:
            named = self.features[:, at, first : first + lists * active]
        (V, D), named = self.program.leaves[op.leaf].shape, named.reshape(-1)
        order = mx.argsort(named)
        # Of each entry, where its credit is: the row of the launch, the member, the list.
        entry, place = order // (lists * active), order % (lists * active) // active
        p, t = entry // chunk.T, entry % chunk.T
        credited = ((p // self.M * chunk.T + t) * self.M + p % self.M) * lists + place
        parts, share = row_shares(named.size, V * D)
        sizes = [V, D, named.size, share, plan.credit_rows, plan.credits[op.leaf], lists]
        (Z,) = self._launch(
            self.kernels.rows, [credits, named[order], credited.astype(mx.int32)], sizes,
            (parts, V, D), 32 * V * -(-D // 32), parts,
        )  # fmt: skip
        self._add("rows", op.leaf, Z.sum(axis=0))

    def _launch(
        self,
        source: Source,
        given: Sequence[mx.array],
        sizes: Sequence[int],
        shape: tuple[int, ...],
        threads: int,
        parts: int,
    ) -> list[mx.array]:
        grid = -(-threads // VOTE_THREADS) * VOTE_THREADS, parts, 1
        inputs = [pad_flat(a) for a in given] + [mx.array(list(sizes), mx.int32)]
        return self.launcher(source, inputs, [(shape, mx.int32)], grid, (VOTE_THREADS, 1, 1))
