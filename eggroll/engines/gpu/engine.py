"""Base of the engines on GPUs: a group of members runs all T tokens of a stage in one launch.

Letters: P members, N pairs, T tokens, D width, V vocabulary, M members of a threadgroup, which CUDA
calls a block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx

from eggroll.engines.base import Engine, check_rows, check_scored, check_values
from eggroll.engines.gpu.backward import CarryRun, CarryStage, Chunk
from eggroll.engines.gpu.backward_plan import CarryPlan
from eggroll.engines.gpu.checks import (
    check_back,
    check_credit,
    check_draws,
    check_noise,
    check_tokens,
)
from eggroll.engines.gpu.credit import CreditPlan, CreditRun, CreditStageWriter, CreditWork
from eggroll.engines.gpu.dialect import Dialect, Source
from eggroll.engines.gpu.launch import Launcher, Outputs, Pace, matrix_macs, pad_flat
from eggroll.engines.gpu.plan import PRODUCTS, StagePlan, padded
from eggroll.engines.gpu.stage import RESULTS, Result, StageWriter
from eggroll.engines.gpu.votes import count_votes, credit_kernels
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Program, Stage, Weights

SORTED = 12  # bytes of a member's token, half a pair's, where rows are sorted


class Limits(NamedTuple):
    """Bytes that arrays may take, multiply-adds of one launch, bytes a token passes to and fro."""

    memory: int
    macs: int
    passed: int


def scratch_of(plans: Sequence[StagePlan]) -> int:
    """Bytes of device memory for a member, at most."""
    return max(-(-plan.scratch_bytes // plan.members) for plan in plans)


class Need(NamedTuple):
    """Of a member, at most: bytes of device memory, and multiply-adds of a token in one launch."""

    scratch: int
    macs: int


def need_of(plans: Sequence[StagePlan]) -> Need:
    """plans: of every stage, for every M there may be."""
    return Need(scratch_of(plans), max(1, *(plan.macs for plan in plans)))


def launch_size(need: Need, limits: Limits, P: int, T: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens are
    cut first.
    """
    kept = max(limits.passed, 1)
    tokens = min((limits.memory // P - need.scratch) // kept, limits.macs // (need.macs * P), T)
    tokens = max(tokens, 1)
    room = limits.memory // (tokens * kept + need.scratch)
    room = min(room, limits.macs // (need.macs * tokens))
    return min(P, max(room // 2 * 2, 2)), tokens


class TapeNeed(NamedTuple):
    """Of a member that is credited: bytes of every token, and of all; members of a threadgroup."""

    token: int
    member: int
    whole: int


def tape_need(plans: Sequence[Sequence[CreditPlan]]) -> TapeNeed:
    """plans: of every stage, for every M there may be, the largest first."""
    stages, program = plans[0], plans[0][0].program
    scratch = scratch_of([plan for each in plans for plan in each])
    tape = sum(plan.tape_bytes for plan in stages) // 2 + len(program.leaves)
    tape += SORTED * (1 + program.indices)
    inputs = max(sum(plan.sizes[op.inputs[0]] for op in plan.traced) for plan in stages)
    return TapeNeed(tape, 4 * inputs + scratch, stages[0].members)


def carry_need(plans: Sequence[Sequence[CarryPlan]]) -> TapeNeed:
    """The same of members that carry errors back; plans as of `tape_need`."""
    stages, program = plans[0], plans[0][0].program
    scratch = scratch_of([plan for each in plans for plan in each])
    back = max(-(-plan.back_bytes // plan.members) for each in plans for plan in each)
    vectors = sum(4 * plan.vector_rows for plan in stages)
    tape = sum(plan.carried_bytes for plan in stages) + 2 * SORTED * (1 + program.indices)
    return TapeNeed(tape, scratch + back + vectors, stages[0].members)


def tape_members(need: TapeNeed, limits: Limits, T: int) -> int:
    """Members (even) whose tapes of T tokens fit into memory; if many, of whole threadgroups."""
    room = limits.memory // (T * (limits.passed + need.token) + need.member)
    return room // need.whole * need.whole or max(room // 2 * 2, 2)


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: Source


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

    def node_noise_kernels(self, members: int, shift: int, crediting: Crediting) -> list[Kernel]:
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
        inputs: dict[str, mx.array],
        made: Outputs,
        noise: Slices | None,
        state: mx.array,
        T: int,
        signs: mx.array | None = None,
        left: Callable[[StagePlan], Outputs] = lambda _: {},
    ) -> tuple[list[dict[str, mx.array]], mx.array]:
        """One launch per stage. Outputs of each stage by name, and the new state.

        inputs: by name; made, left: outputs of all stages, and of one for token credit.
        """
        P, D = state.shape[0], self.program.width
        states, got = [mx.zeros((P, 0), mx.int8)], list[dict[str, mx.array]]()
        for (plan, source), weights in zip(kernels, prepared, strict=True):
            at, threads = plan.stage.state, 32 * plan.simdgroups
            leaves, groups = mx.array(list(plan.layout) or [0]), -(-P // plan.members)
            starts = noise.starts[leaves] if noise else mx.zeros(1, mx.int32)
            inputs |= {"weights": weights, "starts": pad_flat(starts)}
            inputs |= {"signs": pad_flat(signs[leaves])} if signs is not None else {}
            inputs["state"] = pad_flat(state[:, at : at + D])
            shapes = made | left(plan) | {"scratch": ((groups * plan.scratch_bytes,), mx.int8)}
            outputs: list[mx.array] = []
            if source.outputs:  # a last stage whose results nobody asks for is left out
                self.pace.begin(source)
                outputs = self.launcher(
                    source,
                    [inputs[name] for name in source.inputs],
                    [shapes[name] for name in source.outputs],
                    (groups * threads, 1, 1),
                    (threads, 1, 1),
                )
                self.pace.launched(outputs, P * T * plan.macs)
            got.append(dict(zip(source.outputs, outputs, strict=True)))
            if plan.passes_on:
                inputs["passed"] = got[-1]["passed_on"]
            if at >= 0:
                states.append(got[-1]["state_after"])
        return got, mx.concatenate(states, axis=1)

    def inputs_of(
        self, noise: Slices | None, batch: Batch, sizes: Sequence[int]
    ) -> dict[str, mx.array]:
        """Inputs of all stages, by name."""
        shown = {"targets": batch.targets, "shown": batch.inputs, "listed": batch.features}
        return {
            "table": self.table_of(noise) if noise else pad_flat(mx.zeros(0, mx.int8)),
            "sizes": mx.array(list(sizes), mx.int32),
            "tokens": pad_flat(batch.tokens.astype(mx.int32)),
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


LEAST_PAIRS = 32  # whose votes are counted in one launch


class NodeNoise(NamedTuple):
    """Noise on nodes: how much each leaf has, and signs int32 [leaves, pairs, words of tokens]."""

    crediting: Crediting
    signs: mx.array


class StagedEngine(Stages):
    """An engine whose kernels are written from the plans of a program's stages."""

    @property
    def remedy(self) -> str:
        """What one may try where the GPU fails, the beginning of a sentence, or nothing."""
        return ""

    def evaluate(
        self, prepared: Any, noise: Slices | None, batch: Batch
    ) -> tuple[mx.array, mx.array]:
        (scores,), after = self._launches("scores", prepared, noise, batch)
        return scores, after

    def likelihoods(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array]:
        (totals, hits), after = self._launches("likelihoods", prepared, None, batch)
        return totals, hits, after

    def logits(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array]:
        check_scored(self.program)
        self._check(None, batch)
        (logits,), after = self._run("logits", prepared, None, batch._replace(targets=None))
        return logits, after

    def outputs(
        self,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
        credit_noise: CreditNoise | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[dict[str, mx.array], mx.array]:
        node_noise = None
        if crediting is not None:
            if noise is None or credit_noise is None:
                raise ValueError("noise and credit_noise are needed for members that are credited.")
            check_credit(self.program, noise.rank, credit_noise.signs, crediting, *batch.size)
            node_noise = NodeNoise(crediting, credit_noise.signs) if crediting.nodes else None
        unscored = batch._replace(targets=None)
        found, after = self._launches("outputs", prepared, noise, unscored, node_noise)
        names = (out.name for out in self.program.outputs)
        return dict(zip(names, found, strict=True)), after

    def _launches(
        self,
        result: Result,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
        node_noise: NodeNoise | None = None,
    ) -> tuple[list[mx.array], mx.array]:
        """The results for P members and T tokens, each [P, T, ..], and the new state."""
        if result != "outputs":
            check_scored(self.program)
        self._check(noise, batch)
        (P, T), rank = batch.size, noise.rank if noise and not node_noise else 0
        members, columns = self.launch_size(P, T, rank, result == "outputs")
        found, states = [], []
        for m in range(0, P, members):
            mine, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            part = noise._replace(starts=noise.starts[:, pairs]) if noise else None
            signs = node_noise and node_noise._replace(signs=node_noise.signs[:, pairs])
            some, row = batch.members(mine), []
            after = some.state
            for t in range(0, T, columns):
                chunk = some.window(slice(t, t + columns))._replace(state=after)
                left, after = self._run(result, prepared, part, chunk, signs, t)
                row.append(left)
            found.append([mx.concatenate(list(a), axis=1) for a in zip(*row, strict=True)])
            states.append(after)
        whole = [mx.concatenate(list(a)) for a in zip(*found, strict=True)]
        return whole, mx.concatenate(states)

    def _check(self, noise: Slices | None, batch: Batch) -> None:
        """Raises ValueError for what a kernel would read beyond an array."""
        check_tokens(self.program, batch)
        check_rows(self.program, batch)
        if noise:
            check_noise(self.program, noise, batch.size[0])

    def _run(
        self,
        result: Result,
        prepared: list[mx.array],
        noise: Slices | None,
        batch: Batch,
        node_noise: NodeNoise | None = None,
        first: int = 0,
    ) -> tuple[list[mx.array], mx.array]:
        """One launch per stage, of tokens from `first` on. Its results, and the new state."""
        P, T = batch.size
        M = self.group_members(P, noise.rank if noise and not node_noise else 0)
        lanes, sizes, signs = -(-P // M) * M, [T, P, P // 2], None
        if node_noise and noise:
            signs = node_noise.signs
            sizes += [first, signs.shape[2], lanes // 2]
            kernels = self.node_noise_kernels(M, noise.shift, node_noise.crediting)
        else:
            kernels = self.kernels(M, noise, result)
        arrays, made = self.inputs_of(noise, batch, sizes), self.outputs_of(P, T, lanes)
        got, after = self.run_stages(kernels, prepared, arrays, made, noise, batch.state, T, signs)
        names = RESULTS.get(result) or [f"out{i}" for i in range(len(self.program.outputs))]
        return [next(left[name] for left in got if name in left) for name in names], after

    def credit(
        self,
        prepared: Any,
        noise: Slices,
        batch: Batch,
        credit_noise: CreditNoise,
        crediting: Crediting,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        self._check(noise, batch)
        P, T = batch.size
        check_credit(self.program, noise.rank, credit_noise.signs, crediting, P, T)
        check_draws(credit_noise, P, T)
        check_values(self.program, values, P // 2, T)
        members, columns = self.credit_launch_size(crediting, P, T)
        scores, states, total = [], [], dict[str, mx.array]()
        for m in range(0, P, members):
            mine, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            some = noise._replace(starts=noise.starts[:, pairs])
            bits = CreditNoise(credit_noise.signs[:, pairs], credit_noise.draws[pairs])
            worth = None if values is None else values[pairs]
            score, after, Z = self._credit_members(
                prepared, some, batch.members(mine), bits, crediting, worth, columns
            )
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
        batch: Batch,
        credit_noise: CreditNoise,
        crediting: Crediting,
        values: mx.array | None,
        columns: int,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """`credit` with all members in a launch, `columns` tokens at a time."""
        (P, T), state = batch.size, batch.state
        M = self.group_members(P, 0 if crediting.nodes else 1)
        work, sources = self.credit_kernels(M, noise.shift, crediting)
        kernels = list(zip(work.plans, sources, strict=True))
        run = CreditRun(self.launcher, work, noise, credit_noise, batch)
        words, scores = credit_noise.signs.shape[2], []
        for t in range(0, T, columns):
            at = slice(t, t + columns)
            chunk = batch.window(at)
            length = chunk.size[1]
            sizes = [length, P, P // 2, t, words, run.lanes]
            arrays = self.inputs_of(noise, chunk, sizes)
            arrays["draws"] = pad_flat(credit_noise.draws[:, at])
            made, left = self.outputs_of(P, length, 2 * run.lanes), partial(run.outputs, length)
            got, state = self.run_stages(
                kernels, prepared, arrays, made, noise, state, length, credit_noise.signs, left
            )
            run.add(t, length, got)
            scores.append(got[-1].get("scores", mx.zeros((P, length), mx.int16)))
        score = worth = mx.concatenate(scores, axis=1)
        if values is not None:  # as scores of which the odd members have none
            worth = mx.stack([values, mx.zeros_like(values)], axis=1).reshape(P, T)
        self.pace.begin(work)
        Z = run.votes(worth)
        self.pace.launched(Z.values(), P // 2 * matrix_macs(self.program))
        return score, state, Z

    def learn(self, prepared: Any, batch: Batch, words: mx.array, back: Backward) -> Learnt:
        check_scored(self.program)
        self._check(None, batch)
        (P, T), leaves = batch.size, self.program.leaves
        check_back(self.program, words, back, P, T)
        passing = frozenset(i for i, leaf in enumerate(leaves) if leaf.name in back.matrices)
        members, columns = self.carry_launch_size(passing, P, T)
        parts, total = list[Learnt](), dict[str, mx.array]()
        for m in range(0, P, members):
            mine = slice(m, m + members)
            part = self._learn_members(
                prepared, back, passing, batch.members(mine), words[mine], columns
            )
            total = {name: total[name] + z if total else z for name, z in part.votes.items()}
            parts.append(part)
            if members < P:  # so that the tapes of one launch are gone before the next one's come
                mx.eval(part, total)
        return Learnt(
            mx.concatenate([part.scores for part in parts]),
            mx.concatenate([part.state for part in parts]),
            total,
            mx.stack([part.sizes for part in parts]).sum(axis=0),
        )

    def _learn_members(
        self,
        prepared: list[mx.array],
        back: Backward,
        passing: frozenset[int],
        batch: Batch,
        words: mx.array,
        columns: int,
    ) -> Learnt:
        """`learn` with all members in a launch, `columns` tokens at a time, there and back."""
        (P, T), state = batch.size, batch.state
        stages = self.carry_stages(self.group_members(P, 0), passing)
        matrices = [self.sending(stage.plan, back) for stage in stages]
        run = CarryRun(
            self.launcher, self.pace, self.dialect, stages, prepared, matrices, back, batch, words
        )
        kernels, scores, chunks = [(stage.plan, stage.there) for stage in stages], [], []
        for t in range(0, T, columns):
            some = batch.window(slice(t, t + columns))
            length = some.size[1]
            arrays = self.inputs_of(None, some, [length, P, P // 2])
            made, left = self.outputs_of(P, length, run.lanes), partial(run.outputs, length)
            got, state = self.run_stages(
                kernels, prepared, arrays, made, None, state, length, left=left
            )
            scores.append(got[-1]["scores"])
            chunks.append(Chunk(t, length, [each.get("tape") for each in got]))
        for chunk in reversed(chunks):
            run.back(chunk)
        return Learnt(mx.concatenate(scores, axis=1), state, *run.found())

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        N, table = fitness.size, self.table_of(noise)
        check_noise(self.program, noise, 2 * N)
        macs, first = noise.rank * matrix_macs(self.program), 0
        total: dict[str, mx.array] = {}
        while first < N:
            pairs = min(max(self.pace.macs // macs, LEAST_PAIRS), N - first)
            mine = slice(first, first + pairs)
            given = table, noise._replace(starts=noise.starts[:, mine]), fitness[mine]
            self.pace.begin(("votes", noise.rank, clt))
            Z = count_votes(self.launcher, self.dialect, self.program, *given, clt)
            total = {name: total[name] + z if total else z for name, z in Z.items()}
            self.pace.launched(total.values(), pairs * macs)
            first += pairs
        return total
