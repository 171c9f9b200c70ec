"""The Metal engine: a threadgroup of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm/metal; see docs/metal.md.
Letters: P members, N pairs, T tokens, D width, V vocabulary, K inputs, O outputs, M members of a
threadgroup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.credit import Chance, Crediting
from eggroll.engines import metal_trial
from eggroll.engines.base import Engine
from eggroll.engines.metal_credit import Credited, Work, check_credit
from eggroll.engines.metal_credit_plan import credit_plans
from eggroll.engines.metal_credit_source import credit_source
from eggroll.engines.metal_launch import (
    LEAST,
    Launcher,
    Made,
    Shape,
    at_least,
    check_noise,
    compiled,
    extreme,
    launch,
)
from eggroll.engines.metal_plan import (
    MEMBERS,
    PRODUCTS,
    StagePlan,
    best_members,
    padded,
    shares,
    stage_plans,
    vote_work,
)
from eggroll.engines.metal_source import VOTE_SIDE, stage_source, vote_sources
from eggroll.engines.metal_text import Source
from eggroll.model import Program, Stage, Weights
from eggroll.noise import Slices

__all__ = [
    "LEAST", "Launcher", "MetalEngine", "Shape", "at_least", "check_noise", "compiled", "extreme",
    "launch",
]  # fmt: skip

LAUNCH_MACS = 1 << 38  # of one launch: a fraction of a second, as macOS ends longer ones
VOTE_THREADS = 128  # THREADS of vote_product.metal
SORTED = 12  # bytes of a member's token, half a pair's, where rows are sorted
WHOLE = 32  # members of the largest threadgroup: pieces of these leave none half empty


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: Source


def framed(w: mx.array) -> mx.array:
    """A matrix [O, K] as NAX reads it: rows after each other, with zeros up to multiples of PAD."""
    O, K = w.shape
    return mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)]).reshape(-1)


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/8][K/32][lane][4 steps][2], flat.

    Lane bits 4, 2, 1 are the row of an 8 x 8 matrix, bits 3, 0 and the element its column.
    """
    O, K = w.shape
    w = framed(w).reshape(padded(O) // 8, 2, 2, 2, padded(K) // 32, 4, 2, 2, 2)
    return w.transpose(0, 4, 1, 6, 2, 3, 7, 5, 8).reshape(-1)


class MetalEngine(Engine):
    """Custom Metal kernels.

    launcher runs them; members fixes M (0: chosen by the population); nax switches the path of the
    newer matrix units on or off (None: on where a trial on this machine gives the right integers).
    """

    name: ClassVar[str] = "metal"

    @classmethod
    def missing(cls) -> str:
        """No GPU, or a small network does not come out as in plain MLX (tried once a process)."""
        if not mx.metal.is_available():
            return "MLX finds no Metal GPU"
        why = metal_trial.failure(False)
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        slab: int = 0,
        *,
        launcher: Launcher = launch,
        members: int = 0,
        nax: bool | None = None,
    ) -> None:
        super().__init__(program, threads, slab)
        self.launcher, self.members = launcher, members
        self.nax = metal_trial.nax_usable() if nax is None else nax
        self._kernels: dict[tuple[int, int, int, bool], list[Kernel]] = {}
        self._credited: dict[tuple[int, int, Crediting], tuple[Work, list[Source]]] = {}
        self._best: dict[tuple[int, int], int] = {}

    @property
    def path(self) -> str:
        return f"metal ({'NAX' if self.nax else 'simdgroup matrices'})"

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        return [self._packed(stage, weights) for stage in self.program.stages]

    def _packed(self, stage: Stage, weights: Weights) -> mx.array:
        parts = [mx.zeros(LEAST, mx.int8)] * all(op.leaf < 0 for op in stage.ops)
        for op in stage.ops:
            if op.leaf >= 0:
                w = weights[self.program.leaves[op.leaf].name]
                arrange = framed if self.nax else packed
                flat = arrange(w) if op.kind in PRODUCTS else w.reshape(-1)
                parts.append(at_least(flat, padded(flat.size)))
        return mx.concatenate(parts)

    def kernels(self, members: int, noise: Slices | None, logits: bool) -> list[Kernel]:
        """Plan and source of every stage, for threadgroups of `members`."""
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, logits)
        if key not in self._kernels:
            plans = stage_plans(self.program, members=members, rank=rank, nax=self.nax)
            sources = [stage_source(plan, shift, logits=logits) for plan in plans]
            self._kernels[key] = list(map(Kernel, plans, sources))
        return self._kernels[key]

    def _members(self, P: int, rank: int) -> int:
        """M for a population of P."""
        if (P, rank) not in self._best:
            self._best[P, rank] = self.members or best_members(self.program, rank, P, self.nax)
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
        members, columns = piece(self.program, P, T, rank)
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
        (P, T), M = tokens.shape, self._members(tokens.shape[0], noise.rank if noise else 0)
        given = given_of(noise, tokens, targets, [T, P, P // 2])
        made = outputs_of(self.program, P, T, -(-P // M) * M)
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
        chance: Chance,
        how: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        self._check(noise, tokens, targets, state)
        P, T = tokens.shape
        check_credit(self.program, noise.rank, chance, how, P, T)
        members, columns = credit_piece(self.program, how, P, T)
        scores, states, total = [], [], dict[str, mx.array]()
        for m in range(0, P, members):
            rows, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            some = noise._replace(starts=noise.starts[:, pairs])
            luck = Chance(chance.signs[:, pairs], chance.draws[pairs])
            score, after, Z = self._credit_members(
                prepared, some, luck, how, tokens[rows], targets[rows], state[rows], columns
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
        chance: Chance,
        how: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        columns: int,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """As `credit`, all members in a launch, `columns` tokens at a time."""
        P, T = tokens.shape
        M = self._members(P, 0 if how.nodes else 1)
        work, sources = self.credit_kernels(M, noise.shift, how)
        kernels = list(zip(work.plans, sources, strict=True))
        credited = Credited(self.launcher, work, noise, chance, tokens)
        words, scores = chance.signs.shape[2], []
        for t in range(0, T, columns):
            at = (slice(None), slice(t, t + columns))
            some = tokens[at]
            sizes = [some.shape[1], P, P // 2, t, words, credited.lanes]
            given = given_of(noise, some, targets[at], sizes)
            given["draws"] = at_least(chance.draws[at])
            made = outputs_of(self.program, P, some.shape[1], 2 * credited.lanes)
            left = partial(credited.outputs, some.shape[1])
            got, state = self._stages(
                kernels, prepared, given, made, noise, state, chance.signs, left
            )
            credited.add(t, some.shape[1], got)
            scores.append(got[-1]["scores"])
        score = mx.concatenate(scores, axis=1)
        return score, state, credited.votes(score)

    def credit_kernels(self, members: int, shift: int, how: Crediting) -> tuple[Work, list[Source]]:
        """What pairs are credited by: the work that follows the stages, and a source for each."""
        key = (members, shift, how)
        if key not in self._credited:
            plans = credit_plans(self.program, how, members=members, nax=self.nax)
            self._credited[key] = Work(plans), [credit_source(plan, shift) for plan in plans]
        return self._credited[key]

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        N, leaves = fitness.size, self.program.leaves
        check_noise(self.program, noise, 2 * N)
        given = [at_least(a) for a in (noise.table, noise.starts, fitness.astype(mx.int8))]
        matrices, vectors = vote_sources(noise.rank, clt)
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
    noise: Slices | None, tokens: mx.array, targets: mx.array, sizes: Sequence[int]
) -> dict[str, mx.array]:
    """What all stages are given, by name."""
    return {
        "table": at_least(noise.table) if noise else mx.zeros(LEAST, mx.int8),
        "sizes": mx.array(list(sizes), mx.int32),
        "tokens": at_least(tokens.astype(mx.int32)),
        "targets": at_least(targets.astype(mx.int32)),
    }


def outputs_of(program: Program, P: int, T: int, members: int) -> Made:
    """Shapes and types of what a stage gives; `members` counts those of whole threadgroups."""
    return {
        "passed_on": ((members * T * program.width,), mx.int8),
        "state_after": ((P, program.width), mx.int8),
        "scores": ((P, T), mx.int16),
        "logits": ((P, program.vocabulary), mx.int8),
    }


def piece(program: Program, P: int, T: int, rank: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch, bounded in memory and in time.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens
    are cut first.
    """
    plans = stage_plans(program, members=MEMBERS[-1], rank=rank)
    room = memory() // (2 * program.width + max(plan.scratch_bytes for plan in plans))
    room = min(room, LAUNCH_MACS // max(1, *(plan.macs for plan in plans)))
    tokens = min(T, max(room // P, 1))
    return min(P, max(room // tokens // 2 * 2, 2)), tokens


def credit_piece(program: Program, how: Crediting, P: int, T: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch where pairs are credited.

    All tokens of a member stay until its scores are known, so its tape bounds the members; in time
    the tokens give way first, as in `piece`.
    """
    plans = credit_plans(program, how, members=MEMBERS[-1])
    tape = sum(plan.tape_bytes for plan in plans) // 2 + len(program.leaves) + SORTED
    inputs = max(sum(plan.sizes[op.inputs[0]] for op in plan.traced) for plan in plans)
    scratch = max(plan.scratch_bytes for plan in plans)
    room = memory() // (T * (2 * program.width + tape) + 4 * inputs + scratch)
    members = min(P, room // WHOLE * WHOLE or max(room // 2 * 2, 2))
    some, tokens = piece(program, members, T, 0 if how.nodes else 1)
    return some, tokens


def memory() -> int:
    """Bytes that the arrays between two stages may take: an eighth of the working set."""
    if not mx.metal.is_available():
        return 1 << 30
    return min(int(mx.device_info()["max_recommended_working_set_size"]) // 8, (1 << 31) - 1)
