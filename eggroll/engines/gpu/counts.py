"""Costs of stages and votes on a GPU, counted from the plans that kernels are written from.

Letters: M members of a threadgroup, D width, K inputs and O outputs of a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.engines.gpu.plan import FULL, StagePlan, best_members, stage_plans
from eggroll.program import Program


class Cost(NamedTuple):
    """Costs of a stage: launches per update and chunk, the rest per member and token."""

    launches: int
    barriers: int  # of a threadgroup
    macs: int  # int8 multiply-adds
    weights: float  # bytes, M members share them
    noise: float  # bytes, a pair shares them
    registers: int  # bytes that do not stay in threadgroup memory
    passed: int  # bytes from the stage before and to the next one


def cost(plan: StagePlan) -> Cost:
    """Counts of a stage, from the plan that its kernel is generated from."""
    D = plan.program.width
    return Cost(
        launches=1,
        barriers=plan.barriers,
        macs=plan.macs,
        weights=plan.weights_read,
        noise=plan.noise_bytes / 2,
        registers=plan.spilled,
        passed=D * (not plan.first) + D * plan.passes_on,
    )


def count_table(program: Program, rank: int, population: int) -> str:
    """Markdown: the cost of every kind of stage of a network, as docs/metal.md has it."""
    M = best_members(program, rank, population)
    return count_rows(stage_plans(program, members=M, rank=rank))


def count_rows(plans: Sequence[StagePlan]) -> str:
    """The table of `count_table`, from the plans of embedding, layers and head."""
    names = ["embedding", *["layer"] * (len(plans) - 2), "head"]
    rows = ["| stage | " + " | ".join(Cost._fields) + " |", "|---|" + "---:|" * len(Cost._fields)]
    for name, plan in zip(names, plans, strict=True):
        counts = " | ".join(f"{count:,.0f}" for count in cost(plan))
        row = f"| {name} | {counts} |"
        rows += [row] * (row not in rows)
    return f"M = {plans[0].members} members\n\n" + "\n".join(rows) + "\n"


def matrix_macs(program: Program) -> int:
    """Multiply-adds of all matrices, of a member's token or of a pair's votes; at least 1."""
    shapes = [leaf.shape for leaf in program.leaves]
    return max(1, sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2))


class VoteWork(NamedTuple):
    """The tiles and elements of one count of votes, in the order of its flat results.

    tiles: int32 [tiles, (leaf, row, column, O, K, offset)] of the matrices; elements: int32
    [elements, (leaf, element)] of the vectors; votes: of all matrices, one after the other.
    """

    tiles: NDArray[np.int32]
    elements: NDArray[np.int32]
    votes: int


@lru_cache(maxsize=8)
def vote_work(shapes: tuple[tuple[int, ...], ...], side: int) -> VoteWork:
    """Tiles of side x side votes, and single votes of vectors, of leaves of these shapes.

    Made once for a network, as the lists are long.
    """
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
    return VoteWork(np.array(tiles, np.int32), np.array(elements, np.int32), offset)


def split_terms(terms: int, groups: int) -> tuple[int, int]:
    """(parts, terms of each) that bring `groups` threadgroups near 4 FULL; a part has 256 or more.

    A part's terms are a multiple of 32, as vote_product.metal takes that many at a time.
    """
    parts = max(1, min(-(-4 * FULL // groups), terms // 256))
    share = -(-terms // parts // 32) * 32
    return -(-terms // share), share
