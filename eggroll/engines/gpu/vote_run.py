"""The votes of whole sequences on a GPU: two launches, for matrices and for vectors.

Letters: N pairs, Z votes.
"""

from __future__ import annotations

import math

import mlx.core as mx

from eggroll.engines.gpu.counts import split_terms, vote_work
from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect
from eggroll.engines.gpu.launch import Launcher, pad_flat
from eggroll.engines.gpu.votes import vote_sources
from eggroll.noise import Slices
from eggroll.program import Program


def count_votes(
    launcher: Launcher,
    dialect: Dialect,
    program: Program,
    table: mx.array,
    noise: Slices,
    fitness: mx.array,
    clt: bool,
) -> dict[str, mx.array]:
    """Z per leaf, as `Engine.votes` gives it. table: that of the noise, as kernels read it."""
    N, leaves = fitness.size, program.leaves
    given = [table, *map(pad_flat, (noise.starts, fitness.astype(mx.int8)))]
    matrices, vectors = vote_sources(dialect, noise.rank, clt)
    work = vote_work(tuple(leaf.shape for leaf in leaves), VOTE_SIDE)
    flat: dict[bool, mx.array] = {}
    for of_matrix, source, rows, terms, size, threads in (
        (True, matrices, work.tiles, N * noise.rank, work.votes, VOTE_THREADS),
        (False, vectors, work.elements, N, len(work.elements), 1),
    ):
        if not len(rows):
            continue
        groups = -(-len(rows) * threads // VOTE_THREADS)
        parts, share = split_terms(terms, groups)
        sizes = mx.array([N, share, size], mx.int32)
        (Z,) = launcher(
            source,
            [*given, pad_flat(mx.array(rows)), sizes],
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
