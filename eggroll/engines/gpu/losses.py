"""Losses on a GPU: from an output and its targets to the errors that are carried back.

A thread takes a row. Letters: P members, T rows, n values of an output.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx

from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.launch import Launcher
from eggroll.engines.gpu.votes import kernel, launch_counts
from eggroll.spec.fixed_point import exp2_mantissas
from eggroll.spec.program import Output


class Rating(NamedTuple):
    """An output that has a loss, what divides its values, and the first of its random words."""

    loss: str
    output: Output
    unit: int
    first_word: int


def rate_output(
    launcher: Launcher, dialect: Dialect, of: Rating, values: mx.array, targets: Any,
    words: mx.array,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """Errors int8 [P, T, n] of values [P, T, n], and what rows lost, uint64 [P, T].

    targets: int32 [P, T, 1 or n]; words: of the rows, uint32 [P, T].
    """
    (P, T), first = words.shape, of.first_word
    sizes = [P * T, of.output.size, targets.shape[-1], of.unit, first - (first >> 31 << 32)]
    errors, lost = launch_counts(
        launcher, rating_kernel(dialect, of.loss, of.output.wide),
        [values, targets, words, mantissas()], sizes,
        [(values.shape, mx.int8), ((P, T), mx.uint64)], P * T,
    )  # fmt: skip
    return errors, lost


@cache
def mantissas() -> mx.array:
    """Those of all powers of two, uint32 [16]."""
    return mx.array(exp2_mantissas())


@cache
def rating_kernel(dialect: Dialect, loss: str, wide: bool) -> KernelSource:
    """The kernel of a loss. sizes: rows, n, targets of a row, unit and the first word."""
    constants = dialect.constants(WIDE=wide) + f"typedef {'int32_t' if wide else 'int8_t'} Value;\n"
    return kernel(
        dialect, f"egg_{loss}", "output wanted words mantissas sizes", "errors lost",
        "mixed rated", RATING.replace("@", loss), constants,
    )  # fmt: skip


RATING = """\
const $uint row = $thread;
if (row < $uint(sizes[0])) {
  const $uint n = sizes[1];
  lost[row] = egg::rate_@(errors + row * n, output + row * n, int(n), sizes[3],
                          wanted + row * $uint(sizes[2]), mantissas,
                          words[row] + uint32_t(sizes[4]));
}
"""
