"""Base of the engines on GPUs: a group of members runs all T tokens of a stage in one launch.

Letters: P members, N pairs, T tokens, D width, V vocabulary, M members of a threadgroup, which CUDA
calls a block.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines.base import (
    Engine,
    RuleArrays,
    RuleLeaves,
    as_unsigned,
    check_errors,
    check_ids,
    check_rows,
    check_scored,
    check_values,
)
from eggroll.engines.gpu.backward import BackwardRun, BackwardStage, TapeChunk
from eggroll.engines.gpu.backward_plan import BackwardPlan
from eggroll.engines.gpu.credit import CreditPlan, CreditRun, CreditStageWriter, CreditWork
from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.launch import (
    Launcher,
    OutputShapes,
    Pace,
    kept_numbers,
    pad_flat,
)
from eggroll.engines.gpu.losses import Rating, rate_output
from eggroll.engines.gpu.plan import PRODUCTS, StagePlan, matrix_macs, padded
from eggroll.engines.gpu.rules import move_by_adam, move_by_master, move_by_whitening
from eggroll.engines.gpu.stage import RESULT_OUTPUTS, StageResult, StageWriter
from eggroll.engines.gpu.votes import (
    PACKED_TOGETHER,
    count_votes,
    credit_kernels,
    launch_counts,
    packing,
)
from eggroll.spec.backward import MOST, Backward, Learnt
from eggroll.spec.credit import OF, SILENT, Crediting, CreditKind, CreditNoise
from eggroll.spec.flat import FlatLeaves, Shapes, added, whole_of
from eggroll.spec.losses import Targets, first_word, unit_of
from eggroll.spec.noise import Slices, rooms_of
from eggroll.spec.program import Batch, Program, Stage, Weights

MIN_PAIRS = 32  # whose votes are counted in one launch
SORT_BYTES = 12  # of a member's token, half a pair's, where rows are sorted


class StageKernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: KernelSource


class PackedLayout(NamedTuple):
    """The layout of the weights of all stages."""

    order: mx.array  # int32 [bytes], the place of each in the flat weights, -1 for none
    ends: list[int]  # of all stages but the last


class NodeNoise(NamedTuple):
    """Noise on nodes."""

    crediting: Crediting  # the noise of each leaf
    signs: mx.array  # int32 [leaves, pairs, words of tokens]


class GpuEngine(Engine):
    """An engine whose kernels are written from the plans of a program's stages.

    launcher runs kernels; members fixes M (0: chosen by the population); pace: of launches.
    """

    group_sizes: ClassVar[tuple[int, ...]]  # M that there may be, largest first
    rules = ("adam", "master", "whitened")
    draws_starts: ClassVar[bool] = False  # whether a kernel draws where slices begin

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
        self._table: tuple[mx.array, mx.array] | None = None  # of the noise, and as kernels read it
        self._members: dict[tuple[int, int], int] = {}
        self._kernels: dict[tuple[int, int, int, StageResult | Crediting], list[StageKernel]] = {}
        self._credit: dict[tuple[int, int, Crediting], tuple[CreditWork, list[KernelSource]]] = {}
        self._backward: dict[tuple[int, frozenset[int]], list[BackwardStage]] = {}
        self._needs: dict[tuple[int, bool], LaunchNeed] = {}
        self._tapes: dict[Crediting | frozenset[int], TapeNeed] = {}

    @property
    def remedy(self) -> str:
        """Advice where the GPU fails, as the beginning of a sentence; or nothing."""
        return ""

    @abstractmethod
    def plans(self, members: int, rank: int, puts_out: bool = False) -> Sequence[StagePlan]:
        """A plan per stage for threadgroups of `members`; rank 0 is without noise."""

    @abstractmethod
    def credit_plans(
        self, crediting: Crediting, members: int, puts_out: bool = False
    ) -> Sequence[CreditPlan]:
        """A plan per stage where pairs are credited."""

    @abstractmethod
    def backward_plans(
        self, feedback_leaves: frozenset[int], members: int
    ) -> Sequence[BackwardPlan]:
        """A plan per stage where errors are carried back, by matrices of `feedback_leaves`."""

    @abstractmethod
    def choose_members(self, P: int, rank: int) -> int:
        """M that suits a population of P."""

    @abstractmethod
    def memory(self) -> int:
        """Bytes that the arrays between two stages may take."""

    @abstractmethod
    def packed(self, w: mx.array) -> mx.array:
        """A matrix [O, K] int8 as the products read it, flat, with zeros up to multiples of PAD."""

    def table_words(self, table: mx.array) -> mx.array:
        """The noise table as kernels read it."""
        return pad_flat(table)

    def table_of(self, noise: Slices) -> mx.array:
        """The same, made once."""
        if self._table is None or self._table[0] is not noise.table:
            self._table = noise.table, self.table_words(noise.table)
        return self._table[1]

    def repeated(self, shared: NDArray[Any], times: int) -> mx.array:
        """By MLX, so that less goes to the GPU; tokens in as few bytes as their vocabulary needs.

        They are looked at here, where they are few and the host's.
        """
        V = self.program.vocabulary
        if shared.dtype != np.int32 or shared.view(np.uint32).max(initial=0) >= V:
            return mx.repeat(self.array(shared), times, axis=0)
        few = self.array(shared.astype(np.min_scalar_type(V - 1)))
        rows = mx.repeat(few, times, axis=0).astype(mx.int32)
        _checked[id(rows), V] = rows
        return rows

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        order, ends = self.layout
        size, shapes = order.size, shapes_of_leaves(self.program)
        whole = whole_of(weights, shapes) if shapes else mx.zeros(0, mx.int8)
        (placed,) = launch_counts(
            self.launcher, packing(self.dialect), [whole, order], [size],
            [((size,), mx.int8)], size // PACKED_TOGETHER,
        )  # fmt: skip
        return list(mx.split(placed, ends))

    @cached_property
    def layout(self) -> PackedLayout:
        """The place of every byte of the stages' arrays in the flat weights."""
        shapes = shapes_of_leaves(self.program)
        places = mx.arange(1, 1 + sum(map(math.prod, shapes.values())), dtype=mx.int32)
        numbered = FlatLeaves(places, shapes) if shapes else {}
        stages = [self._packed_stage(stage, numbered) for stage in self.program.stages]
        ends = [*accumulate(stage.size for stage in stages)]
        return PackedLayout(mx.concatenate(stages) - 1, ends[:-1])

    def _packed_stage(self, stage: Stage, leaves: Mapping[str, mx.array]) -> mx.array:
        """A stage's leaves as its kernels read them, with zeros between them."""
        packed = [mx.zeros(padded(1), mx.int32)] * all(op.leaf < 0 for op in stage.ops)
        for op in stage.ops:
            if op.leaf >= 0:
                leaf = leaves[self.program.leaves[op.leaf].name]
                flat = self.packed(leaf) if op.kind in PRODUCTS else leaf.reshape(-1)
                packed.append(pad_flat(flat, padded(flat.size)))
        return mx.concatenate(packed)

    def evaluate(
        self, prepared: Any, noise: Slices | None, batch: Batch
    ) -> tuple[mx.array, mx.array]:
        (scores,), state = self._run("scores", prepared, noise, batch)
        return scores, state

    def likelihoods(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array]:
        (totals, hits), state = self._run("likelihoods", prepared, None, batch)
        return totals, hits, state

    def logits(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array]:
        check_scored(self.program)
        self._check(None, batch)
        (logits,), state = self._launch("logits", prepared, None, batch._replace(targets=None))
        return logits, state

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
        arrays, state = self._run("outputs", prepared, noise, unscored, node_noise)
        names = (out.name for out in self.program.outputs)
        return dict(zip(names, arrays, strict=True)), state

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        N, table = fitness.size, self.table_of(noise)
        check_noise(self.program, noise, 2 * N)
        macs, first = noise.rank * matrix_macs(self.program), 0
        total: dict[str, mx.array] = {}
        while first < N:
            count = min(max(self.pace.macs // macs, MIN_PAIRS), N - first)
            pairs = slice(first, first + count)
            slices = noise._replace(starts=noise.starts[:, pairs])
            self.pace.begin(("votes", noise.rank, clt))
            Z = count_votes(
                self.launcher, self.dialect, self.program, table, slices, fitness[pairs], clt
            )
            total = added(total, Z)
            self.pace.launched(total.values(), count * macs)
            first += count
        return total

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
        members, tokens = self.credit_launch_size(crediting, P, T)
        scores, states, total = [], [], dict[str, mx.array]()
        for m in range(0, P, members):
            pairs = slice(m // 2, (m + members) // 2)
            score, state, Z = self._credit_members(
                prepared,
                noise._replace(starts=noise.starts[:, pairs]),
                batch.members(slice(m, m + members)),
                CreditNoise(credit_noise.signs[:, pairs], credit_noise.draws[pairs]),
                crediting,
                None if values is None else values[pairs],
                tokens,
            )
            scores.append(score)
            states.append(state)
            total = added(total, Z)
            if members < P:  # so that the tapes of one launch are gone before the next one's come
                mx.eval(score, state, total)
        return mx.concatenate(scores), mx.concatenate(states), total

    def _credit_members(
        self,
        prepared: list[mx.array],
        noise: Slices,
        batch: Batch,
        credit_noise: CreditNoise,
        crediting: Crediting,
        values: mx.array | None,
        tokens: int,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """`credit` with all members in a launch, `tokens` at a time."""
        (P, T), state = batch.size, batch.state
        M = self.group_members(P, 0 if crediting.nodes else 1)
        work, sources = self.credit_kernels(M, noise.shift, crediting)
        kernels = list(zip(work.plans, sources, strict=True))
        run = CreditRun(self.launcher, work, noise, credit_noise, batch)
        words, scores = credit_noise.signs.shape[2], []
        for t in range(0, T, tokens):
            chunk = batch.window(slice(t, t + tokens))
            length = chunk.size[1]
            inputs = self.inputs_of(noise, chunk, [length, P, P // 2, t, words, run.lanes])
            inputs["draws"] = pad_flat(credit_noise.draws[:, t : t + tokens])
            outputs, state = self.run_stages(
                kernels, prepared, inputs, self.output_shapes(P, length, 2 * run.lanes), noise,
                state, length, credit_noise.signs, partial(run.output_shapes, length),
            )  # fmt: skip
            run.add(t, length, outputs)
            scores.append(outputs[-1].get("scores", mx.zeros((P, length), mx.int16)))
        score = credited = mx.concatenate(scores, axis=1)
        if values is not None:  # as scores of which the odd members have none
            credited = mx.stack([values, mx.zeros_like(values)], axis=1).reshape(P, T)
        self.pace.begin(work)
        Z = run.votes(credited)
        self.pace.launched(Z.values(), P // 2 * matrix_macs(self.program))
        return score, state, Z

    def learn(self, prepared: Any, batch: Batch, words: mx.array, back: Backward) -> Learnt:
        check_errors(self.program, batch, back.losses)
        self._check(None, batch)
        (P, T), leaves = batch.size, self.program.leaves
        check_back(self.program, words, back, P, T)
        feedback = frozenset(i for i, leaf in enumerate(leaves) if leaf.name in back.matrices)
        members, tokens = self.backward_launch_size(feedback, P, T)
        results, total = list[Learnt](), dict[str, mx.array]()
        for m in range(0, P, members):
            rows = slice(m, m + members)
            learnt = self._learn_members(
                prepared, back, feedback, batch.members(rows), words[rows], tokens
            )
            total = added(total, learnt.votes)
            results.append(learnt)
            if members < P:  # so that the tapes of one launch are gone before the next one's come
                mx.eval(learnt, total)
        return Learnt(
            mx.concatenate([learnt.scores for learnt in results]),
            mx.concatenate([learnt.state for learnt in results]),
            total,
            mx.stack([learnt.sizes for learnt in results]).sum(axis=0),
            joined([learnt.errors for learnt in results]),
            joined([learnt.lost for learnt in results]),
        )

    def adam(self, leaves: RuleLeaves, factor: int) -> RuleArrays:
        made = [move_by_adam(self.launcher, self.dialect, leaf, factor) for leaf in leaves]
        return made, moved_of(leaves, made)

    def master(self, leaves: RuleLeaves) -> RuleArrays:
        made = [move_by_master(self.launcher, self.dialect, leaf) for leaf in leaves]
        return made, moved_of(leaves, made)

    def whitened(self, leaves: RuleLeaves, learns: bool) -> RuleArrays:
        made = [move_by_whitening(self.launcher, self.dialect, leaf, learns) for leaf in leaves]
        return made, moved_of(leaves, made)

    def _learn_members(
        self,
        prepared: list[mx.array],
        back: Backward,
        feedback_leaves: frozenset[int],
        batch: Batch,
        words: mx.array,
        tokens: int,
    ) -> Learnt:
        """`learn` with all members in a launch, `tokens` at a time, forward and backward."""
        (P, T), state = batch.size, batch.state
        stages = self.backward_stages(self.group_members(P, 0), feedback_leaves)
        matrices = [self.pack_feedback(stage.plan, back) for stage in stages]
        run = BackwardRun(
            self.launcher, self.pace, self.dialect, stages, prepared, matrices, back, batch, words
        )
        kernels, chunks = [(stage.plan, stage.forward) for stage in stages], []
        names = ["scores"] if self.program.scored else self._output_names
        results = dict[str, list[mx.array]]()
        for t in range(0, T, tokens):
            chunk = batch.window(slice(t, t + tokens))
            length = chunk.size[1]
            outputs, state = self.run_stages(
                kernels, prepared, self.inputs_of(None, chunk, [length, P, P // 2]),
                self.output_shapes(P, length, run.lanes), None, state, length,
                extra_shapes=partial(run.output_shapes, length),
            )  # fmt: skip
            for name in names:
                of_chunk = next(of_stage[name] for of_stage in outputs if name in of_stage)
                results.setdefault(name, []).append(of_chunk)
            chunks.append(TapeChunk(t, length, [of_stage.get("tape") for of_stage in outputs]))
        whole = {name: mx.concatenate(arrays, axis=1) for name, arrays in results.items()}
        lost = None
        if back.losses:
            run.errors, lost = self._rated(back, batch, whole, words)
        for tapes in reversed(chunks):
            run.backward(tapes)
        scores = whole.get("scores", mx.zeros((P, T), mx.int16))
        made = (None, None) if lost is None else (run.errors, lost)
        return Learnt(scores, state, *run.votes_and_sizes(), *made)

    def _rated(
        self, back: Backward, batch: Batch, whole: Mapping[str, mx.array], words: mx.array
    ) -> tuple[mx.array, mx.array]:
        """The errors of outputs, made of targets, and what rows lost."""
        (P, T), targets = batch.size, Targets(back.losses, batch.wanted)
        errors = [mx.zeros((P, T, output.size), mx.int8) for output in self.program.outputs]
        lost = [mx.zeros((P, T), mx.uint64)] * len(errors)
        for place, _, wanted in targets.columns(self.program):
            output = Rating(
                back.losses[place], self.program.outputs[place], unit_of(self.program, place),
                first_word(self.program, place),
            )  # fmt: skip
            errors[place], lost[place] = rate_output(
                self.launcher, self.dialect, output, whole[self._output_names[place]], wanted, words
            )
        return mx.concatenate(errors, axis=-1), mx.stack(lost, axis=-1)

    def pack_feedback(self, plan: BackwardPlan, back: Backward) -> mx.array:
        """The matrices that carry credit back through a stage, transposed and packed as weights."""
        matrices = (back.matrices[self.program.leaves[leaf].name] for leaf in plan.feedback_starts)
        return pad_flat(
            mx.concatenate([mx.zeros(0, mx.int8), *(self.packed(F.T) for F in matrices)])
        )

    def _check(self, noise: Slices | None, batch: Batch) -> None:
        """Raises ValueError for what a kernel would read beyond an array."""
        check_tokens(self.program, batch)
        check_rows(self.program, batch)
        if noise:
            check_noise(self.program, noise, batch.size[0])

    def _run(
        self,
        result: StageResult,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
        node_noise: NodeNoise | None = None,
    ) -> tuple[list[mx.array], mx.array]:
        """The results of P members over T tokens, each [P, T, ..], and the new state."""
        if result != "outputs":
            check_scored(self.program)
        self._check(noise, batch)
        (P, T), rank = batch.size, noise.rank if noise and not node_noise else 0
        members, tokens = self.launch_size(P, T, rank, result == "outputs")
        of_members, states = [], []
        for m in range(0, P, members):
            pairs = slice(m // 2, (m + members) // 2)
            slices = noise._replace(starts=noise.starts[:, pairs]) if noise else None
            signs = node_noise and node_noise._replace(signs=node_noise.signs[:, pairs])
            launched, of_tokens = batch.members(slice(m, m + members)), []
            state = launched.state
            for t in range(0, T, tokens):
                chunk = launched.window(slice(t, t + tokens))._replace(state=state)
                arrays, state = self._launch(result, prepared, slices, chunk, signs, t)
                of_tokens.append(arrays)
            of_members.append(
                [mx.concatenate(list(a), axis=1) for a in zip(*of_tokens, strict=True)]
            )
            states.append(state)
        results = [mx.concatenate(list(a)) for a in zip(*of_members, strict=True)]
        return results, mx.concatenate(states)

    def _launch(
        self,
        result: StageResult,
        prepared: list[mx.array],
        noise: Slices | None,
        batch: Batch,
        node_noise: NodeNoise | None = None,
        first: int = 0,
    ) -> tuple[list[mx.array], mx.array]:
        """The results of one launch per stage, of tokens from `first` on, and the new state."""
        P, T = batch.size
        M = self.group_members(P, noise.rank if noise and not node_noise else 0)
        lanes, sizes, signs = -(-P // M) * M, [T, P, P // 2], None
        if node_noise and noise:
            signs = node_noise.signs
            sizes += [first, signs.shape[2], lanes // 2]
            kernels = self.node_noise_kernels(M, noise.shift, node_noise.crediting)
        else:
            kernels = self.kernels(M, noise, result)
        outputs, state = self.run_stages(
            kernels, prepared, self.inputs_of(noise, batch, sizes),
            self.output_shapes(P, T, lanes), noise, batch.state, T, signs,
        )  # fmt: skip
        names = RESULT_OUTPUTS.get(result) or self._output_names
        return [next(of[name] for of in outputs if name in of) for name in names], state

    def run_stages(
        self,
        kernels: Sequence[tuple[StagePlan, KernelSource]],
        prepared: list[mx.array],
        inputs: dict[str, mx.array],
        shapes: OutputShapes,
        noise: Slices | None,
        state: mx.array,
        T: int,
        signs: mx.array | None = None,
        extra_shapes: Callable[[StagePlan], OutputShapes] = lambda _: {},
    ) -> tuple[list[dict[str, mx.array]], mx.array]:
        """Launches one kernel per stage. Returns outputs of each stage by name, and the new state.

        inputs: of all stages, by name; shapes: of outputs; extra_shapes: of those of one stage.
        """
        P, D = state.shape[0], self.program.width
        states, results = [mx.zeros((P, 0), mx.int8)], list[dict[str, mx.array]]()
        for (plan, source), weights in zip(kernels, prepared, strict=True):
            first, threads = plan.stage.state, 32 * plan.simdgroups
            leaves, groups = list(plan.layout) or [0], -(-P // plan.members)
            starts = rows_of(noise.starts, leaves) if noise else mx.zeros(1, mx.int32)
            inputs |= {"weights": weights, "starts": pad_flat(starts)}
            inputs |= {"signs": pad_flat(rows_of(signs, leaves))} if signs is not None else {}
            inputs["state"] = pad_flat(state[:, first : first + D])
            scratch = (groups * plan.scratch_bytes,), mx.int8
            stage_shapes = shapes | extra_shapes(plan) | {"scratch": scratch}
            arrays: list[mx.array] = []
            if source.outputs:  # a last stage whose results nobody asks for is left out
                self.pace.begin(source)
                arrays = self.launcher(
                    source,
                    [inputs[name] for name in source.inputs],
                    [stage_shapes[name] for name in source.outputs],
                    (groups * threads, 1, 1),
                    (threads, 1, 1),
                )
                self.pace.launched(arrays, P * T * plan.macs)
            results.append(dict(zip(source.outputs, arrays, strict=True)))
            if plan.passes_on:
                inputs["passed"] = results[-1]["passed_on"]
            if first >= 0:
                states.append(results[-1]["state_after"])
        return results, mx.concatenate(states, axis=1)

    @property
    def _output_names(self) -> list[str]:
        """The kernels' names of the program's outputs."""
        return [f"out{i}" for i in range(len(self.program.outputs))]

    def inputs_of(
        self, noise: Slices | None, batch: Batch, sizes: Sequence[int]
    ) -> dict[str, mx.array]:
        """Inputs of all stages, by name."""
        rows = {"targets": batch.targets, "shown": batch.inputs, "listed": batch.features}
        return {
            "table": self.table_of(noise) if noise else pad_flat(mx.zeros(0, mx.int8)),
            "sizes": kept_numbers(*sizes),
            "tokens": pad_flat(batch.tokens.astype(mx.int32)),
        } | {name: pad_flat(array) for name, array in rows.items() if array is not None}

    def output_shapes(self, P: int, T: int, lanes: int) -> OutputShapes:
        """Shapes and types of a stage's outputs; lanes: members of whole threadgroups."""
        return {
            "passed_on": ((T * self.dialect.tile_bytes(self.program.width, lanes),), mx.int8),
            "state_after": ((P, self.program.width), mx.int8),
            "scores": ((P, T), mx.int16),
            "logits": ((P, self.program.vocabulary), mx.int8),
            "totals": ((P, T), mx.uint64),
            "target_logits": ((P, T), mx.int8),
        } | {f"out{i}": ((P, T, out.size), out.dtype) for i, out in enumerate(self.program.outputs)}

    # Kernels, written once.

    @property
    def kernel_count(self) -> int:
        """The number of times that kernels of stages were written."""
        return len(self._kernels) + len(self._credit) + len(self._backward)

    def kernels(self, members: int, noise: Slices | None, result: StageResult) -> list[StageKernel]:
        """Plan and source of every stage, for threadgroups of `members`."""
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, result)
        if key not in self._kernels:
            self._kernels[key] = [
                StageKernel(plan, StageWriter(plan, self.dialect, result, shift=shift).source())
                for plan in self.plans(members, rank, result == "outputs")
            ]
        return self._kernels[key]

    def node_noise_kernels(
        self, members: int, shift: int, crediting: Crediting
    ) -> list[StageKernel]:
        """The kernels of stages that put out, with noise on nodes."""
        key = (members, 0, shift, crediting)
        if key not in self._kernels:
            self._kernels[key] = [
                StageKernel(
                    plan, CreditStageWriter(plan, self.dialect, "outputs", shift=shift).source()
                )
                for plan in self.credit_plans(crediting, members, puts_out=True)
            ]
        return self._kernels[key]

    def credit_kernels(
        self, members: int, shift: int, crediting: Crediting
    ) -> tuple[CreditWork, list[KernelSource]]:
        """The work that follows the stages, and a source for each stage."""
        key = (members, shift, crediting)
        if key not in self._credit:
            plans = self.credit_plans(crediting, members)
            work = CreditWork(plans, credit_kernels(self.dialect), self.dialect.vote_groups)
            writers = (CreditStageWriter(plan, self.dialect, shift=shift) for plan in plans)
            self._credit[key] = work, [writer.source() for writer in writers]
        return self._credit[key]

    def backward_stages(self, members: int, feedback_leaves: frozenset[int]) -> list[BackwardStage]:
        """Plans and kernels, forward and backward, of every stage."""
        key = (members, feedback_leaves)
        if key not in self._backward:
            plans = self.backward_plans(feedback_leaves, members)
            self._backward[key] = [BackwardStage(plan, self.dialect) for plan in plans]
        return self._backward[key]

    # Sizes of launches.

    def group_members(self, P: int, rank: int) -> int:
        """M for a population of P."""
        if (P, rank) not in self._members:
            self._members[P, rank] = self.members or self.choose_members(P, rank)
        return self._members[P, rank]

    def reuse_groups_of(self, P: int, sample: int, rank: int) -> None:
        """Lets a call of `sample` members run in threadgroups as large as those of P."""
        self._members[sample, rank] = self.group_members(P, rank)

    def launch_size(self, P: int, T: int, rank: int, puts_out: bool = False) -> tuple[int, int]:
        """Members (even) and tokens of one launch."""
        key = (rank, puts_out)
        if key not in self._needs:
            self._needs[key] = launch_need(
                [plan for m in self.group_sizes for plan in self.plans(m, *key)]
            )
        return launch_size(self._needs[key], self._limits(puts_out), P, T)

    def credit_launch_size(self, crediting: Crediting, P: int, T: int) -> tuple[int, int]:
        """Members and tokens of a launch where pairs are credited.

        All tokens of a member stay until its scores are there, so its tape bounds the members; in
        time the tokens give way first, as in `launch_size`.
        """
        if crediting not in self._tapes:
            self._tapes[crediting] = credit_need(
                [self.credit_plans(crediting, m) for m in self.group_sizes]
            )
        most = tape_members(self._tapes[crediting], self._limits(), T)
        members, tokens = self.launch_size(min(P, most), T, 0 if crediting.nodes else 1)
        group = crediting.group or 2
        return max(members // group * group, group), tokens

    def backward_launch_size(
        self, feedback_leaves: frozenset[int], P: int, T: int
    ) -> tuple[int, int]:
        """Members and tokens of a launch where errors are carried back; again, all tokens stay."""
        if feedback_leaves not in self._tapes:
            self._tapes[feedback_leaves] = backward_need(
                [self.backward_plans(feedback_leaves, m) for m in self.group_sizes]
            )
        puts_out = not self.program.scored
        most = tape_members(self._tapes[feedback_leaves], self._limits(puts_out), T)
        return self.launch_size(min(P, most), T, 0, puts_out)

    def _limits(self, puts_out: bool = False) -> LaunchLimits:
        program = self.program
        token = 2 * self.dialect.tile_bytes(program.width, 1) + program.inputs
        token += 4 * program.indices
        outputs = sum(out.size * out.dtype.size for out in program.outputs)
        return LaunchLimits(self.memory(), self.pace.macs, token + outputs * puts_out)


# Sizes of launches, by memory and time.


class LaunchLimits(NamedTuple):
    """The limits of one launch."""

    memory: int  # bytes that arrays may take
    macs: int  # multiply-adds
    passed: int  # bytes that a member's token passes to and fro


class LaunchNeed(NamedTuple):
    """The need of a member, at most."""

    scratch: int  # bytes of device memory
    macs: int  # multiply-adds of a token in one launch


def launch_need(plans: Sequence[StagePlan]) -> LaunchNeed:
    """The need of a member by the plans of every stage, for every M there may be."""
    return LaunchNeed(member_scratch(plans), max(1, *(plan.macs for plan in plans)))


def launch_size(need: LaunchNeed, limits: LaunchLimits, P: int, T: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens are
    cut first.
    """
    token = max(limits.passed, 1)
    tokens = min((limits.memory // P - need.scratch) // token, limits.macs // (need.macs * P), T)
    tokens = max(tokens, 1)
    members = limits.memory // (tokens * token + need.scratch)
    members = min(members, limits.macs // (need.macs * tokens))
    return min(P, max(members // 2 * 2, 2)), tokens


class TapeNeed(NamedTuple):
    """The need of a member whose tokens stay until all have run."""

    token: int  # bytes of every token
    member: int  # bytes besides
    group: int  # members of a threadgroup


def credit_need(plans: Sequence[Sequence[CreditPlan]]) -> TapeNeed:
    """The need of a member that is credited.

    plans: of every stage, for every M there may be, the largest first.
    """
    stages, program = plans[0], plans[0][0].program
    scratch = member_scratch([plan for each in plans for plan in each])
    tape = sum(plan.tape_bytes for plan in stages) // 2 + len(program.leaves)
    tape += SORT_BYTES * (1 + program.indices)
    inputs = max(sum(plan.sizes[op.inputs[0]] for op in plan.traced) for plan in stages)
    return TapeNeed(tape, 4 * inputs + scratch, stages[0].members)


def backward_need(plans: Sequence[Sequence[BackwardPlan]]) -> TapeNeed:
    """The need of a member that carries errors back; plans as of `credit_need`."""
    stages, program = plans[0], plans[0][0].program
    scratch = member_scratch([plan for each in plans for plan in each])
    backward = max(-(-plan.backward_scratch // plan.members) for each in plans for plan in each)
    vectors = sum(4 * plan.vector_rows for plan in stages)
    tape = sum(plan.token_bytes for plan in stages) + 2 * SORT_BYTES * (1 + program.indices)
    tape += sum(output.size for output in program.outputs)  # their errors
    return TapeNeed(tape, scratch + backward + vectors, stages[0].members)


def tape_members(need: TapeNeed, limits: LaunchLimits, T: int) -> int:
    """Members (even) whose tapes of T tokens fit into memory; if many, of whole threadgroups."""
    members = limits.memory // (T * (limits.passed + need.token) + need.member)
    return members // need.group * need.group or max(members // 2 * 2, 2)


def joined(arrays: Sequence[mx.array | None]) -> mx.array | None:
    """Arrays of members after one another, if there are any."""
    there = [array for array in arrays if array is not None]
    return mx.concatenate(there) if there else None


def moved_of(leaves: RuleLeaves, made: list[list[mx.array]]) -> mx.array:
    """The number of weights that a rule has moved, of all leaves."""
    moved = ((after[0] != leaf[1]).sum() for leaf, after in zip(leaves, made, strict=True))
    return sum(moved, start=mx.array(0))


def shapes_of_leaves(program: Program) -> Shapes:
    return {leaf.name: leaf.shape for leaf in program.leaves}


def rows_of(a: mx.array, rows: Sequence[int]) -> mx.array:
    """Some rows; neighbours without MLX's gather, which it compiles when it first runs."""
    first, last = rows[0], rows[-1] + 1
    return a[first:last] if [*rows] == [*range(first, last)] else a[mx.array(list(rows))]


def member_scratch(plans: Sequence[StagePlan]) -> int:
    """Bytes of device memory for a member, at most."""
    return max(-(-plan.scratch_bytes // plan.members) for plan in plans)


# Refusals of what a kernel would read beyond an array.

MAX_SHIFT = 27  # of a vector's noise at the largest sigma_shift
# Tokens below their vocabulary, and starts that lie in their table, for as long as they live:
# evaluation and votes of an update have the same starts, and a check may take as long as a launch.
_checked: WeakValueDictionary[tuple[int, ...], mx.array] = WeakValueDictionary()


def check_tokens(program: Program, batch: Batch) -> None:
    """Raises ValueError unless tokens, targets (if there are any) and state are the program's."""
    V, size = program.vocabulary, program.state_size
    tokens, targets, state = batch.tokens, batch.targets, batch.state
    if tokens.ndim != 2 or tokens.size == 0:
        raise ValueError(f"tokens {tokens.shape} must be [P, T]")
    if targets is not None and targets.shape != tokens.shape:
        raise ValueError(f"tokens {tokens.shape} and targets {targets.shape} must be [P, T]")
    if state.shape != (tokens.shape[0], size):
        needed = tokens.shape[0], size
        raise ValueError(f"state is {state.shape}, not [P, state_size] = {needed}")
    for name, array in (("tokens", tokens), ("targets", targets)):
        if array is None or (id(array), V) in _checked:
            continue
        check_ids(name, array, V)


def check_noise(program: Program, noise: Slices, members: int) -> None:
    """Raises ValueError unless every slice of members / 2 pairs lies in the table."""
    if members % 2 or noise.starts.shape != (len(program.leaves), members // 2):
        raise ValueError(f"starts are {noise.starts.shape} for {members} members")
    rooms = rooms_of(noise.table, [leaf.shape for leaf in program.leaves], noise.rank)
    if (id(noise.starts), *rooms) in _checked:
        return
    if (as_unsigned(noise.starts).max(axis=1, initial=0) >= np.array(rooms)).any():
        raise ValueError("a slice of the noise lies beyond the table")
    lie_within(rooms, noise.starts)


def lie_within(rooms: Sequence[int], starts: mx.array) -> None:
    """Tells that starts [leaves, pairs] are below their leaf's room, so that nobody looks again."""
    _checked[id(starts), *rooms] = starts


def check_draws(credit_noise: CreditNoise, P: int, T: int) -> None:
    """Raises ValueError for draws that a kernel would read beyond their array."""
    if credit_noise.draws.shape != (P // 2, T):
        raise ValueError(f"draws are {credit_noise.draws.shape}, not [pairs, T] = {(P // 2, T)}")


def check_credit(
    program: Program, rank: int, signs: mx.array, crediting: Crediting, P: int, T: int
) -> None:
    """Raises ValueError for what a kernel would read beyond an array."""
    leaves, N = program.leaves, P // 2
    if rank != 1:
        raise ValueError(f"noise is of rank {rank}: token credit has rank 1")
    if signs.shape != (len(leaves), N, -(-T // 32)):
        raise ValueError(f"signs are {signs.shape}, not [leaves, pairs, ceil(T / 32)]")
    if any(len(each) != len(leaves) for each in crediting[1:5]):
        raise ValueError("crediting: one number per leaf is needed")
    if any(not 0 <= s <= MAX_SHIFT and s != SILENT for s in crediting.shifts):
        raise ValueError(f"crediting: shifts are 0..{MAX_SHIFT} or silent")
    if any(not 0 <= g <= 15 for g in crediting.discounts):
        raise ValueError("crediting: discounts are 0..15")
    if not (0 <= crediting.credit_shift <= 16 and 0 <= crediting.unit_shift <= 16):
        raise ValueError("crediting: credit_shift and unit_shift are 0..16")
    if crediting.group:
        check_groups(program, crediting, P)
    for stage in program.stages:
        for op in (op for op in stage.ops if op.leaf >= 0):
            kinds = CreditKind.NONE, OF[op.kind][0], *[CreditKind.READOUT] * (op.kind == "score")
            if crediting.kinds[op.leaf] not in kinds:
                raise ValueError("crediting: a leaf's kind does not fit its operation")
    for i, owner in enumerate(crediting.owners):
        if not 0 <= owner < len(leaves):
            raise ValueError("crediting: an owner is no leaf")
        shape = leaves[owner].shape
        if owner != i and (len(shape) != 2 or shape[0] != leaves[i].shape[0]):
            raise ValueError("crediting: a leaf's owner has other outputs")
        if owner != i and crediting.kinds[i] in (CreditKind.TOKENS, CreditKind.FEATURES):
            raise ValueError("crediting: an embedding owns its noise")


def check_groups(program: Program, crediting: Crediting, P: int) -> None:
    """Raises ValueError for members that cannot be compared with the mean of their group."""
    group, nodes = crediting.group, crediting.nodes
    if group < 2 or group % 2 or P % group or not nodes or not program.scored or program.indices:
        raise ValueError(
            f"crediting: groups of {group} need noise on nodes, a score, no features and whole "
            f"groups of {P} members"
        )


def check_back(program: Program, words: mx.array, back: Backward, P: int, T: int) -> None:
    """Raises ValueError for what a kernel would misread on the way back."""
    shapes = shapes_of_leaves(program)
    if words.shape != (P, T) or words.dtype != mx.uint32:
        raise ValueError(f"words are {words.dtype} {words.shape}, not uint32 [P, T] = {(P, T)}")
    if len(back.scales) != len(shapes) or any(not 0 <= h <= MOST for h in back.scales):
        raise ValueError(f"a scale in 0..{MOST} is needed for every leaf")
    for name, F in back.matrices.items():
        if len(F.shape) != 2 or F.shape != shapes.get(name) or F.dtype != mx.int8:
            raise ValueError(f"the matrix of {name!r} that sends credit is not as its leaf")
