"""The CUDA engine: a block of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm/cuda; see docs/cuda.md.
Letters: P members, N pairs, T tokens, D width, V vocabulary, K inputs, O outputs, M members of a
block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

from eggroll.engines import cuda_trial
from eggroll.engines.base import Engine
from eggroll.engines.cuda_plan import (
    MEMBERS,
    PRODUCTS,
    CudaPlan,
    Target,
    block_members,
    cuda_plans,
    target,
)
from eggroll.engines.cuda_source import (
    VOTE_SIDE,
    VOTE_THREADS,
    Source,
    stage_source,
    tile_bytes,
    vote_sources,
)
from eggroll.engines.metal import Shape, at_least, check_noise, extreme
from eggroll.engines.metal_plan import PRODUCTS as MATRIX_KINDS
from eggroll.engines.metal_plan import padded, shares, vote_work
from eggroll.errors import InputError
from eggroll.model import Program, Stage, Weights
from eggroll.noise import Slices

LAUNCH_MACS = 1 << 42  # of one launch: seconds at most, as a GPU that drives a display ends longer


class Kernel(NamedTuple):
    """A stage's plan, and the source generated from it."""

    plan: CudaPlan
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
def compiled(source: Source, architecture: int) -> Any:
    """The kernel as MLX compiles it; its name tells all it is made of, as MLX caches by names."""
    parts = (str(architecture), *source.inputs, *source.outputs, source.header, source.body)
    digest = hashlib.sha256("\0".join(parts).encode("ascii")).hexdigest()[:16]
    return mx.fast.cuda_kernel(
        name=f"{source.name}_{digest}",
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
        shared_memory=source.shared,
    )


def launch(
    source: Source,
    inputs: Sequence[mx.array],
    outputs: Sequence[tuple[Shape, mx.Dtype]],
    grid: Shape,
    threadgroup: Shape,
) -> list[mx.array]:
    """Runs a kernel on the GPU through mx.fast.cuda_kernel."""
    shapes, dtypes = zip(*outputs, strict=True)
    return compiled(source, cuda_trial.architecture())(  # type: ignore[no-any-return]
        inputs=list(inputs),
        output_shapes=list(shapes),
        output_dtypes=list(dtypes),
        grid=grid,
        threadgroup=threadgroup,
    )


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/32][K/32][2][lane][16 bytes], flat.

    A lane is 4 group + quad; its bytes are [input half][row half][4], of outputs 4 group + 2 i +
    row half and inputs 8 quad + 4 input half + 0..3.
    """
    O, K = w.shape
    w = mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)])
    w = w.reshape(padded(O) // 32, 8, 2, 2, padded(K) // 32, 4, 2, 4)
    return w.transpose(0, 4, 2, 1, 5, 6, 3, 7).reshape(-1)


def words(a: mx.array) -> mx.array:
    """Bytes, flat, with zeros up to whole words; kernels read a table by words."""
    return at_least(a, -(-a.size // 4) * 4)


class CudaEngine(Engine):
    """Custom CUDA kernels.

    launcher runs them; members fixes M (0: chosen by the population); on is what kernels are
    generated for (None: this machine's GPU).
    """

    name: ClassVar[str] = "cuda"
    credits: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str:
        """No GPU, or a small network does not come out as in plain MLX (tried once a process)."""
        if not cuda_trial.has_gpu():
            return "MLX finds no CUDA GPU"
        why = cuda_trial.failure(chosen_product())
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        slab: int = 0,
        *,
        launcher: Launcher = launch,
        members: int = 0,
        on: Target | None = None,
    ) -> None:
        super().__init__(program, threads, slab)
        self.launcher, self.members = launcher, members
        self.on = on or target(cuda_trial.architecture(), chosen_product())
        self._kernels: dict[tuple[int, int, int, bool], list[Kernel]] = {}
        self._best: dict[tuple[int, int], int] = {}

    @property
    def path(self) -> str:
        return f"cuda (sm_{self.on.architecture}, {self.on.product})"

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        return [self._packed(stage, weights) for stage in self.program.stages]

    def _packed(self, stage: Stage, weights: Weights) -> mx.array:
        parts = [mx.zeros(padded(1), mx.int8)] * all(op.leaf < 0 for op in stage.ops)
        for op in stage.ops:
            if op.leaf >= 0:
                w = weights[self.program.leaves[op.leaf].name]
                flat = packed(w) if op.kind in MATRIX_KINDS else w.reshape(-1)
                parts.append(at_least(flat, padded(flat.size)))
        return mx.concatenate(parts)

    def kernels(self, members: int, noise: Slices | None, logits: bool) -> list[Kernel]:
        """Plan and source of every stage, for blocks of `members`."""
        rank, shift = (noise.rank, noise.shift) if noise else (0, 0)
        key = (members, rank, shift, logits)
        if key not in self._kernels:
            plans = cuda_plans(self.program, self.on, members=members, rank=rank)
            product = self.on.product
            sources = [stage_source(plan, shift, product, logits=logits) for plan in plans]
            self._kernels[key] = list(map(Kernel, plans, sources))
        return self._kernels[key]

    def _members(self, P: int, rank: int) -> int:
        """M for a population of P."""
        if (P, rank) not in self._best:
            best = self.members or block_members(self.program, self.on, rank, P)
            self._best[P, rank] = best
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
        members, columns = piece(self.program, self.on, P, T, rank)
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
        blocks = -(-P // M)
        given = {
            "table": words(noise.table) if noise else mx.zeros(4, mx.int8),
            "sizes": mx.array([T, P, P // 2], mx.int32),
            "tokens": tokens.astype(mx.int32),
            "targets": targets.astype(mx.int32),
        }
        kernels = self.kernels(M, noise, logits)
        made: dict[str, tuple[Shape, mx.Dtype]] = {
            "passed_on": ((blocks * T * tile_bytes(kernels[0].plan),), mx.int8),
            "state_after": ((P, D), mx.int8),
            "scores": ((P, T), mx.int16),
            "logits": ((P, self.program.vocabulary), mx.int8),
        }
        states, got = [mx.zeros((P, 0), mx.int8)], dict[str, mx.array]()
        for (plan, source), weights in zip(kernels, prepared, strict=True):
            at, threads = plan.stage.state, 32 * plan.simdgroups
            starts = noise.starts[mx.array(list(plan.layout))] if noise else mx.zeros(1, mx.int32)
            given |= {"weights": weights, "starts": starts, "state": state[:, at : at + D]}
            made["scratch"] = ((blocks * plan.scratch_bytes,), mx.int8)
            outputs = self.launcher(
                source,
                [given[name] for name in source.inputs],
                [made[name] for name in source.outputs],
                (blocks * threads, 1, 1),
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
        given = [words(noise.table), noise.starts, fitness.astype(mx.int8)]
        matrices, vectors = vote_sources(noise.rank, clt, self.on.product)
        work = vote_work(self.program, VOTE_SIDE)
        flat: dict[bool, mx.array] = {}
        for of_matrix, source, rows, terms, size, threads in (
            (True, matrices, work.tiles, N * noise.rank, work.votes, VOTE_THREADS),
            (False, vectors, work.elements, N, len(work.elements), 1),
        ):
            if not rows:
                continue
            blocks = -(-len(rows) * threads // VOTE_THREADS)
            parts, share = shares(terms, blocks)
            (Z,) = self.launcher(
                source,
                [
                    *given,
                    mx.array(np.array(rows, np.int32)).reshape(-1),
                    mx.array([N, share, size], mx.int32),
                ],
                [((parts, size), mx.int32)],
                (blocks * VOTE_THREADS, parts, 1),
                (VOTE_THREADS, 1, 1),
            )
            flat[of_matrix] = Z.sum(axis=0)
        out, at = {}, {True: 0, False: 0}
        for leaf in leaves:
            kind, size = len(leaf.shape) == 2, math.prod(leaf.shape)
            out[leaf.name] = flat[kind][at[kind] : at[kind] + size].reshape(leaf.shape)
            at[kind] += size
        return out


def chosen_product() -> str:
    """The product that EGGROLL_CUDA names; empty for the fastest.

    Raises InputError for any other name.
    """
    name = cuda_trial.switched()
    if name and name not in PRODUCTS:
        raise InputError(
            f"{cuda_trial.SWITCH}={name!r} is no product of the cuda engine: set it to one of "
            f"{', '.join(PRODUCTS)}, or unset it."
        )
    return name


def piece(program: Program, on: Target, P: int, T: int, rank: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch, bounded in memory and in time.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens
    are cut first.
    """
    plans = [plan for m in MEMBERS for plan in cuda_plans(program, on, members=m, rank=rank)]
    scratch = max(-(-plan.scratch_bytes // plan.members) for plan in plans)
    room = memory() // (2 * (program.width + 7) + scratch)
    room = min(room, LAUNCH_MACS // max(1, *(plan.macs for plan in plans)))
    tokens = min(T, max(room // P, 1))
    return min(P, max(room // tokens // 2 * 2, 2)), tokens


def memory() -> int:
    """Bytes that the arrays between two stages may take: an eighth of the GPU's memory."""
    if not cuda_trial.has_gpu():
        return 1 << 30
    return min(cuda_trial.total_memory() // 8, (1 << 31) - 1)
