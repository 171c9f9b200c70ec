"""Base of the engines on GPUs: a group of members runs all T tokens of a stage in one launch.

Letters: P members, N pairs, T tokens, D width, V vocabulary, M members of a threadgroup, which CUDA
calls a block.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx

from eggroll.credit import Crediting, CreditNoise
from eggroll.engines.base import Engine
from eggroll.engines.gpu.counts import split_terms, vote_work
from eggroll.engines.gpu.credit import CreditRun, CreditWork, as_int32, check_credit
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.credit_stage import CreditStageWriter
from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect
from eggroll.engines.gpu.launch import Launcher, Outputs, check_noise, host_extreme, pad_flat
from eggroll.engines.gpu.launch_size import Limits, launch_size, tape_members
from eggroll.engines.gpu.plan import PRODUCTS, StagePlan, padded
from eggroll.engines.gpu.source import Source
from eggroll.engines.gpu.stage import RESULTS, Result, StageWriter
from eggroll.engines.gpu.votes import credit_kernels, vote_sources
from eggroll.noise import Slices
from eggroll.program import NO_ROWS, Program, Rows, Stage, Weights


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: Source


class StagedEngine(Engine):
    """An engine whose kernels are written from the plans of a program's stages.

    launcher runs them; members fixes M (0: chosen by the population).
    """

    group_sizes: ClassVar[tuple[int, ...]]  # M that there may be, largest first
    launch_macs: ClassVar[int]  # multiply-adds of one launch at most

    def __init__(
        self,
        program: Program,
        threads: int,
        block_tokens: int,
        dialect: Dialect,
        launcher: Launcher,
        members: int,
    ) -> None:
        super().__init__(program, threads, block_tokens)
        self.dialect, self.launcher, self.members = dialect, launcher, members
        self._members: dict[tuple[int, int], int] = {}
        self._kernels: dict[tuple[int, int, int, Result], list[Kernel]] = {}
        self._credit: dict[tuple[int, int, Crediting], tuple[CreditWork, list[Source]]] = {}

    @abstractmethod
    def plans(self, members: int, rank: int) -> Sequence[StagePlan]:
        """A plan per stage for threadgroups of `members`; rank 0 is without noise."""

    @abstractmethod
    def credit_plans(self, crediting: Crediting, members: int) -> Sequence[CreditPlan]:
        """The same where pairs are credited."""

    @abstractmethod
    def choose_members(self, P: int, rank: int) -> int:
        """M that suits a population of P."""

    @abstractmethod
    def memory(self) -> int:
        """Bytes that the arrays between two stages may take."""

    @abstractmethod
    def packed(self, w: mx.array) -> mx.array:
        """A matrix [O, K] int8 as the products read it, flat, with zeros up to multiples of PAD."""

    def table_of(self, noise: Slices) -> mx.array:
        """The noise table as kernels read it."""
        return pad_flat(noise.table)

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        return [self._packed_stage(stage, weights) for stage in self.program.stages]

    def _packed_stage(self, stage: Stage, weights: Weights) -> mx.array:
        parts = [mx.zeros(padded(1), mx.int8)] * all(op.leaf < 0 for op in stage.ops)
        for op in stage.ops:
            if op.leaf >= 0:
                w = weights[self.program.leaves[op.leaf].name]
                flat = self.packed(w) if op.kind in PRODUCTS else w.reshape(-1)
                parts.append(pad_flat(flat, padded(flat.size)))
        return mx.concatenate(parts)

    def group_members(self, P: int, rank: int) -> int:
        """M for a population of P."""
        if (P, rank) not in self._members:
            self._members[P, rank] = self.members or self.choose_members(P, rank)
        return self._members[P, rank]

    def kernels(self, members: int, noise: Slices | None, result: Result) -> list[Kernel]:
        """Plan and source of every stage, for threadgroups of `members`."""
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, result)
        if key not in self._kernels:
            self._kernels[key] = [
                Kernel(plan, StageWriter(plan, self.dialect, result, shift=shift).source())
                for plan in self.plans(members, rank)
            ]
        return self._kernels[key]

    def credit_kernels(
        self, members: int, shift: int, crediting: Crediting
    ) -> tuple[CreditWork, list[Source]]:
        """The work that follows the stages, and a source for each stage."""
        key = (members, shift, crediting)
        if key not in self._credit:
            plans = self.credit_plans(crediting, members)
            work = CreditWork(plans, credit_kernels(self.dialect))
            writers = (CreditStageWriter(plan, self.dialect, shift=shift) for plan in plans)
            self._credit[key] = work, [writer.source() for writer in writers]
        return self._credit[key]

    def launch_size(self, P: int, T: int, rank: int) -> tuple[int, int]:
        """Members (even) and tokens of one launch."""
        plans = [plan for m in self.group_sizes for plan in self.plans(m, rank)]
        return launch_size(plans, self._limits, P, T)

    def credit_launch_size(self, crediting: Crediting, P: int, T: int) -> tuple[int, int]:
        """The same where pairs are credited.

        All tokens of a member stay until its scores are known, so its tape bounds the members; in
        time the tokens give way first, as in `launch_size`.
        """
        each = [self.credit_plans(crediting, m) for m in self.group_sizes]
        most = tape_members(each, self._limits, T)
        return self.launch_size(min(P, most), T, 0 if crediting.nodes else 1)

    @property
    def _limits(self) -> Limits:
        passed = 2 * self.dialect.tile_bytes(self.program.width, 1)
        return Limits(self.memory(), self.launch_macs, passed)

    def evaluate(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        (scores,), after = self._launches("scores", prepared, noise, tokens, targets, state)
        return scores, after

    def likelihoods(
        self,
        prepared: Any,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, mx.array]:
        (totals, hits), after = self._launches(
            "likelihoods", prepared, None, tokens, targets, state
        )
        return totals, hits, after

    def logits(
        self, prepared: Any, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        tokens = tokens[:, None]
        self._check(None, tokens, tokens, state)
        (logits,), after = self._run("logits", prepared, None, tokens, tokens, state)
        return logits, after

    def _launches(
        self,
        result: Result,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
    ) -> tuple[list[mx.array], mx.array]:
        """The head's results for P members and T tokens, each [P, T], and the new state."""
        self._check(noise, tokens, targets, state)
        (P, T), rank = tokens.shape, noise.rank if noise else 0
        members, columns = self.launch_size(P, T, rank)
        found, states = [], []
        for m in range(0, P, members):
            rows = slice(m, m + members)
            pairs = slice(m // 2, (m + members) // 2)
            part = noise._replace(starts=noise.starts[:, pairs]) if noise else None
            after, row = state[rows], []
            for t in range(0, T, columns):
                at = (rows, slice(t, t + columns))
                left, after = self._run(result, prepared, part, tokens[at], targets[at], after)
                row.append(left)
            found.append([mx.concatenate(list(a), axis=1) for a in zip(*row, strict=True)])
            states.append(after)
        whole = [mx.concatenate(list(a)) for a in zip(*found, strict=True)]
        return whole, mx.concatenate(states)

    def _check(
        self, noise: Slices | None, tokens: mx.array, targets: mx.array, state: mx.array
    ) -> None:
        """Raises ValueError for what a kernel would read beyond an array."""
        P, V, size = tokens.shape[0], self.program.vocabulary, self.program.state_size
        if targets.shape != tokens.shape or tokens.ndim != 2 or tokens.size == 0:
            raise ValueError(f"tokens {tokens.shape} and targets {targets.shape} must be [P, T]")
        if state.shape != (P, size):
            raise ValueError(f"state is {state.shape}, not [P, state_size] = {(P, size)}")
        for name, array in (("tokens", tokens), ("targets", targets)):
            if host_extreme(mx.min, array) < 0 or host_extreme(mx.max, array) >= V:
                raise ValueError(f"{name} must be in 0..{V - 1}")
        if noise:
            check_noise(self.program, noise, P)

    def _run(
        self,
        result: Result,
        prepared: list[mx.array],
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
    ) -> tuple[list[mx.array], mx.array]:
        """One launch per stage. The head's results, and the new state."""
        (P, T), M = tokens.shape, self.group_members(tokens.shape[0], noise.rank if noise else 0)
        given = self.given_of(noise, tokens, targets, [T, P, P // 2])
        made = self.outputs_of(P, T, -(-P // M) * M)
        kernels = self.kernels(M, noise, result)
        got, after = self._stages(kernels, prepared, given, made, noise, state)
        return [got[-1][name] for name in RESULTS[result]], after

    def _stages(
        self,
        kernels: Sequence[tuple[StagePlan, Source]],
        prepared: list[mx.array],
        given: dict[str, mx.array],
        made: Outputs,
        noise: Slices | None,
        state: mx.array,
        signs: mx.array | None = None,
        left: Callable[[StagePlan], Outputs] = lambda _: {},
    ) -> tuple[list[dict[str, mx.array]], mx.array]:
        """One launch per stage. Outputs of each stage by name, and the new state.

        given: inputs by name; made, left: outputs of all stages, and of one for token credit.
        """
        P, D = state.shape[0], self.program.width
        states, got = [mx.zeros((P, 0), mx.int8)], list[dict[str, mx.array]]()
        for (plan, source), weights in zip(kernels, prepared, strict=True):
            at, threads = plan.stage.state, 32 * plan.simdgroups
            leaves, groups = mx.array(list(plan.layout) or [0]), -(-P // plan.members)
            starts = noise.starts[leaves] if noise else mx.zeros(1, mx.int32)
            given |= {"weights": weights, "starts": pad_flat(starts)}
            given |= {"signs": pad_flat(signs[leaves])} if signs is not None else {}
            given["state"] = pad_flat(state[:, at : at + D])
            shapes = made | left(plan) | {"scratch": ((groups * plan.scratch_bytes,), mx.int8)}
            outputs = self.launcher(
                source,
                [given[name] for name in source.inputs],
                [shapes[name] for name in source.outputs],
                (groups * threads, 1, 1),
                (threads, 1, 1),
            )
            got.append(dict(zip(source.outputs, outputs, strict=True)))
            if plan.passes_on:
                given["passed"] = got[-1]["passed_on"]
            if at >= 0:
                states.append(got[-1]["state_after"])
        return got, mx.concatenate(states, axis=1)

    def credit(
        self,
        prepared: Any,
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        self._check(noise, tokens, targets, state)
        P, T = tokens.shape
        check_credit(self.program, noise.rank, credit_noise, crediting, P, T)
        members, columns = self.credit_launch_size(crediting, P, T)
        scores, states, total = [], [], dict[str, mx.array]()
        for m in range(0, P, members):
            mine, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            some = noise._replace(starts=noise.starts[:, pairs])
            bits = CreditNoise(credit_noise.signs[:, pairs], credit_noise.draws[pairs])
            given = tokens[mine], targets[mine], state[mine]
            score, after, Z = self._credit_members(prepared, some, bits, crediting, *given, columns)
            scores.append(score)
            states.append(after)
            total = {name: total[name] + z if total else z for name, z in Z.items()}
            if members < P:  # so that the tapes of one launch are gone before the next one's come
                mx.eval(score, after, total)
        return mx.concatenate(scores), mx.concatenate(states), total

    def _credit_members(
        self,
        prepared: list[mx.array],
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        columns: int,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """`credit` with all members in a launch, `columns` tokens at a time."""
        P, T = tokens.shape
        M = self.group_members(P, 0 if crediting.nodes else 1)
        work, sources = self.credit_kernels(M, noise.shift, crediting)
        kernels = list(zip(work.plans, sources, strict=True))
        run = CreditRun(self.launcher, work, noise, credit_noise, tokens)
        words, scores = credit_noise.signs.shape[2], []
        for t in range(0, T, columns):
            at = (slice(None), slice(t, t + columns))
            some = tokens[at]
            sizes = [some.shape[1], P, P // 2, t, words, run.lanes]
            given = self.given_of(noise, some, targets[at], sizes)
            given["draws"] = pad_flat(credit_noise.draws[at])
            made = self.outputs_of(P, some.shape[1], 2 * run.lanes)
            left = partial(run.outputs, some.shape[1])
            got, state = self._stages(
                kernels, prepared, given, made, noise, state, credit_noise.signs, left
            )
            run.add(t, some.shape[1], got)
            scores.append(got[-1]["scores"])
        score = mx.concatenate(scores, axis=1)
        return score, state, run.votes(score)

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        N, leaves = fitness.size, self.program.leaves
        check_noise(self.program, noise, 2 * N)
        given = [self.table_of(noise), *map(pad_flat, (noise.starts, fitness.astype(mx.int8)))]
        matrices, vectors = vote_sources(self.dialect, noise.rank, clt)
        work = vote_work(self.program, VOTE_SIDE)
        flat: dict[bool, mx.array] = {}
        for of_matrix, source, rows, terms, size, threads in (
            (True, matrices, work.tiles, N * noise.rank, work.votes, VOTE_THREADS),
            (False, vectors, work.elements, N, len(work.elements), 1),
        ):
            if not rows:
                continue
            groups = -(-len(rows) * threads // VOTE_THREADS)
            parts, share = split_terms(terms, groups)
            sizes = mx.array([N, share, size], mx.int32)
            (Z,) = self.launcher(
                source,
                [*given, pad_flat(as_int32(rows)), sizes],
                [((parts, size), mx.int32)],
                (groups * VOTE_THREADS, parts, 1),
                (VOTE_THREADS, 1, 1),
            )
            flat[of_matrix] = Z.sum(axis=0)
        out, at = {}, {True: 0, False: 0}
        for leaf in leaves:
            kind, size = len(leaf.shape) == 2, math.prod(leaf.shape)
            out[leaf.name] = flat[kind][at[kind] : at[kind] + size].reshape(leaf.shape)
            at[kind] += size
        return out

    def given_of(
        self, noise: Slices | None, tokens: mx.array, targets: mx.array, sizes: Sequence[int]
    ) -> dict[str, mx.array]:
        """Inputs of all stages, by name."""
        return {
            "table": self.table_of(noise) if noise else pad_flat(mx.zeros(0, mx.int8)),
            "sizes": mx.array(list(sizes), mx.int32),
            "tokens": pad_flat(tokens.astype(mx.int32)),
            "targets": pad_flat(targets.astype(mx.int32)),
        }

    def outputs_of(self, P: int, T: int, members: int) -> Outputs:
        """Shapes and types of a stage's outputs; `members` counts those of whole threadgroups."""
        return {
            "passed_on": ((T * self.dialect.tile_bytes(self.program.width, members),), mx.int8),
            "state_after": ((P, self.program.width), mx.int8),
            "scores": ((P, T), mx.int16),
            "logits": ((P, self.program.vocabulary), mx.int8),
            "totals": ((P, T), mx.uint64),
            "target_logits": ((P, T), mx.int8),
        }
