"""Token credit on a GPU, once the tokens are scored: credits, their sums with the inputs, votes.

Letters: P members, N pairs, T tokens, V vocabulary, K inputs of a leaf, Z votes; lanes are the
pairs of whole threadgroups, N or a few more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from eggroll.credit import CreditKind, CreditNoise
from eggroll.engines.gpu.counts import split_terms
from eggroll.engines.gpu.credit_plan import (
    CreditPlan,
    credit_list,
    row_shares,
    trace_work,
    vector_work,
)
from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS
from eggroll.engines.gpu.launch import LEAST, Launcher, Outputs, Shape, pad_flat
from eggroll.engines.gpu.plan import StagePlan
from eggroll.engines.gpu.source import Source
from eggroll.engines.gpu.votes import CreditKernels
from eggroll.noise import Slices
from eggroll.program import NO_ROWS, Rows


class CreditWork:
    """The work that follows the stages of these plans, as lists that kernels take."""

    def __init__(self, plans: Sequence[CreditPlan], kernels: CreditKernels) -> None:
        self.kernels = kernels
        self.plans, self.program, self.crediting = plans, plans[0].program, plans[0].crediting
        self.credits = credit_list(plans)
        traced = {i: plan for i, plan in enumerate(plans) if plan.traced}
        self.traces = {i: trace_work(p, self.credits.of, VOTE_SIDE) for i, p in traced.items()}
        vectors = vector_work(self.program, self.crediting, self.credits.of)
        self.credit_rows, self.vector_list = as_int32(self.credits.work), as_int32(vectors)
        self.trace_lists = {i: as_int32(work.traces) for i, work in self.traces.items()}
        self.tile_lists = {i: as_int32(work.tiles) for i, work in self.traces.items()}
        self.vectors = len(vectors)


def as_int32(rows: Sequence[tuple[int, ...]]) -> mx.array:
    return mx.array(np.array(rows, np.int32))


class CreditRun:
    """Collects the stages' outputs for some pairs, tokens chunk by chunk, and counts their votes.

    tokens: int32 [P, T] of all chunks, and rows what is shown beside them.
    """

    def __init__(
        self,
        launcher: Launcher,
        work: CreditWork,
        noise: Slices,
        credit_noise: CreditNoise,
        tokens: mx.array,
        rows: Rows = NO_ROWS,
    ) -> None:
        self.launcher, self.work = launcher, work
        self.noise, self.credit_noise = noise, credit_noise
        self.program, self.crediting, self.credits = work.program, work.crediting, work.credits
        self.tokens = tokens.astype(mx.int32)
        self.features = None if rows.features is None else rows.features[0::2]
        P, self.T = tokens.shape
        self.N, M = P // 2, work.plans[0].members
        self.lanes = -(-P // M) * M // 2
        self.tapes: list[tuple[int, int, dict[int, mx.array]]] = []  # first token, tokens, stages
        self.projections: list[mx.array] = []  # x B, int32 [products, T, lanes]
        self.readout: mx.array | None = None

    def outputs(self, T: int, plan: StagePlan) -> Outputs:
        """Shapes and types of what a stage leaves of T tokens."""
        assert isinstance(plan, CreditPlan)
        K = plan.sizes[plan.readout.inputs[0]] if plan.readout else 0
        return {
            "tape": ((self.lanes * T * plan.tape_rows,), mx.int8),
            "projection": ((len(plan.traced), T, self.lanes), mx.int32),
            "read": ((self.N, T, K), mx.int8),
            "moved": ((self.N, T, 2), mx.int32),
        }

    def add(self, first: int, T: int, got: Sequence[dict[str, mx.array]]) -> None:
        """Takes what the stages left of tokens first .. first + T - 1; counts their readout."""
        self.tapes.append((first, T, {i: g["tape"] for i, g in enumerate(got) if "tape" in g}))
        new = [g["projection"].reshape(-1, T, self.lanes) for g in got if "projection" in g]
        self.projections += [mx.concatenate(new)] if new else []
        for plan, left in zip(self.work.plans, got, strict=True):
            if plan.readout:
                part = self._read(self.program.leaves[plan.readout.leaf].shape, left)
                self.readout = part if self.readout is None else self.readout + part

    def votes(self, scores: mx.array) -> dict[str, mx.array]:
        """Z int32 of every leaf. scores: int16 [P, T] of all tokens, or int32 in their place."""
        credits, sums = self._weigh(scores)
        found: dict[int, mx.array] = {}
        for stage in self.work.traces:
            found |= self._matrices(stage, credits)
        if self.work.vectors:
            found |= self._vectors(sums)
        out = {}
        for i, leaf in enumerate(self.program.leaves):
            kind = self.crediting.kinds[i]
            if kind == CreditKind.READOUT:
                assert self.readout is not None
                found[i] = self.readout
            elif kind == CreditKind.TOKENS:
                found[i] = self._embedded(i, credits)
            elif kind == CreditKind.FEATURES:
                found[i] = self._featured(i, credits)
            z = found[i] if i in found else mx.zeros(math.prod(leaf.shape), mx.int32)
            out[leaf.name] = z.reshape(leaf.shape)
        return out

    def _weigh(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        """Credits int8 [credits, T, lanes] of tokens, and their clipped sums [credits, lanes]."""
        C, words = len(self.credits.work), self.credit_noise.signs.shape[2]
        sizes = [C, self.T, self.N, words, self.lanes, self.crediting.credit_shift]
        sizes += [1 << (8 - self.program.score_bits), self.crediting.unit_shift]
        empty = mx.zeros(LEAST, mx.int32)
        projections = mx.concatenate(self.projections, axis=1) if self.projections else empty
        kernels, kernel = self.work.kernels, self.work.kernels.credits
        if self.crediting.group:
            sizes, kernel = [*sizes, self.crediting.group], kernels.of_groups
        elif scores.dtype != mx.int16:
            kernel = kernels.of_values
        credits, sums = self._launch(
            kernel,
            [
                scores,
                self.tokens,
                self.credit_noise.signs,
                self.noise.starts,
                projections,
                self.noise.table,
            ],
            [self.work.credit_rows],
            sizes,
            [((C, self.T, self.lanes), mx.int8), ((C, self.lanes), mx.int8)],
            C * self.lanes,
        )
        return credits, sums

    def _matrices(self, stage: int, credits: mx.array) -> dict[int, mx.array]:
        """Leaf -> flat Z of the matrices of a stage."""
        work, plan = self.work.traces[stage], self.work.plans[stage]
        total: mx.array | None = None
        for first, T, tapes in self.tapes:
            sizes = [len(work.traces), work.inputs, self.N, T, first, self.T, plan.tape_rows]
            sizes += [plan.members // 8, self.lanes // 4]
            (sums,) = self._launch(
                self.work.kernels.traces, [tapes[stage], credits], [self.work.trace_lists[stage]],
                sizes,
                [((self.N * work.inputs,), mx.int32)], work.fours * self.lanes,
            )  # fmt: skip
            total = sums if total is None else total + sums
        assert total is not None
        parts, share = split_terms(self.N, len(work.tiles))
        (Z,) = self._launch(
            self.work.kernels.matrices, [self.noise.table, self.noise.starts, total],
            [self.work.tile_lists[stage]],
            [self.N, share, work.votes, 4 + self.crediting.credit_shift],
            [((parts, work.votes), mx.int32)], len(work.tiles) * VOTE_THREADS, parts,
        )  # fmt: skip
        sizes = [math.prod(self.program.leaves[leaf].shape) for leaf in work.leaves]
        ends = np.cumsum(sizes)[:-1].tolist()
        return dict(zip(work.leaves, mx.split(Z.sum(axis=0), ends), strict=True))

    def _vectors(self, sums: mx.array) -> dict[int, mx.array]:
        """Leaf -> Z of the vectors; sums int8 [credits, lanes]."""
        count = self.work.vectors
        parts, share = split_terms(self.N, -(-count // VOTE_THREADS))
        (Z,) = self._launch(
            self.work.kernels.vectors, [self.noise.table, self.noise.starts, sums],
            [self.work.vector_list], [self.N, share, count, self.lanes],
            [((parts, count), mx.int32)], count, parts,
        )  # fmt: skip
        leaves = [i for i, kind in enumerate(self.crediting.kinds) if kind == CreditKind.SCALAR]
        ends = np.cumsum([self.program.leaves[i].shape[0] for i in leaves])[:-1].tolist()
        return dict(zip(leaves, mx.split(Z.sum(axis=0), ends), strict=True))

    def _embedded(self, leaf: int, credits: mx.array) -> mx.array:
        """Z [V, D] of an embedding."""
        begin = self.credits.of[leaf] * self.T * self.lanes
        given = [self.noise.table, self.noise.starts[leaf], credits]
        rest = [self.T, self.lanes, begin]
        shape = self.program.leaves[leaf].shape
        return self._rows(self.work.kernels.embedded, given, self.tokens[0::2], shape, rest)

    def _featured(self, leaf: int, credits: mx.array) -> mx.array:
        """Z [count, D] of sparse features."""
        op = next(op for stage in self.program.stages for op in stage.ops if op.leaf == leaf)
        lists, active, first, _ = op.numbers
        indices, begin = lists * active, self.credits.of[leaf] * self.T * self.lanes
        assert self.features is not None
        given = [self.noise.table, self.noise.starts[leaf], credits]
        rest = [self.T, self.lanes, begin, indices, active, int(self.crediting.nodes)]
        named, shape = self.features[..., first : first + indices], self.program.leaves[leaf].shape
        return self._rows(self.work.kernels.featured, given, named, shape, rest)

    def _read(self, shape: tuple[int, ...], left: dict[str, mx.array]) -> mx.array:
        """Z [V, K] of the readout."""
        return self._rows(self.work.kernels.read, [left["read"]], left["moved"], shape, [])

    def _rows(
        self,
        source: Source,
        given: Sequence[mx.array],
        rows: mx.array,
        shape: tuple[int, ...],
        rest: Sequence[int],
    ) -> mx.array:
        """Sums of entries by the rows that they name; negative ones name none."""
        (V, K), rows = shape, rows.reshape(-1)
        order = mx.argsort(rows)
        tasks = V * -(-K // 32)
        parts, share = row_shares(rows.size, V * K)
        (Z,) = self._launch(
            source, [*given, rows[order], order.astype(mx.int32)], [],
            [V, K, rows.size, share, *rest], [((parts, V, K), mx.int32)], 32 * tasks, parts,
        )  # fmt: skip
        return Z.sum(axis=0)

    def _launch(
        self,
        source: Source,
        given: Sequence[mx.array],
        lists: Sequence[mx.array],
        sizes: Sequence[int],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        threads: int,
        parts: int = 1,
    ) -> list[mx.array]:
        grid = -(-threads // VOTE_THREADS) * VOTE_THREADS, parts, 1
        inputs = [pad_flat(a) for a in (*given, *lists)] + [mx.array(list(sizes), mx.int32)]
        return self.launcher(source, inputs, outputs, grid, (VOTE_THREADS, 1, 1))
