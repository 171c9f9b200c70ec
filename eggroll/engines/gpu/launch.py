"""Launches kernels."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines.gpu.dialect import Source
from eggroll.engines.gpu.plan import FULL, StagePlan, best_members, stage_plans
from eggroll.spec.program import Program


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


Shape = tuple[int, ...]
Outputs = dict[str, tuple[Shape, mx.Dtype]]  # by name
SMALLEST_INPUT = 8  # smaller inputs become `constant` in MLX's kernels, another type than `device`


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


def kernel_name(source: Source, *facts: str) -> str:
    """A name that tells all that a kernel is made of, as MLX's cache goes by names."""
    text = "\0".join((*facts, *source.inputs, *source.outputs, source.header, source.body))
    return f"{source.name}_{hashlib.sha256(text.encode('ascii')).hexdigest()[:16]}"


def launcher(
    compiled: Callable[[Source, tuple[mx.Dtype, ...]], Any], *, verbose: bool = False
) -> Launcher:
    """Runs kernels on the GPU, as `compiled` makes them by mx.fast for arrays of these types.

    verbose: prints the text that MLX compiles.
    """

    def launch(
        source: Source,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        grid: Shape,
        threadgroup: Shape,
    ) -> list[mx.array]:
        shapes, dtypes = zip(*outputs, strict=True)
        return compiled(source, (*(a.dtype for a in inputs), *dtypes))(  # type: ignore[no-any-return]
            inputs=list(inputs),
            output_shapes=list(shapes),
            output_dtypes=list(dtypes),
            grid=grid,
            threadgroup=threadgroup,
            verbose=verbose,
        )

    return launch


def pad_flat(a: mx.array, size: int = SMALLEST_INPUT) -> mx.array:
    """The array, flat, with zeros up to `size` elements."""
    a = a.reshape(-1)
    return a if a.size >= size else mx.concatenate([a, mx.zeros(size - a.size, a.dtype)])


FIRST = 1 << 36  # multiply-adds of a portion before one was timed
LEAST_MACS, MOST_MACS = 1 << 30, 1 << 42  # of any portion
SECONDS = 0.25  # that a portion takes at most, about


class Pace:
    """macs: multiply-adds of a portion, and so of a launch, at most; waits: whether for portions,
    as a GPU needs it.
    """

    def __init__(self, waits: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.macs, self.waits, self._clock = FIRST, waits, clock
        self._pending, self._began, self._fresh = 0, 0.0, False
        self._known: set[object] = set()

    def begin(self, kernel: object) -> None:
        """Tells that a kernel will be launched, the first time with its compilation."""
        if not self.waits:
            return
        if not self._pending:
            self._began = self._clock()
        self._fresh |= kernel not in self._known
        self._known.add(kernel)

    def launched(self, arrays: Iterable[mx.array], macs: int) -> None:
        """Waits for the arrays if what was launched since the last time is a portion."""
        if not self.waits:
            return
        self._pending += macs
        if 2 * self._pending < self.macs:
            return
        mx.eval(list(arrays))
        seconds = self._clock() - self._began
        if seconds < SECONDS / 2:
            self.macs = min(2 * self.macs, MOST_MACS)
        elif seconds > SECONDS and not self._fresh:
            self.macs = max(self.macs // 2, LEAST_MACS)
        self._pending, self._fresh = 0, False


def whole_portions() -> None:
    """Lets MLX put a portion into one command buffer of Metal.

    Else it ends a buffer within a portion whose failure nobody waits for, so that wrong results
    would pass for right ones. MLX reads this when it opens the GPU: for
    the first array that there is, or to tell the GPU's name.
    """
    os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "1000000")
    os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", "1000000")
