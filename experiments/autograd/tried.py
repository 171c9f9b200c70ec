"""The autograd analysis's two tables of what was tried, each row run again where it applies here.

A row compares variants of one step, or of one operation, by the seconds of a part of it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.native import build
from experiments.autograd import buffers
from experiments.autograd.buffers import Place, Workspace
from experiments.autograd.kernels import Kernels
from experiments.autograd.mlp_tables import Problem, problem, tape_step
from experiments.autograd.native import Native
from experiments.autograd.timing import Case, Clock, Figure, Times, ratio, timed

PANEL_READS = 200
SMALL = {"16 x 32 -> 64 -> 10": (16, 32, 64, 10), "64 x 64 -> 256 -> 10": (64, 64, 256, 10)}


class Row(NamedTuple):
    """A row of the tables: what the document found, and which cases answer it here.

    part: the seconds compared, `over` ÷ `under`; question: what the quotient is.
    """

    name: str
    document: str
    over: str
    under: str
    part: str
    question: str


def some_by_pages(shape: tuple[int, ...], which: set[int]) -> Place:
    """Of the arrays of that shape those counted in `which` begin on a page, all others apart."""
    pages, lines, seen = buffers.by_pages(), buffers.by_lines(), 0

    def place(asked: tuple[int, ...], dtype: object) -> NDArray:
        nonlocal seen
        if asked != shape:
            return lines(asked, dtype)
        seen += 1
        return (pages if seen - 1 in which else lines)(asked, dtype)

    return place


# Order in which a step of plain nodes takes its buffers [B, H]: first layer, ReLU, then gradients.
PRE, OUT, GRAD, DX = range(4)


def placements(given: Problem, native: Native) -> dict[str, Case]:
    """Steps of plain nodes, buffers placed in one way or another."""
    shape = (len(given.x), len(given.layers[0]))
    places: dict[str, Callable[[], Workspace]] = {
        "as NumPy places them": lambda: Workspace(buffers.by_numpy()),
        "all on pages": lambda: Workspace(buffers.by_pages()),
        "lines apart": lambda: Workspace(buffers.by_lines()),
        "pre on a page": lambda: Workspace(some_by_pages(shape, {PRE})),
        "pre, grad on pages": lambda: Workspace(some_by_pages(shape, {PRE, GRAD})),
        "pre, grad, dx on pages": lambda: Workspace(some_by_pages(shape, {PRE, GRAD, DX})),
        "arena": lambda: Workspace(buffers.by_arena()),
        "fresh": lambda: Workspace(buffers.by_numpy(), reuse=False),
    }
    return {
        name: tape_step(native, given, "plain", "input", workspace=make(), profile=True)
        for name, make in places.items()
    }


def variants(given: Problem, native: Native) -> dict[str, Case]:
    """Steps on buffers some lines apart, by other nodes and masks."""
    return {
        "plain": tape_step(native, given, "plain", profile=True),
        "plain, collector off": without_collector(tape_step(native, given, "plain", profile=True)),
        "plain, bits": tape_step(native, given, "plain", "bits", profile=True),
        "dx over the output": tape_step(
            native, given, "plain", "bits", profile=True, reuse="output"
        ),
        "dx over the gradient": tape_step(
            native, given, "plain", "bits", profile=True, reuse="gradient"
        ),
        "added to zeros": tape_step(native, given, "plain", added=True, profile=True),
        "input's gradient, too": tape_step(native, given, "plain", whole=True, profile=True),
        "linear+relu": tape_step(native, given, "linear+relu", profile=True),
        "two-layer": tape_step(native, given, profile=True),
        "two-layer, bits": tape_step(native, given, mask="bits", profile=True),
        "two-layer, all on pages": tape_step(
            native, given, workspace=Workspace(buffers.by_pages()), profile=True
        ),
    }


def operations(given: Problem, native: Native) -> dict[str, Case]:
    """Single operations: transposed products, a ReLU's backward, and columns of a panel."""
    (rows, inputs), hidden = given.x.shape, len(given.layers[0])
    space, chance = Workspace(), np.random.default_rng(2)
    d, x = space.take((rows, hidden)), given.x
    d[...] = chance.normal(size=d.shape)
    dw, turned = space.take((hidden, inputs)), space.take((hidden, rows))

    def copied() -> None:
        np.copyto(turned, d.T)
        native.matmul(turned, x, dw)

    def relu(place: Place) -> Callable[[], None]:
        y, dy, dx = (place((rows, hidden), np.float32) for _ in range(3))
        y[...] = dy[...] = d
        return lambda: native.relu_backward(y, None, dy, dx)

    calls = {
        "dw, transposed as it is read": lambda: native.matmul(d, x, dw, "tn"),
        "dw, transposed copy": copied,
        "relu alone, lines apart": relu(buffers.by_lines()),
        "relu alone, all on pages": relu(buffers.by_pages()),
    } | panels(rows)
    return {name: timed("seconds", call, given.clock) for name, call in calls.items()}


def panels(rows: int) -> dict[str, Callable[[], None]]:
    """16 columns of a matrix read over and over: in place with two lengths of row, and packed."""
    library = build(Path(__file__).with_name("panels.cpp"))
    arguments = c_int32, c_int64, c_int32, c_void_p, c_void_p
    read = CFUNCTYPE(None, *arguments)(library.symbol("read_panel"))
    place = buffers.by_lines()
    sums = place((16,), np.float32)

    def reading(columns: int) -> Callable[[], None]:
        matrix = place((rows, columns), np.float32)
        return lambda: read(rows, columns, PANEL_READS, matrix.ctypes.data, sums.ctypes.data)

    return {
        "panel, rows 4,096 bytes apart": reading(1024),
        "panel, rows 4,160 bytes apart": reading(1040),
        "panel, packed": reading(16),
    }


def without_collector(case: Case) -> Case:
    """A step with Python's garbage collector off."""

    def run() -> dict[str, float]:
        gc.disable()
        try:
            return case()
        finally:
            gc.enable()

    return run


def small(clock: Clock, native: Native) -> dict[str, Case]:
    """Steps of small networks, with one node or five."""
    cases = {}
    for name, shape in SMALL.items():
        given = problem(*shape, clock)
        for path in ("plain", "two-layer"):
            cases[f"{name}, {path}"] = tape_step(native, given, path)
        cases[f"{name}, plain, NumPy"] = tape_step(Kernels(), given, "plain")
    return cases


def all_cases(given: Problem, native: Native) -> dict[str, Case]:
    return {
        **placements(given, native),
        **variants(given, native),
        **operations(given, native),
        **small(given.clock, native),
    }


ROWS = (
    Row("BLAS transposition flags, no transposed copies", "in place, working",
        "dw, transposed copy", "dw, transposed as it is read", "seconds", "copy ÷ none, dW1"),
    Row("accumulate_raw: no tensor for a gradient", "in place, working",
        "added to zeros", "plain", "backward", "added to zeros ÷ written, backward"),
    Row("needs_grad: unneeded gradients left out", "in place, working",
        "input's gradient, too", "plain", "backward", "with dx ÷ without, backward"),
    Row("Linear+ReLU as one node", "fewer nodes, ReLU still slow",
        "linear+relu", "plain", "total", "one node ÷ two, step"),
    Row("C-managed relu_pre (posix_memalign)", "ReLU fast alone, not in the closure",
        "pre on a page", "as NumPy places them", "relu", "on a page ÷ as NumPy places it, relu"),
    Row("C-managed grad_buf", "added, works",
        "pre, grad on pages", "as NumPy places them", "relu", "two on pages ÷ NumPy's, relu"),
    Row("C-managed relu_dx, the third buffer on a page", "three page-aligned buffers alias",
        "pre, grad, dx on pages", "lines apart", "relu", "three on pages ÷ lines apart, relu"),
    Row("Offset alignment", "no improvement",
        "lines apart", "as NumPy places them", "relu", "lines apart ÷ NumPy's, relu"),
    Row("ReLU's output reused for its gradient", "no improvement",
        "dx over the output", "plain, bits", "relu", "over the output ÷ own buffer, relu"),
    Row("Preallocated relu_dx in a workspace", "same aliasing",
        "plain, bits", "dx over the gradient", "relu", "own buffer ÷ over dy, relu"),
    Row("Arena: one block for all", "same aliasing",
        "arena", "lines apart", "relu", "arena ÷ lines apart, relu"),
    Row("Fresh allocation in every step", "worse",
        "fresh", "lines apart", "total", "fresh ÷ reused, step"),
    Row("One C call for relu + sgemm + bias", "no improvement",
        "linear+relu", "plain", "backward", "one call ÷ four, backward"),
    Row("Two-layer node, small sizes", "2-3 times faster",
        "16 x 32 -> 64 -> 10, plain", "16 x 32 -> 64 -> 10, two-layer", "total",
        "plain ÷ one node, step of 16 x 32 -> 64 -> 10"),
    Row("Two-layer node, small sizes, plain nodes in NumPy", "2-3 times faster",
        "16 x 32 -> 64 -> 10, plain, NumPy", "16 x 32 -> 64 -> 10, two-layer", "total",
        "plain ÷ one node, step"),
    Row("Two-layer node, 64 x 64 -> 256 -> 10", "2-3 times faster",
        "64 x 64 -> 256 -> 10, plain", "64 x 64 -> 256 -> 10, two-layer", "total",
        "plain ÷ one node, step"),
    Row("Two-layer node, XL", "unchanged",
        "plain", "two-layer", "total", "plain ÷ one node, step"),
    Row("ReLU's output cached, mask from it", "3-5 % better at XL",
        "lines apart", "plain", "relu", "mask from input ÷ from output, relu"),
    Row("Next step: mask of one bit for each element", "proposed",
        "plain, bits", "plain", "relu", "bits ÷ output, relu"),
    Row("Next step: the same in the two-layer node", "proposed",
        "two-layer, bits", "two-layer", "d_a1", "bits ÷ output, d_a1 with relu"),
    Row("Next step: d_a1 and ReLU in one pass", "proposed",
        "dx over the gradient", "two-layer, bits", "d_a1_relu",
        "two calls, in place ÷ one, which adds up db1 as well"),
    Row("Buffers of the two-layer node on pages", "the cause supposed",
        "two-layer, all on pages", "two-layer", "backward", "on pages ÷ lines apart, backward"),
    Row("ReLU alone, three buffers on pages", "0.8 against 0.07 ms",
        "relu alone, all on pages", "relu alone, lines apart", "seconds",
        "on pages ÷ lines apart"),
    Row("Column panels of rows 4,096 bytes apart", "not tried",
        "panel, rows 4,096 bytes apart", "panel, rows 4,160 bytes apart", "seconds",
        "4,096 ÷ 4,160 bytes, reading 16 columns again"),
    Row("Column panels packed", "not tried",
        "panel, rows 4,096 bytes apart", "panel, packed", "seconds",
        "in place ÷ packed, reading 16 columns again"),
    Row("Garbage collection during backward (Python's here)", "the cause supposed",
        "plain", "plain, collector off", "relu", "collector on ÷ off, relu"),
)  # fmt: skip

NOT_HERE = (
    "The garbage collector's old generation, its write barrier and root scanning are MoonBit's; "
    "Python's collector neither moves nor scans NumPy's buffers.",
    "FixedArray::make(262144) is MoonBit's; fresh allocation in every step is its like.",
)


def verdict(found: Figure) -> str:
    """What the quotients of all rounds say."""
    if found.low <= 1 <= found.high:
        return "no difference beyond the spread"
    if found.high < 1:
        return f"{100 * (1 - found.median):.0f} % less"
    return f"{100 * (found.median - 1):.0f} % more"


def answers(times: Times) -> list[dict[str, object]]:
    """Every row with its figures: milliseconds of both cases, their quotient, what it says."""
    found = []
    for row in ROWS:
        quotient = ratio(times, row.over, row.under, row.part)
        over, under = (
            Figure.of(times[case][row.part]).times(1e3) for case in (row.over, row.under)
        )
        found.append(
            {
                **row._asdict(),
                "over_ms": over,
                "under_ms": under,
                "quotient": quotient,
                "outcome": verdict(quotient),
            }
        )
    return found
