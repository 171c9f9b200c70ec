"""What the engines on GPUs share: a group of members runs all T tokens of a stage in one launch.

Letters: P members, N pairs, T tokens, D width, V vocabulary, M members of a threadgroup, which CUDA
calls a block.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.credit import Crediting, CreditNoise
from eggroll.engines.base import Engine
from eggroll.engines.gpu.credit import Credited, Work, check_credit
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.launch import Launcher, Made, at_least, check_noise, extreme
from eggroll.engines.gpu.plan import StagePlan, shares, vote_work
from eggroll.engines.gpu.text import Source
from eggroll.engines.metal.source import VOTE_SIDE
from eggroll.errors import InputError
from eggroll.noise import Slices
from eggroll.program import Program

VOTE_THREADS = 128  # THREADS of the kernels that count votes
SORTED = 12  # bytes of a member's token, half a pair's, where rows are sorted


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: Source


class StagedEngine(Engine):
    """An engine whose kernels are generated from the plans of a program's stages."""

    def __init__(
        self, program: Program, threads: int, slab: int, launcher: Launcher, members: int
    ) -> None:
        super().__init__(program, threads, slab)
        if program.score_bits != 4:
            raise InputError(
                f"engine {self.name!r} has no --score-bits {program.score_bits}: use 4, or "
                "--engine cpu."
            )
        self.launcher, self.members = launcher, members
        self._best: dict[tuple[int, int], int] = {}

    @abstractmethod
    def kernels(self, members: int, noise: Slices | None, logits: bool) -> Sequence[Kernel]:
        """Plan and source of every stage, for threadgroups of `members`."""

    @abstractmethod
    def credit_kernels(self, members: int, shift: int, how: Crediting) -> tuple[Work, list[Source]]:
        """What pairs are credited by: the work that follows the stages, and a source for each."""

    @abstractmethod
    def vote_sources(self, rank: int, clt: bool) -> tuple[Source, Source]:
        """The kernels that count the votes of matrices and of vectors."""

    @abstractmethod
    def choose_members(self, P: int, rank: int) -> int:
        """M that suits a population of P."""

    @abstractmethod
    def piece(self, P: int, T: int, rank: int) -> tuple[int, int]:
        """Members (even) and tokens of one launch, bounded in memory and in time."""

    @abstractmethod
    def credit_piece(self, how: Crediting, P: int, T: int) -> tuple[int, int]:
        """The same where pairs are credited."""

    @abstractmethod
    def tile_bytes(self, members: int) -> int:
        """Of a token's activations of `members`, as a stage passes them on."""

    def table_of(self, noise: Slices) -> mx.array:
        """The noise table as kernels read it."""
        return at_least(noise.table)

    def best(self, P: int, rank: int) -> int:
        """M for a population of P."""
        if (P, rank) not in self._best:
            self._best[P, rank] = self.members or self.choose_members(P, rank)
        return self._best[P, rank]

    def evaluate(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
    ) -> tuple[mx.array, mx.array]:
        self._check(noise, tokens, targets, state)
        scores, states = [], []
        (P, T), rank = tokens.shape, noise.rank if noise else 0
        members, columns = self.piece(P, T, rank)
        for m in range(0, P, members):
            rows = slice(m, m + members)
            pairs = slice(m // 2, (m + members) // 2)
            part = noise._replace(starts=noise.starts[:, pairs]) if noise else None
            after, row = state[rows], []
            for t in range(0, T, columns):
                at = (rows, slice(t, t + columns))
                score, after = self._run(prepared, part, tokens[at], targets[at], after, False)
                row.append(score)
            scores.append(mx.concatenate(row, axis=1))
            states.append(after)
        return mx.concatenate(scores), mx.concatenate(states)

    def logits(self, prepared: Any, tokens: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        tokens = tokens[:, None]
        self._check(None, tokens, tokens, state)
        return self._run(prepared, None, tokens, tokens, state, True)

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
            if extreme(mx.min, array) < 0 or extreme(mx.max, array) >= V:
                raise ValueError(f"{name} must be in 0..{V - 1}")
        if noise:
            check_noise(self.program, noise, P)

    def _run(
        self,
        prepared: list[mx.array],
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        logits: bool,
    ) -> tuple[mx.array, mx.array]:
        """One launch per stage. Scores int16 [P, T] or logits int8 [P, V], and the new state."""
        (P, T), M = tokens.shape, self.best(tokens.shape[0], noise.rank if noise else 0)
        given = self.given_of(noise, tokens, targets, [T, P, P // 2])
        made = self.outputs_of(P, T, -(-P // M) * M)
        kernels = self.kernels(M, noise, logits)
        got, after = self._stages(kernels, prepared, given, made, noise, state)
        return got[-1]["logits" if logits else "scores"], after

    def _stages(
        self,
        kernels: Sequence[tuple[StagePlan, Source]],
        prepared: list[mx.array],
        given: dict[str, mx.array],
        made: Made,
        noise: Slices | None,
        state: mx.array,
        signs: mx.array | None = None,
        left: Callable[[StagePlan], Made] = lambda _: {},
    ) -> tuple[list[dict[str, mx.array]], mx.array]:
        """One launch per stage: what each gives by name, and the new state.

        given: inputs by name; made, left: outputs of all stages, and of one for token credit.
        """
        P, D = state.shape[0], self.program.width
        states, got = [mx.zeros((P, 0), mx.int8)], list[dict[str, mx.array]]()
        for (plan, source), weights in zip(kernels, prepared, strict=True):
            at, threads = plan.stage.state, 32 * plan.simdgroups
            leaves, groups = mx.array(list(plan.layout) or [0]), -(-P // plan.members)
            starts = noise.starts[leaves] if noise else mx.zeros(1, mx.int32)
            given |= {"weights": weights, "starts": at_least(starts)}
            given |= {"signs": at_least(signs[leaves])} if signs is not None else {}
            given["state"] = at_least(state[:, at : at + D])
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
        how: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        self._check(noise, tokens, targets, state)
        P, T = tokens.shape
        check_credit(self.program, noise.rank, credit_noise, how, P, T)
        members, columns = self.credit_piece(how, P, T)
        scores, states, total = [], [], dict[str, mx.array]()
        for m in range(0, P, members):
            rows, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            some = noise._replace(starts=noise.starts[:, pairs])
            credit_noise = CreditNoise(credit_noise.signs[:, pairs], credit_noise.draws[pairs])
            score, after, Z = self._credit_members(
                prepared, some, credit_noise, how, tokens[rows], targets[rows], state[rows], columns
            )
            scores.append(score)
            states.append(after)
            total = {name: total[name] + z if total else z for name, z in Z.items()}
            if members < P:  # so that the tapes of one piece are gone before the next one's come
                mx.eval(score, after, total)
        return mx.concatenate(scores), mx.concatenate(states), total

    def _credit_members(
        self,
        prepared: list[mx.array],
        noise: Slices,
        credit_noise: CreditNoise,
        how: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        columns: int,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """As `credit`, all members in a launch, `columns` tokens at a time."""
        P, T = tokens.shape
        M = self.best(P, 0 if how.nodes else 1)
        work, sources = self.credit_kernels(M, noise.shift, how)
        kernels = list(zip(work.plans, sources, strict=True))
        credited = Credited(self.launcher, work, noise, credit_noise, tokens)
        words, scores = credit_noise.signs.shape[2], []
        for t in range(0, T, columns):
            at = (slice(None), slice(t, t + columns))
            some = tokens[at]
            sizes = [some.shape[1], P, P // 2, t, words, credited.lanes]
            given = self.given_of(noise, some, targets[at], sizes)
            given["draws"] = at_least(credit_noise.draws[at])
            made = self.outputs_of(P, some.shape[1], 2 * credited.lanes)
            left = partial(credited.outputs, some.shape[1])
            got, state = self._stages(
                kernels, prepared, given, made, noise, state, credit_noise.signs, left
            )
            credited.add(t, some.shape[1], got)
            scores.append(got[-1]["scores"])
        score = mx.concatenate(scores, axis=1)
        return score, state, credited.votes(score)

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        N, leaves = fitness.size, self.program.leaves
        check_noise(self.program, noise, 2 * N)
        given = [self.table_of(noise), *map(at_least, (noise.starts, fitness.astype(mx.int8)))]
        matrices, vectors = self.vote_sources(noise.rank, clt)
        work = vote_work(self.program, VOTE_SIDE)
        flat: dict[bool, mx.array] = {}
        for of_matrix, source, rows, terms, size, threads in (
            (True, matrices, work.tiles, N * noise.rank, work.votes, VOTE_THREADS),
            (False, vectors, work.elements, N, len(work.elements), 1),
        ):
            if not rows:
                continue
            groups = -(-len(rows) * threads // VOTE_THREADS)
            parts, share = shares(terms, groups)
            sizes = mx.array([N, share, size], mx.int32)
            (Z,) = self.launcher(
                source,
                [*given, at_least(mx.array(np.array(rows, np.int32))), sizes],
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
        """What all stages are given, by name."""
        return {
            "table": self.table_of(noise) if noise else at_least(mx.zeros(0, mx.int8)),
            "sizes": mx.array(list(sizes), mx.int32),
            "tokens": at_least(tokens.astype(mx.int32)),
            "targets": at_least(targets.astype(mx.int32)),
        }

    def outputs_of(self, P: int, T: int, members: int) -> Made:
        """Shapes and types of what a stage gives; `members` counts those of whole threadgroups."""
        return {
            "passed_on": ((T * self.tile_bytes(members),), mx.int8),
            "state_after": ((P, self.program.width), mx.int8),
            "scores": ((P, T), mx.int16),
            "logits": ((P, self.program.vocabulary), mx.int8),
        }


def tape_members(
    plans: Sequence[CreditPlan], memory: int, passed: int, scratch: int, T: int, whole: int
) -> int:
    """Members (even) whose tapes of T tokens fit into `memory` bytes; of groups of `whole` if many.

    passed: bytes of a member's token between stages; scratch: of device memory for a member.
    """
    program = plans[0].program
    tape = sum(plan.tape_bytes for plan in plans) // 2 + len(program.leaves) + SORTED
    inputs = max(sum(plan.sizes[op.inputs[0]] for op in plan.traced) for plan in plans)
    room = memory // (T * (passed + tape) + 4 * inputs + scratch)
    return room // whole * whole or max(room // 2 * 2, 2)
