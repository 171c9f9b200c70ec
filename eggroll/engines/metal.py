"""The Metal engine: a threadgroup of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm/metal; see docs/metal.md.
Letters: P members, N pairs, T tokens, D width, V vocabulary, K inputs, O outputs, M members of a
threadgroup.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from eggroll.engines import metal_trial
from eggroll.engines.base import Engine
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
from eggroll.engines.metal_source import VOTE_SIDE, Source, stage_source, vote_sources
from eggroll.model import Program, Stage, Weights
from eggroll.noise import Slices, slice_length

Shape = tuple[int, ...]
LEAST = 8  # smaller inputs become `constant` in MLX's kernels, another type than `device`
LAUNCH_MACS = 1 << 38  # of one launch: a fraction of a second, as macOS ends longer ones
VOTE_THREADS = 128  # THREADS of votes.metal


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: StagePlan
    source: Source


class Launcher(Protocol):
    """Runs a kernel: inputs by position; grid counts threads. Returns one array per output."""

    def __call__(
        self,
        source: Source,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        grid: Shape,
        threadgroup: Shape,
    ) -> list[mx.array]: ...


@cache
def compiled(source: Source) -> Any:
    """The kernel as MLX compiles it; its name tells its text, as MLX's cache goes by names."""
    text = "\0".join((*source.inputs, *source.outputs, source.header, source.body))
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()[:16]
    return mx.fast.metal_kernel(
        name=f"{source.name}_{digest}",
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
    )


def launch(
    source: Source,
    inputs: Sequence[mx.array],
    outputs: Sequence[tuple[Shape, mx.Dtype]],
    grid: Shape,
    threadgroup: Shape,
) -> list[mx.array]:
    """Runs a kernel on the GPU through mx.fast.metal_kernel."""
    shapes, dtypes = zip(*outputs, strict=True)
    return compiled(source)(  # type: ignore[no-any-return]
        inputs=list(inputs),
        output_shapes=list(shapes),
        output_dtypes=list(dtypes),
        grid=grid,
        threadgroup=threadgroup,
    )


def at_least(a: mx.array, size: int = LEAST) -> mx.array:
    """The array, flat, with zeros up to `size` elements."""
    a = a.reshape(-1)
    return a if a.size >= size else mx.concatenate([a, mx.zeros(size - a.size, a.dtype)])


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
    credits: ClassVar[bool] = False

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
        (P, T), D = tokens.shape, self.program.width
        M = self._members(P, noise.rank if noise else 0)
        groups = -(-P // M)
        given = {
            "table": at_least(noise.table) if noise else mx.zeros(LEAST, mx.int8),
            "sizes": mx.array([T, P, P // 2], mx.int32),
            "tokens": at_least(tokens.astype(mx.int32)),
            "targets": at_least(targets.astype(mx.int32)),
        }
        made = outputs_of(self.program, P, T, groups * M)
        states, got = [mx.zeros((P, 0), mx.int8)], dict[str, mx.array]()
        for (plan, source), weights in zip(self.kernels(M, noise, logits), prepared, strict=True):
            at, threads = plan.stage.state, 32 * plan.simdgroups
            starts = noise.starts[mx.array(list(plan.layout))] if noise else mx.zeros(1, mx.int32)
            given |= {"weights": weights, "starts": at_least(starts)}
            given["state"] = at_least(state[:, at : at + D])
            made["scratch"] = ((groups * plan.scratch_bytes,), mx.int8)
            outputs = self.launcher(
                source,
                [given[name] for name in source.inputs],
                [made[name] for name in source.outputs],
                (groups * threads, 1, 1),
                (threads, 1, 1),
            )
            got |= dict(zip(source.outputs, outputs, strict=True))
            if plan.passes_on:
                given["passed"] = got["passed_on"]
            if at >= 0:
                states.append(got["state_after"])
        return got["logits" if logits else "scores"], mx.concatenate(states, axis=1)

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


def outputs_of(program: Program, P: int, T: int, members: int) -> dict[str, tuple[Shape, mx.Dtype]]:
    """Shapes and types of what a stage gives; `members` counts those of whole threadgroups."""
    return {
        "passed_on": ((members * T * program.width,), mx.int8),
        "state_after": ((P, program.width), mx.int8),
        "scores": ((P, T), mx.int16),
        "logits": ((P, program.vocabulary), mx.int8),
    }


def extreme(of: Callable[..., mx.array], a: mx.array) -> int:
    """The least or the largest element, found on the CPU so as not to wait for the GPU."""
    return int(np.array(of(a, stream=mx.cpu)))


def check_noise(program: Program, noise: Slices, members: int) -> None:
    """Raises ValueError unless every slice of members / 2 pairs lies in the table."""
    if members % 2 or noise.starts.shape != (len(program.leaves), members // 2):
        raise ValueError(f"starts are {noise.starts.shape} for {members} members")
    longest = np.array([slice_length(leaf.shape, noise.rank) for leaf in program.leaves], np.int32)
    ends = mx.add(noise.starts, mx.array(longest)[:, None], stream=mx.cpu)
    if extreme(mx.min, noise.starts) < 0 or extreme(mx.max, ends) > noise.table.size:
        raise ValueError("a slice of the noise lies beyond the table")


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


def memory() -> int:
    """Bytes that the arrays between two stages may take: an eighth of the working set."""
    if not mx.metal.is_available():
        return 1 << 30
    return min(int(mx.device_info()["max_recommended_working_set_size"]) // 8, (1 << 31) - 1)
