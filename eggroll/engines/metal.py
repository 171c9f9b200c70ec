"""The Metal engine: a threadgroup of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm/metal; see docs/metal.md.
Letters: P members, N pairs, T tokens, D width, V vocabulary, K inputs, O outputs, M members of a
threadgroup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Protocol

import mlx.core as mx
import numpy as np

from eggroll.engines.base import Engine
from eggroll.engines.metal_plan import PRODUCTS, StagePlan, best_members, padded, shares, vote_tiles
from eggroll.engines.metal_source import VOTE_SIDE, Source, stage_source, vote_sources
from eggroll.model import Program, Weights
from eggroll.noise import Slices

Shape = tuple[int, ...]
LEAST = 8  # smaller inputs become `constant` in MLX's kernels, another type than `device`
LAUNCH_MACS = 1 << 38  # of one launch: a fraction of a second, as macOS ends longer ones
VOTE_THREADS = 128  # THREADS of votes.metal


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


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/8][K/32][lane][4 steps][2], flat.

    Lane bits 4, 2, 1 are the row of an 8 x 8 matrix, bits 3, 0 and the element its column.
    """
    O, K = w.shape
    w = mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)])
    w = w.reshape(padded(O) // 8, 2, 2, 2, padded(K) // 32, 4, 2, 2, 2)
    return w.transpose(0, 4, 1, 6, 2, 3, 7, 5, 8).reshape(-1)


class MetalEngine(Engine):
    """Custom Metal kernels; `launcher` runs them, `members` fixes M (0: chosen per population)."""

    name: ClassVar[str] = "metal"

    @classmethod
    def missing(cls) -> str:
        return "" if mx.metal.is_available() else "MLX has no Metal back end here"

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        *,
        launcher: Launcher = launch,
        members: int = 0,
    ) -> None:
        super().__init__(program, threads)
        self.launcher, self.members = launcher, members

    @property
    def path(self) -> str:
        return "metal (simdgroup matrices)"

    @cache  # noqa: B019: an engine lives as long as its run
    def plans(self, members: int, rank: int, perturbed: bool) -> list[StagePlan]:
        """A plan per stage for threadgroups of `members`."""
        stages = range(len(self.program.stages))
        return [
            StagePlan(self.program, i, members=members, rank=rank, perturbed=perturbed)
            for i in stages
        ]

    def prepare(self, weights: Weights) -> list[mx.array]:
        """One int8 array per stage: its leaves one after the other, matrices packed for lanes."""
        out = []
        for stage in self.program.stages:
            parts = []
            for op in stage.ops:
                if op.leaf >= 0:
                    w = weights[self.program.leaves[op.leaf].name]
                    flat = packed(w) if op.kind in PRODUCTS else w.reshape(-1)
                    parts.append(at_least(flat, padded(flat.size)))
            out.append(at_least(mx.concatenate(parts)))
        return out

    def evaluate(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
    ) -> tuple[mx.array, mx.array]:
        rows, states = [], []
        P, T = tokens.shape
        most_members, most_tokens = self.piece(P, T)
        for m in range(0, P, most_members):
            members = slice(m, m + most_members)
            part = noise and noise._replace(starts=noise.starts[:, m // 2 : (m + most_members) // 2])
            after, columns = state[members], []
            for t in range(0, T, most_tokens):
                at = (members, slice(t, t + most_tokens))
                score, after = self._run(prepared, part, tokens[at], targets[at], after, False)
                columns.append(score)
            rows.append(mx.concatenate(columns, axis=1))
            states.append(after)
        return mx.concatenate(rows), mx.concatenate(states)

    def logits(self, prepared: Any, tokens: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        tokens = tokens[:, None]
        return self._run(prepared, None, tokens, tokens, state, True)

    def piece(self, P: int, T: int) -> tuple[int, int]:
        """Members (even) and tokens of one launch: bounded in memory and in time."""
        D = self.program.width
        macs = max(sum(p.macs for p in [plan]) for plan in self.plans(8, 1, False)) or 1
        tokens = max(1, min(T, memory() // (2 * D * min(P, 1024)), LAUNCH_MACS // (macs * min(P, 1024))))
        members = min(memory() // (2 * D * tokens), LAUNCH_MACS // (macs * tokens))
        return max(1024, members // 2 * 2), tokens

    def _run(
        self,
        prepared: list[mx.array],
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        logits: bool,
    ) -> tuple[mx.array, mx.array]:
        """Scores int16 [P, T] or logits int8 [P, V], and the new state."""
        (P, T), D = tokens.shape, self.program.width
        rank, shift = (noise.rank, noise.shift) if noise else (1, 0)
        table = at_least(noise.table) if noise else mx.zeros(LEAST, mx.int8)
        perturbed = noise is not None
        M = self.members or best_members(
            self.program, rank=rank, perturbed=perturbed, population=P
        )
        groups = -(-P // M)
        sizes = mx.array([T, P, P // 2 if noise else 1], mx.int32)
        given = {
            "table": table,
            "sizes": sizes,
            "tokens": at_least(tokens.astype(mx.int32)),
            "targets": at_least(targets.astype(mx.int32)),
        }
        shapes = {
            "passed_on": ((groups * T * D * M,), mx.int8),
            "state_after": ((P, D), mx.int8),
            "scores": ((P, T), mx.int16),
            "logits": ((P, self.program.vocabulary), mx.int8),
        }
        states, result = [], None
        for plan, weights in zip(self.plans(M, rank, perturbed), prepared, strict=True):
            source = stage_source(plan, shift, logits=logits)
            at = plan.stage.state
            given["weights"] = weights
            starts = noise.starts[mx.array(list(plan.layout))] if noise else mx.zeros(1, mx.int32)
            given["starts"] = at_least(starts)
            given["state"] = at_least(state[:, at : at + D])
            shapes["scratch"] = ((groups * plan.scratch_bytes,), mx.int8)
            threads = 32 * plan.simdgroups
            outputs = self.launcher(
                source,
                [given[name] for name in source.inputs],
                [shapes[name] for name in source.outputs],
                (groups * threads, 1, 1),
                (threads, 1, 1),
            )
            got = dict(zip(source.outputs, outputs, strict=True))
            given["passed"] = got.get("passed_on", given["table"])
            states += [got["state_after"]] if "state_after" in got else []
            result = got.get("scores", got.get("logits", result))
        assert result is not None
        return result, mx.concatenate([mx.zeros((P, 0), mx.int8), *states], axis=1)

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        tiles, vectors, total = vote_tiles(self.program, VOTE_SIDE)
        matrix_source, vector_source = vote_sources(noise.rank, clt)
        pairs = fitness.size
        table, starts, f = at_least(noise.table), at_least(noise.starts), at_least(fitness)
        splits, share = shares(pairs * noise.rank, len(tiles), 32)
        sizes = mx.array([pairs, share, 0, total], mx.int32)
        work = at_least(mx.array(np.array(tiles, np.int32)))
        (Z,) = self.launcher(
            matrix_source,
            [table, starts, f, work, sizes],
            [((splits, total), mx.int32)],
            (len(tiles) * VOTE_THREADS, splits, 1),
            (VOTE_THREADS, 1, 1),
        )
        flat = Z.sum(axis=0)
        out, at = {}, 0
        for leaf in self.program.leaves:
            if len(leaf.shape) == 2:
                size = leaf.shape[0] * leaf.shape[1]
                out[leaf.name] = flat[at : at + size].reshape(leaf.shape)
                at += size
        elements = [(i, k) for i, n in vectors for k in range(n)]
        splits, share = shares(pairs, -(-len(elements) // 64), 32)
        sizes = mx.array([pairs, share, len(elements)], mx.int32)
        (Z,) = self.launcher(
            vector_source,
            [table, starts, f, at_least(mx.array(np.array(elements, np.int32))), sizes],
            [((splits, len(elements)), mx.int32)],
            (padded(len(elements)), splits, 1),
            (32, 1, 1),
        )
        flat, at = Z.sum(axis=0), 0
        for i, n in vectors:
            out[self.program.leaves[i].name] = flat[at : at + n]
            at += n
        return {leaf.name: out[leaf.name] for leaf in self.program.leaves}


def memory() -> int:
    """Bytes that the arrays passed between two stages may take: an eighth of the working set."""
    if not mx.metal.is_available():
        return 1 << 30
    return min(int(mx.device_info()["max_recommended_working_set_size"]) // 8, (1 << 31) - 1)
