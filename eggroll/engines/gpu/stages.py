"""Stages on a GPU: their kernels, made once, and the launches that run them one after the other.

Letters: P members, T tokens, D width, M members of a threadgroup.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import mlx.core as mx

from eggroll.backward import Backward
from eggroll.credit import Crediting
from eggroll.engines.base import Engine
from eggroll.engines.gpu.carry import CarryStage
from eggroll.engines.gpu.carry_plan import CarryPlan
from eggroll.engines.gpu.credit import CreditWork
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.credit_stage import CreditStageWriter
from eggroll.engines.gpu.dialect import Dialect
from eggroll.engines.gpu.launch import Launcher, Outputs, pad_flat
from eggroll.engines.gpu.launch_size import (
    Limits,
    Need,
    TapeNeed,
    carry_need,
    launch_size,
    need_of,
    tape_members,
    tape_need,
)
from eggroll.engines.gpu.pace import Pace
from eggroll.engines.gpu.plan import PRODUCTS, StagePlan, padded
from eggroll.engines.gpu.source import Source
from eggroll.engines.gpu.stage import StageWriter
from eggroll.engines.gpu.votes import credit_kernels
from eggroll.engines.gpu.writer import Result
from eggroll.noise import Slices
from eggroll.program import Program, Rows, Stage, Weights


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: Source


class Given(NamedTuple):
    """What P members read: tokens and targets, int32 [P, T], and the rows shown beside them."""

    tokens: mx.array
    targets: mx.array | None
    rows: Rows

    def at(self, members: slice, tokens: slice) -> Given:
        """What some members read at some tokens."""
        parts = (a if a is None else a[members, tokens] for a in (self.targets, *self.rows))
        targets, inputs, features = parts
        return Given(self.tokens[members, tokens], targets, Rows(inputs, features))


class Stages(Engine):
    """The lower half of an engine: what it launches.

    launcher runs kernels; members fixes M (0: chosen by the population); pace: of launches.
    """

    group_sizes: ClassVar[tuple[int, ...]]  # M that there may be, largest first

    def __init__(
        self,
        program: Program,
        threads: int,
        block_tokens: int,
        dialect: Dialect,
        launcher: Launcher,
        members: int,
        pace: Pace,
    ) -> None:
        super().__init__(program, threads, block_tokens)
        self.pace = pace
        self.dialect, self.launcher, self.members = dialect, launcher, members
        self._members: dict[tuple[int, int], int] = {}
        self._kernels: dict[tuple[int, int, int, Result | Crediting], list[Kernel]] = {}
        self._credit: dict[tuple[int, int, Crediting], tuple[CreditWork, list[Source]]] = {}
        self._needs: dict[tuple[int, bool], Need] = {}
        self._tapes: dict[Crediting | frozenset[int], TapeNeed] = {}
        self._carry: dict[tuple[int, frozenset[int]], list[CarryStage]] = {}

    @abstractmethod
    def plans(self, members: int, rank: int, puts_out: bool = False) -> Sequence[StagePlan]:
        """A plan per stage for threadgroups of `members`; rank 0 is without noise."""

    @abstractmethod
    def credit_plans(
        self, crediting: Crediting, members: int, puts_out: bool = False
    ) -> Sequence[CreditPlan]:
        """The same where pairs are credited."""

    @abstractmethod
    def carry_plans(self, passing: frozenset[int], members: int) -> Sequence[CarryPlan]:
        """The same where errors are carried back, by matrices of the leaves `passing`."""

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

    def take_groups_of(self, P: int, few: int, rank: int) -> None:
        """Lets a call of `few` members run in threadgroups as large as those of P."""
        self._members[few, rank] = self.group_members(P, rank)

    @property
    def kernels_made(self) -> int:
        """How often kernels of stages were written."""
        return len(self._kernels) + len(self._credit) + len(self._carry)

    def kernels(self, members: int, noise: Slices | None, result: Result) -> list[Kernel]:
        """Plan and source of every stage, for threadgroups of `members`."""
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, result)
        if key not in self._kernels:
            self._kernels[key] = [
                Kernel(plan, StageWriter(plan, self.dialect, result, shift=shift).source())
                for plan in self.plans(members, rank, result == "outputs")
            ]
        return self._kernels[key]

    def turned_kernels(self, members: int, shift: int, crediting: Crediting) -> list[Kernel]:
        """The same of stages that put out, with noise on nodes."""
        key = (members, 0, shift, crediting)
        if key not in self._kernels:
            self._kernels[key] = [
                Kernel(plan, CreditStageWriter(plan, self.dialect, "outputs", shift=shift).source())
                for plan in self.credit_plans(crediting, members, puts_out=True)
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

    def carry_stages(self, members: int, passing: frozenset[int]) -> list[CarryStage]:
        """Plans and kernels, there and back, of every stage."""
        key = (members, passing)
        if key not in self._carry:
            plans = self.carry_plans(passing, members)
            self._carry[key] = [CarryStage(plan, self.dialect) for plan in plans]
        return self._carry[key]

    def sending(self, plan: CarryPlan, back: Backward) -> mx.array:
        """The matrices that send credit back through a stage, turned and packed as weights are."""
        matrices = (back.matrices[self.program.leaves[leaf].name] for leaf in plan.sent)
        return pad_flat(
            mx.concatenate([mx.zeros(0, mx.int8), *(self.packed(F.T) for F in matrices)])
        )

    def launch_size(self, P: int, T: int, rank: int, puts_out: bool = False) -> tuple[int, int]:
        """Members (even) and tokens of one launch."""
        key = (rank, puts_out)
        if key not in self._needs:
            self._needs[key] = need_of([p for m in self.group_sizes for p in self.plans(m, *key)])
        return launch_size(self._needs[key], self._limits(puts_out), P, T)

    def credit_launch_size(self, crediting: Crediting, P: int, T: int) -> tuple[int, int]:
        """The same where pairs are credited.

        All tokens of a member stay until its scores are known, so its tape bounds the members; in
        time the tokens give way first, as in `launch_size`.
        """
        if crediting not in self._tapes:
            each = [self.credit_plans(crediting, m) for m in self.group_sizes]
            self._tapes[crediting] = tape_need(each)
        most = tape_members(self._tapes[crediting], self._limits(), T)
        members, tokens = self.launch_size(min(P, most), T, 0 if crediting.nodes else 1)
        whole = crediting.group or 2
        return max(members // whole * whole, whole), tokens

    def carry_launch_size(self, passing: frozenset[int], P: int, T: int) -> tuple[int, int]:
        """The same where errors are carried back, as all tokens stay for the way back."""
        if passing not in self._tapes:
            self._tapes[passing] = carry_need(
                [self.carry_plans(passing, m) for m in self.group_sizes]
            )
        most = tape_members(self._tapes[passing], self._limits(), T)
        return self.launch_size(min(P, most), T, 0)

    def _limits(self, puts_out: bool = False) -> Limits:
        program = self.program
        passed = 2 * self.dialect.tile_bytes(program.width, 1) + program.inputs
        passed += 4 * program.indices
        made = sum(out.size * out.dtype.size for out in program.outputs)
        return Limits(self.memory(), self.pace.macs, passed + made * puts_out)

    def run_stages(
        self,
        kernels: Sequence[tuple[StagePlan, Source]],
        prepared: list[mx.array],
        given: dict[str, mx.array],
        made: Outputs,
        noise: Slices | None,
        state: mx.array,
        T: int,
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
            outputs: list[mx.array] = []
            if source.outputs:  # a last stage whose results nobody asks for is left out
                self.pace.begin(source)
                outputs = self.launcher(
                    source,
                    [given[name] for name in source.inputs],
                    [shapes[name] for name in source.outputs],
                    (groups * threads, 1, 1),
                    (threads, 1, 1),
                )
                self.pace.launched(outputs, P * T * plan.macs)
            got.append(dict(zip(source.outputs, outputs, strict=True)))
            if plan.passes_on:
                given["passed"] = got[-1]["passed_on"]
            if at >= 0:
                states.append(got[-1]["state_after"])
        return got, mx.concatenate(states, axis=1)

    def given_of(
        self, noise: Slices | None, given: Given, sizes: Sequence[int]
    ) -> dict[str, mx.array]:
        """Inputs of all stages, by name."""
        shown = {"targets": given.targets, "shown": given.rows.inputs}
        shown["listed"] = given.rows.features
        return {
            "table": self.table_of(noise) if noise else pad_flat(mx.zeros(0, mx.int8)),
            "sizes": mx.array(list(sizes), mx.int32),
            "tokens": pad_flat(given.tokens.astype(mx.int32)),
        } | {name: pad_flat(array) for name, array in shown.items() if array is not None}

    def outputs_of(self, P: int, T: int, members: int) -> Outputs:
        """Shapes and types of a stage's outputs; `members` counts those of whole threadgroups."""
        return {
            "passed_on": ((T * self.dialect.tile_bytes(self.program.width, members),), mx.int8),
            "state_after": ((P, self.program.width), mx.int8),
            "scores": ((P, T), mx.int16),
            "logits": ((P, self.program.vocabulary), mx.int8),
            "totals": ((P, T), mx.uint64),
            "target_logits": ((P, T), mx.int8),
        } | {f"out{i}": ((P, T, out.size), out.dtype) for i, out in enumerate(self.program.outputs)}
