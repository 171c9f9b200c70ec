"""Votes on a GPU: the kernels that count them, the same for all networks, and their launches.

Letters: N pairs, T tokens, K inputs and O outputs of a leaf, V vocabulary, D width, Z votes. Lanes
are the pairs of whole threadgroups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.engines.gpu.dialect import VOTE_SIDE, VOTE_THREADS, Dialect, KernelSource
from eggroll.engines.gpu.launch import Launcher, Shape, kept_numbers, pad_flat
from eggroll.spec.flat import FlatLeaves
from eggroll.spec.noise import Slices
from eggroll.spec.program import Program

MIN_ROW_ENTRIES = 512  # of a part
MAX_PART_SUMS = 1 << 22  # of all parts
MAX_PARTS = 65535  # CUDA has no more blocks along a grid's second axis


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
    inputs = [table, noise.starts, fitness.astype(mx.int8)]
    matrices, vectors = vote_sources(dialect, noise.rank, clt)
    work = vote_work(tuple(leaf.shape for leaf in leaves), VOTE_SIDE)
    flat = list[mx.array]()  # in flat_order
    for source, rows, terms, size, threads in (
        (matrices, work.tiles, N * noise.rank, work.votes, VOTE_THREADS),
        (vectors, work.elements, N, work.elements.shape[0], 1),
    ):
        if not rows.size:
            continue
        count = rows.shape[0] * threads
        parts, share = split_terms(terms, -(-count // VOTE_THREADS), dialect.vote_groups)
        (Z,) = launch_counts(
            launcher, source, [*inputs, rows], [N, share, size],
            [((parts, size), mx.int32)], count, parts,
        )  # fmt: skip
        flat.append(Z.sum(axis=0) if parts > 1 else Z.reshape(size))
    if not flat:
        return {}
    whole = mx.concatenate(flat) if len(flat) > 1 else flat[0]
    return FlatLeaves(whole, {leaf.name: leaf.shape for leaf in leaves})


PACKED_TOGETHER = 16  # bytes that a thread puts in place, which divide a stage's weights


@cache
def packing(dialect: Dialect) -> KernelSource:
    """The kernel that puts weights in the order of a layout. sizes: bytes."""
    constants = dialect.constants(TOGETHER=PACKED_TOGETHER)
    return kernel(dialect, "egg_packing", "weights order sizes", "placed", "", PACKING, constants)


@cache
def drawing(dialect: Dialect) -> KernelSource:
    """The kernel that draws where slices begin.

    sizes: leaves, pairs, and the halves of the key of all leaves and of the first pair's number.
    """
    return kernel(dialect, "egg_drawing", "rooms sizes", "starts", "draws", DRAWING)


class VoteWork(NamedTuple):
    """The tiles and elements of one count of votes, in the order of its flat results."""

    tiles: mx.array  # int32 [tiles, (leaf, row, column, O, K, offset)] of the matrices
    elements: mx.array  # int32 [elements, (leaf, element)] of the vectors
    votes: int  # of all matrices, one after the other


@lru_cache(maxsize=8)
def vote_work(shapes: tuple[tuple[int, ...], ...], side: int) -> VoteWork:
    """Tiles of side x side votes, and single votes of vectors, of leaves of these shapes."""
    tiles: list[tuple[int, ...]] = []
    elements: list[tuple[int, int]] = []
    offset = 0
    for i, shape in enumerate(shapes):
        if len(shape) == 1:
            elements += [(i, k) for k in range(shape[0])]
            continue
        O, K = shape
        corners = product(range(0, O, side), range(0, K, side))
        tiles += [(i, row, column, O, K, offset) for row, column in corners]
        offset += O * K
    of_matrices, of_vectors = (mx.array(np.array(rows, np.int32)) for rows in (tiles, elements))
    return VoteWork(of_matrices, of_vectors, offset)


def launch_counts(
    launcher: Launcher,
    source: KernelSource,
    arrays: Sequence[mx.array],
    sizes: Sequence[int],
    outputs: Sequence[tuple[Shape, mx.Dtype]],
    threads: int,
    parts: int = 1,
) -> list[mx.array]:
    """Launches a kernel in threadgroups of VOTE_THREADS, `parts` times along y."""
    grid = -(-threads // VOTE_THREADS) * VOTE_THREADS, parts, 1
    inputs = [pad_flat(a) for a in arrays] + [kept_numbers(*sizes)]
    return launcher(source, inputs, outputs, grid, (VOTE_THREADS, 1, 1))


def split_terms(terms: int, groups: int, wanted: int) -> tuple[int, int]:
    """(parts, terms of each) that bring `groups` threadgroups to `wanted`, 256 terms at least.

    A part's terms are a multiple of 32, as vote_product.metal takes that many at a time.
    """
    parts = max(1, min(-(-wanted // groups), terms // 256))
    share = -(-terms // parts // 32) * 32
    return -(-terms // share), share


def sum_rows(
    launcher: Launcher,
    source: KernelSource,
    arrays: Sequence[mx.array],
    rows: mx.array,
    entries: mx.array,
    shape: tuple[int, ...],
    sizes: Sequence[int],
) -> mx.array:
    """Sums of entries by the rows that they name, int32 [V, K] = shape.

    rows: sorted, a negative one names none; entries: int32, their numbers in the order of rows;
    sizes: those that the kernel takes after its first four.
    """
    V, K = shape
    parts, share = row_shares(rows.size, V * K)
    (Z,) = launch_counts(
        launcher, source, [*arrays, rows, entries], [V, K, rows.size, share, *sizes],
        [((parts, V, K), mx.int32)], 32 * V * -(-K // 32), parts,
    )  # fmt: skip
    return Z.sum(axis=0)


def row_shares(entries: int, votes: int) -> tuple[int, int]:
    """(parts, entries of each) for the sums of rows, `votes` in all.

    Some rows have a large part of the entries, and a simdgroup goes through them one by one: so a
    part is short, as long as the sums of all parts are few.
    """
    parts = max(1, min(entries // MIN_ROW_ENTRIES, MAX_PART_SUMS // votes, MAX_PARTS))
    share = -(-entries // parts)
    return -(-entries // share), share


# The kernels.


@cache
def vote_sources(dialect: Dialect, rank: int, clt: bool) -> tuple[KernelSource, KernelSource]:
    """The kernels that count the votes of matrices and of vectors.

    sizes: pairs, terms of a part, votes.
    """
    inputs = "table starts fitness work sizes"
    return _vote_kernels(dialect, "", inputs, "votes", VOTES, VECTOR_VOTES, rank, clt)


class CreditKernels(NamedTuple):
    """Kernels that run after the stages with token credit."""

    # Credits int8 [credits][T][lanes], and their clipped sums [credits][lanes]. sizes: credits, T,
    # pairs, words, lanes, shift of the sums, a score in 1/256 bit, shift to the unit of credit.
    credits: KernelSource
    # Sums of credit x input, int32 [pairs][K] of every matrix of a stage. sizes: matrices, inputs
    # of all, pairs, T, first token, all tokens, tape rows, fours of pairs of a group, and in all.
    traces: KernelSource
    # Credited votes of a stage's matrices. sizes: pairs, pairs of a part, votes, shift of the sums.
    matrices: KernelSource
    # The same of all vectors. sizes: pairs, pairs of a part, votes, lanes of the credits.
    vectors: KernelSource
    # Sums of entries by row, of an embedding and of the readout. sizes: rows, columns, entries,
    # entries of a part; of an embedding T, lanes and where the credits begin.
    embedded: KernelSource
    read: KernelSource
    of_values: KernelSource  # as credits, of int32 in place of scores
    # As embedded, of sparse features. sizes: besides, indices of a row, those of a list, nodes.
    featured: KernelSource
    # As credits, of members compared with their group's mean. sizes: besides, members of a group.
    of_groups: KernelSource


@cache
def credit_kernels(dialect: Dialect) -> CreditKernels:
    """All that runs after the stages."""
    inputs = "scores tokens signs starts projection table work sizes"
    credits, of_values = (
        kernel(dialect, name, inputs, "credits sums", "credits", CREDITS, f"typedef {t} Score;\n")
        for name, t in (("egg_credits", "int16_t"), ("egg_value_credits", "int32_t"))
    )
    assert WEIGHED in CREDITS
    of_groups = kernel(
        dialect, "egg_group_credits", inputs, "credits sums", "credits mixed turns group_credits",
        CREDITS.replace(WEIGHED, WEIGHED_BOTH),
        "typedef int16_t Score;\n" + dialect.constants(GROUPED=True),
    )  # fmt: skip
    inputs = "tape credits work sizes"
    traces = kernel(dialect, "egg_traces", inputs, "sums", "traces", dialect.traces)
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
        kernel(dialect, "egg_embedded", credited, "Z", "rows", embedded),
        kernel(dialect, "egg_read", f"read {ordered}", "Z", "rows", read),
        of_values,
        kernel(dialect, "egg_featured", credited, "Z", "rows feature_rows", featured),
        of_groups,
    )  # fmt: skip


class BackwardVoteKernels(NamedTuple):
    """Kernels that count the votes of errors carried back."""

    # Of a stage's matrices. sizes: terms, terms of a part, votes, rows of the tape and of credit.
    matrices: KernelSource
    # Sums of entries by row, of an embedding or of sparse features. sizes: rows, columns, entries,
    # entries of a part, rows of credit, the first of them, lists.
    rows: KernelSource


@cache
def backward_vote_kernels(dialect: Dialect, members: int) -> BackwardVoteKernels:
    """For tapes of threadgroups of `members`."""
    layout = {"M": members, "BESIDE": dialect.adjacent}
    constants = dialect.constants(**{**dialect.vote_constants, **layout, "RANK": 0, "CLT": True})
    files = ["vote_tile", *dialect.vote_files, "carry", "carry_votes"]
    files += dialect.vote_staging.get("carry_votes", ())
    body = dialect.translate(BACKWARD_VOTES).replace("@", dialect.vote_lane)
    header, names = dialect.header(constants, files), ("tape", "credits", "work", "sizes")
    matrices = KernelSource(
        "egg_carried_votes", names, ("Z",), header, dialect.vote_memory + body, dialect.vote_bytes
    )
    rows = kernel(
        dialect, "egg_carried_rows", "credits sorted order sizes", "Z", "carry rows carry_rows",
        ROW_VOTES.replace("@", BACKWARD_ROWS), dialect.constants(**layout),
    )  # fmt: skip
    return BackwardVoteKernels(matrices, rows)


def _vote_kernels(
    dialect: Dialect, name: str, inputs: str, terms: str, matrices: str, vectors: str,
    rank: int = 1, clt: bool = True,
) -> tuple[KernelSource, KernelSource]:  # fmt: skip
    """The kernels for matrices and for vectors. terms: the kernel file of what they add up."""
    constants = dialect.constants(**dialect.vote_constants, RANK=rank, CLT=clt)
    staged = dialect.vote_staging.get(terms, ())
    header = dialect.header(constants, ["vote_tile", *dialect.vote_files, terms, *staged])
    names = tuple(inputs.split())
    tiles = dialect.vote_memory + dialect.translate(matrices).replace("@", dialect.vote_lane)
    return (
        KernelSource(f"egg_{name}votes", names, ("Z",), header, tiles, dialect.vote_bytes),
        KernelSource(f"egg_{name}vector_votes", names, ("Z",), header, dialect.translate(vectors)),
    )


def kernel(
    dialect: Dialect, name: str, inputs: str, outputs: str, files: str, body: str,
    constants: str = "",
) -> KernelSource:  # fmt: skip
    header, text = dialect.header(constants, files.split()), dialect.translate(body)
    return KernelSource(name, tuple(inputs.split()), tuple(outputs.split()), header, text)


# Their bodies, in words that a dialect translates.

PACKING = """\
const $uint mine = $thread, first = mine * TOGETHER;
if (first < $uint(sizes[0])) {
  for ($uint at = first; at < first + TOGETHER; ++at) {
    placed[at] = order[at] < 0 ? int8_t(0) : weights[order[at]];
  }
}
"""

DRAWING = """\
const $uint pairs = sizes[1], at = $thread;
if (at < $uint(sizes[0]) * pairs) {
  const uint64_t common = egg::wide(sizes[2], sizes[3]), first = egg::wide(sizes[4], sizes[5]);
  const uint64_t stream = egg::stream_of(common, at / pairs);
  starts[at] = int32_t(egg::draw_below(stream, first + uint64_t(at % pairs), rooms[at / pairs]));
}
"""
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
READ = """\
egg::Read from;
  from.inputs = read;
  from.K = columns;"""
BACKWARD_VOTES = """\
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
BACKWARD_ROWS = """\
egg::Carried from;
  from.credits = credits;
  from.rows = sizes[4];
  from.row = sizes[5];
  from.lists = sizes[6];
  from.columns = columns;"""
