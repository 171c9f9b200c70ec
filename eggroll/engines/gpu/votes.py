"""The kernels that count votes, with token credit and without: the same for all networks.

Letters: T tokens, K inputs, Z votes. Lanes are the pairs of whole threadgroups.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import mlx.core as mx

from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect, Source
from eggroll.engines.gpu.launch import Launcher, pad_flat, split_terms, vote_work
from eggroll.spec.noise import Slices
from eggroll.spec.program import Program

VOTES = """\
const $uint begin = $part * sizes[1];
egg::PairTerms terms;
terms.fitness = fitness;
terms.table = table;
terms.starts = starts;
terms.pairs = sizes[0];
egg::matrix_votes(Z + $part * sizes[2], left, right, egg::tile_of(work + 6 * $group), terms, begin,
                  min(begin + $uint(sizes[1]), $uint(sizes[0] * RANK)), @);
"""
VECTOR_VOTES = """\
const $uint at = $thread;
if (at < $uint(sizes[2])) {
  const $uint begin = $part * sizes[1];
  Z[$part * sizes[2] + at] =
      egg::vector_vote(work[2 * at], work[2 * at + 1], fitness, table, starts, sizes[0], begin,
                       min(begin + $uint(sizes[1]), $uint(sizes[0])));
}
"""
CREDITS = """\
const $uint lanes = sizes[4], at = $thread;
if (at < $uint(sizes[0]) * lanes) {
  egg::Pairs of;
  of.scores = scores;
  of.tokens = tokens;
  of.signs = signs;
  of.starts = starts;
  of.projections = projection;
  of.table = table;
  of.pairs = sizes[2];
  of.lanes = lanes;
  of.T = sizes[1];
  of.words = sizes[3];
  of.unit = sizes[6];
  of.unit_shift = sizes[7];
  const $uint credit = at / lanes, lane = at % lanes;
  const int sum = egg::weigh(credits + credit * of.T * lanes + lane,
                             egg::credit_of(work + 5 * credit), of, lane);
  sums[at] = int8_t(egg::clip(egg::rounded(sum, sizes[5])));
}
"""
WEIGHED = """egg::weigh(credits + credit * of.T * lanes + lane,
                             egg::credit_of(work + 5 * credit), of, lane)"""
WEIGHED_BOTH = """egg::weigh_both(credits + credit * of.T * lanes + lane,
                                  egg::credit_of(work + 5 * credit), of, sizes[8], lane)"""
CREDIT_VOTES = """\
const ${device}int32_t* const mine = work + 8 * $group;
const $uint begin = $part * sizes[1];
egg::CreditTerms terms;
terms.table = table;
terms.starts = starts;
terms.sums = sums;
terms.pairs = sizes[0];
terms.at = mine[6];
terms.first = mine[7] * sizes[0];
terms.shift = sizes[3];
egg::matrix_votes(Z + $part * sizes[2], left, right, egg::tile_of(mine), terms, begin,
                  min(begin + $uint(sizes[1]), $uint(sizes[0])), @);
"""
CREDIT_VECTOR_VOTES = """\
const $uint at = $thread;
if (at < $uint(sizes[2])) {
  const ${device}int32_t* const mine = work + 4 * at;
  const $uint begin = $part * sizes[1];
  Z[$part * sizes[2] + at] = egg::vector_vote(
      mine[0], mine[1], mine[3], sums + mine[2] * sizes[3], table, starts, sizes[0], begin,
      min(begin + $uint(sizes[1]), $uint(sizes[0])));
}
"""
ROW_VOTES = """\
const $uint columns = sizes[1], blocks = (columns + 31) / 32, at = $thread, task = at / 32;
const $uint row = task / blocks, column = task % blocks * 32 + at % 32;
if (row < $uint(sizes[0]) && column < columns) {
  const $uint count = sizes[2], begin = $part * sizes[3];
  @
  Z[($part * sizes[0] + row) * columns + column] =
      egg::row_vote(from, sorted, order, count, begin, min(begin + $uint(sizes[3]), count), row,
                    column);
}
"""
EMBEDDED = """\
egg::Embedded from;
  from.table = table;
  from.credits = credits + sizes[6];
  from.starts = starts;
  from.T = sizes[4];
  from.lanes = sizes[5];"""
FEATURED = """\
egg::Featured from;
  from.table = table;
  from.credits = credits + sizes[6];
  from.starts = starts;
  from.T = sizes[4];
  from.lanes = sizes[5];
  from.indices = sizes[7];
  from.active = sizes[8];
  from.columns = columns;
  from.row = row;
  from.nodes = sizes[9] != 0;"""
CARRIED_VOTES = """\
const ${device}int32_t* const mine = work + 8 * $group;
const $uint begin = $part * sizes[1];
egg::CarriedTerms terms;
terms.tape = tape;
terms.credits = credits;
terms.rows = sizes[3];
terms.credit_rows = sizes[4];
terms.row = mine[6];
terms.credit_row = mine[7];
egg::matrix_votes(Z + $part * sizes[2], left, right, egg::tile_of(mine), terms, begin,
                  min(begin + $uint(sizes[1]), $uint(sizes[0])), @);
"""
CARRIED = """\
egg::Carried from;
  from.credits = credits;
  from.rows = sizes[4];
  from.row = sizes[5];
  from.lists = sizes[6];
  from.columns = columns;"""
READ = """\
egg::Read from;
  from.inputs = read;
  from.K = columns;"""


class CreditKernels(NamedTuple):
    """Kernels that run after the stages.

    credits: int8 [credits][T][lanes], and their clipped sums [credits][lanes]. sizes: credits, T,
    pairs, words, lanes, the shift of the sums, a score's unit in 1/256 bit, and the shift from
    1/256 bit to the unit of credit.
    traces: sums of credit x input, int32 [pairs][K] of every matrix of a stage. sizes: matrices,
    inputs of all, pairs, T, first token, all tokens, rows of the tape, fours of pairs in a
    threadgroup, and in all.
    of_values: as credits, of int32 in place of scores; of_groups: as credits, of members that are
    compared with the mean of their group. sizes: besides, members of a group.
    matrices, vectors: credited votes of a stage's matrices, and of all vectors. sizes: pairs, pairs
    of a part, votes, then the shift of the sums or the lanes of the credits.
    embedded, read: sums of entries by row, of an embedding and of the readout. sizes: rows,
    columns, entries, entries of a part, then T, lanes and where the credits begin.
    featured: as embedded, of sparse features. sizes: besides, indices of a row, those of a list,
    and whether the noise is on nodes.
    """

    credits: Source
    traces: Source
    matrices: Source
    vectors: Source
    embedded: Source
    read: Source
    of_values: Source
    featured: Source
    of_groups: Source


def _kernel(
    dialect: Dialect, name: str, inputs: str, outputs: str, files: str, body: str,
    constants: str = "",
) -> Source:  # fmt: skip
    header, text = dialect.header(constants, files.split()), dialect.spelled(body)
    return Source(name, tuple(inputs.split()), tuple(outputs.split()), header, text)


def _vote_kernels(
    dialect: Dialect, name: str, inputs: str, terms: str, matrices: str, vectors: str,
    rank: int = 1, clt: bool = True,
) -> tuple[Source, Source]:  # fmt: skip
    """The kernels for matrices and for vectors, by the file that says what their terms are."""
    constants = dialect.constants(**dialect.vote_constants, RANK=rank, CLT=clt)
    staged = dialect.vote_staging.get(terms, ())
    header = dialect.header(constants, ["vote_tile", *dialect.vote_files, terms, *staged])
    names = tuple(inputs.split())
    tiles = dialect.vote_memory + dialect.spelled(matrices).replace("@", dialect.vote_lane)
    return (
        Source(f"egg_{name}votes", names, ("Z",), header, tiles, dialect.vote_bytes),
        Source(f"egg_{name}vector_votes", names, ("Z",), header, dialect.spelled(vectors)),
    )


@cache
def vote_sources(dialect: Dialect, rank: int, clt: bool) -> tuple[Source, Source]:
    """The kernels that count the votes of matrices and of vectors.

    sizes: pairs, terms of a part, votes.
    """
    inputs = "table starts fitness work sizes"
    return _vote_kernels(dialect, "", inputs, "votes", VOTES, VECTOR_VOTES, rank, clt)


@cache
def credit_kernels(dialect: Dialect) -> CreditKernels:
    """All that runs after the stages."""
    inputs = "scores tokens signs starts projection table work sizes"
    credits, of_values = (
        _kernel(dialect, name, inputs, "credits sums", "credits", CREDITS, f"typedef {t} Score;\n")
        for name, t in (("egg_credits", "int16_t"), ("egg_value_credits", "int32_t"))
    )
    assert WEIGHED in CREDITS
    of_groups = _kernel(
        dialect, "egg_group_credits", inputs, "credits sums", "credits mixed turns group_credits",
        CREDITS.replace(WEIGHED, WEIGHED_BOTH),
        "typedef int16_t Score;\n" + dialect.constants(GROUPED=True),
    )  # fmt: skip
    inputs = "tape credits work sizes"
    traces = _kernel(dialect, "egg_traces", inputs, "sums", "traces", dialect.traces)
    votes = _vote_kernels(
        dialect, "credit_", "table starts sums work sizes", "credit_votes",
        CREDIT_VOTES, CREDIT_VECTOR_VOTES,
    )  # fmt: skip
    ordered = "sorted order sizes"
    embedded, read, featured = (
        ROW_VOTES.replace("@", entries) for entries in (EMBEDDED, READ, FEATURED)
    )
    credited = f"table starts credits {ordered}"
    return CreditKernels(
        credits, traces, *votes,
        _kernel(dialect, "egg_embedded", credited, "Z", "rows", embedded),
        _kernel(dialect, "egg_read", f"read {ordered}", "Z", "rows", read),
        of_values,
        _kernel(dialect, "egg_featured", credited, "Z", "rows feature_rows", featured),
        of_groups,
    )  # fmt: skip


class CarryKernels(NamedTuple):
    """Kernels that count the votes of errors carried back.

    matrices: of a stage's matrices. sizes: terms, terms of a part, votes, rows of the tape and of
    credit. rows: sums of entries by row, of an embedding or of sparse features. sizes: rows,
    columns, entries, entries of a part, rows of credit, the first of them, lists.
    """

    matrices: Source
    rows: Source


@cache
def carry_kernels(dialect: Dialect, members: int) -> CarryKernels:
    """For tapes of threadgroups of `members`."""
    layout = {"M": members, "BESIDE": dialect.beside}
    constants = dialect.constants(**{**dialect.vote_constants, **layout, "RANK": 0, "CLT": True})
    files = ["vote_tile", *dialect.vote_files, "carry", "carry_votes"]
    files += dialect.vote_staging.get("carry_votes", ())
    body = dialect.spelled(CARRIED_VOTES).replace("@", dialect.vote_lane)
    header, names = dialect.header(constants, files), ("tape", "credits", "work", "sizes")
    bytes_shared = dialect.vote_bytes
    matrices = Source(
        "egg_carried_votes", names, ("Z",), header, dialect.vote_memory + body, bytes_shared
    )
    rows = _kernel(
        dialect, "egg_carried_rows", "credits sorted order sizes", "Z", "carry rows carry_rows",
        ROW_VOTES.replace("@", CARRIED), dialect.constants(**layout),
    )  # fmt: skip
    return CarryKernels(matrices, rows)


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
