"""Losses in integers: from outputs and targets to the errors that are carried back.

The arithmetic is docs/estimators.md's. Letters: R readers, T rows, n values of an output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError, array_of, shown
from eggroll.spec.backward import BETWEEN_LEAVES, ERROR
from eggroll.spec.fixed_point import LIMIT, divisor, exp2_mantissas, exp2_table, log2_fixed
from eggroll.spec.program import Output, Program

LossName = Literal["softmax", "squared", "sigmoid"]
Errors = NDArray[np.int8]
Words = Callable[[int], NDArray[np.uint32]]  # number of values n -> random words [R, T, n]
ABSENT = -1  # a target that says nothing
WIDEST = 1 << 24  # of a target of the squared loss


class Rated(NamedTuple):
    """The errors of outputs, and what their rows lost.

    errors: int8 [R, T, n], of one output or of all side by side; lost: uint64 [R, T] in Loss.unit,
    or [R, T, outputs].
    """

    errors: Errors
    lost: NDArray[np.uint64]


class Loss(NamedTuple):
    """A loss: whether a row has one target or one for each value, the targets' range, its error.

    most: the largest target, 0 if that is the number of values less 1; unit: of what a row lost;
    of: values int32 [R, T, n] in 1/16, targets int32, whether outputs are int8, random words.
    """

    summary: str
    by_value: bool
    least: int
    most: int
    unit: float
    of: Callable[[NDArray[np.int32], NDArray[np.int32], bool, Words], Rated]


def mix32(v: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The 32-bit mixer of credit's random words, elementwise."""
    v = (v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D)
    v = (v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B)
    return v ^ (v >> np.uint32(16))


def first_word(program: Program, place: int) -> int:
    """The number that a row's word gets before `mix32` for the first value of output `place`."""
    return (len(program.leaves) + place) * BETWEEN_LEAVES & 0xFFFFFFFF


def words_for(program: Program, place: int, rows: NDArray[np.uint32]) -> Words:
    """Random words of the values of output `place`: those of a leaf behind the last one.

    rows: the words of the rows, uint32 [R, T].
    """
    first = np.uint32(first_word(program, place))

    def words(n: int) -> NDArray[np.uint32]:
        return mix32(rows[..., None] + (first + np.arange(n, dtype=np.uint32)))

    return words


def unit_of(program: Program, place: int) -> int:
    """The divisor of an output's values to 1/16: of int8 1, of sums as `linear` divides them."""
    if not program.outputs[place].wide:
        return 1
    leaf = next(
        program.leaves[op.leaf]
        for stage in program.stages
        for op in stage.ops
        if op.kind == "sums" and op.numbers[0] == place
    )
    return divisor(leaf.shape[1])


def values_of(program: Program, place: int, output: NDArray[Any]) -> NDArray[np.int32]:
    """An output in 1/16, without a clip."""
    return output.astype(np.int32) // np.int32(unit_of(program, place))


def shares(powers: NDArray[np.int64], words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """127 times each power's share of the sum over the last axis, rounded by chance."""
    total = powers.sum(axis=-1, keepdims=True)
    shift = np.maximum(np.frexp(total.astype(np.float64))[1] - 24, 0).astype(np.int64)
    ratio = (ERROR << 24) // (total >> shift)
    chance = (words >> np.uint32(16)).astype(np.int64)
    found: NDArray[np.int64] = (((powers >> shift) * ratio >> 8) + chance) >> 16
    return found


def softmax(u: NDArray[np.int32], targets: NDArray[np.int32], narrow: bool, words: Words) -> Rated:
    """The score's own error: 127 times the target's indicator less the probabilities 2^(u/16)."""
    # int8 logits as the score reads them; of wider ones the largest is put at the upper limit.
    below = u - u.max(axis=-1, keepdims=True)
    at = u if narrow else np.maximum(below + LIMIT, -LIMIT - 1)
    counts = targets != ABSENT
    is_target = np.arange(u.shape[-1]) == targets[..., None]
    e = ERROR * is_target - shares(exp2_table()[at + 128].astype(np.int64), words(u.shape[-1]))
    hit = np.take_along_axis(below, np.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    lost = log2_fixed(_powers(below).sum(axis=-1)) - (31 << 16) - hit.astype(np.int64) * 4096
    return Rated((e * counts[..., None]).astype(np.int8), (lost * counts).astype(np.uint64))


def sigmoid(u: NDArray[np.int32], targets: NDArray[np.int32], narrow: bool, words: Words) -> Rated:
    """The target, in 1/127, less the probability 1 / (1 + 2^(-u/16)), value by value."""
    at = np.clip(u, -LIMIT, LIMIT)
    counts = targets != ABSENT
    powers = np.stack([exp2_table()[at + 128], np.full_like(at, exp2_table()[128])], axis=-1)
    e = targets - shares(powers.astype(np.int64), words(u.shape[-1])[..., None])[..., 0]
    missed = np.where(at < 0, targets, ERROR - targets) * abs(at).astype(np.int64)
    lost = log2_fixed((1 << 31) + _powers(-abs(at))) - (31 << 16) + missed * 4096 // ERROR
    return Rated((e * counts).astype(np.int8), (lost * counts).sum(axis=-1).astype(np.uint64))


def squared(u: NDArray[np.int32], targets: NDArray[np.int32], narrow: bool, words: Words) -> Rated:
    """The target less the value, within +-127."""
    off = targets.astype(np.int64) - u
    errors = np.clip(off, -LIMIT, LIMIT).astype(np.int8)
    return Rated(errors, (off * off).astype(np.uint64).sum(axis=-1))


def _powers(below: NDArray[np.int32]) -> NDArray[np.int64]:
    """2^(31 + below/16) of whole numbers up to zero, without what is below one."""
    shift = np.minimum(-(below >> 4), 32).astype(np.uint64)
    found: NDArray[np.uint64] = exp2_mantissas().astype(np.uint64)[below & 15] >> shift
    return found.astype(np.int64)


LOSSES: dict[str, Loss] = {
    "softmax": Loss(
        "cross entropy in bits; the target is a class", False, ABSENT, 0, 2.0**-16, softmax
    ),
    "squared": Loss("squared difference, in squares of 1/16", True, -WIDEST, WIDEST, 1, squared),
    "sigmoid": Loss(
        "cross entropy in bits of each value; the target is a probability in 1/127, as of a win",
        True, ABSENT, ERROR, 2.0**-16, sigmoid,
    ),
}  # fmt: skip
assert LOSSES.keys() == {*get_args(LossName)}


def loss_called(name: Any) -> Loss:
    """A loss by its name; an InputError for an unknown one."""
    if not isinstance(name, str) or name not in LOSSES:
        raise InputError(f"loss is {shown(name)}: choose one of {', '.join(LOSSES)}.")
    return LOSSES[name]


def checked_targets(
    loss: str, output: Output, given: ArrayLike, lead: tuple[int, ...]
) -> NDArray[np.int32]:
    """Targets of an output, int32 [R, T] or [R, T, n].

    lead: the axes before n, [R, T], or [R] where the caller left out T.

    Raises:
        InputError: another shape, type or range.
    """
    kind, array = loss_called(loss), array_of("targets", given)
    shape = (*lead, output.size) if kind.by_value else lead
    if kind.by_value and output.size == 1 and array.shape == lead:
        array = array[..., None]
    if array.dtype.kind not in "biu" or array.shape != shape:
        raise InputError(
            f"targets of {output.name!r} are {array.dtype} {list(array.shape)}: whole numbers "
            f"{list(shape)} are needed by loss {loss!r}."
        )
    most = kind.most or output.size - 1
    if array.size and not kind.least <= int(array.min()) <= int(array.max()) <= most:
        none = ", or -1 for none" * (kind.least == ABSENT)
        least = 0 if kind.least == ABSENT else kind.least
        raise InputError(
            f"targets of {output.name!r} are {int(array.min())} to {int(array.max())}: {least} to "
            f"{most} is needed by loss {loss!r}{none}."
        )
    return array.astype(np.int32)


def checked_errors(output: Output, given: ArrayLike, lead: tuple[int, ...], words: Words) -> Errors:
    """A caller's errors of an output, int8 [R, T, n]: real ones rounded by chance.

    Raises:
        InputError: another shape or type, NaN, or int8 -128.
    """
    array, shape = array_of("errors", given), (*lead, output.size)
    if array.dtype.kind not in "biuf" or array.shape != shape:
        raise InputError(
            f"errors of {output.name!r} are {array.dtype} {list(array.shape)}: int8 or real "
            f"numbers {list(shape)} are needed, 127 for a probability that is off by one."
        )
    if array.dtype.kind != "f":
        whole: Errors = np.clip(array, -LIMIT, LIMIT).astype(np.int8)
        return whole
    if not np.isfinite(array).all():
        first = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InputError(
            f"errors of {output.name!r} are {array[tuple(first)]} at {first}: every error must be "
            "a finite number."
        )
    held = np.clip(array.astype(np.float64), -LIMIT, LIMIT)
    chance = words(output.size).reshape(shape) / 2.0**32
    rounded: Errors = np.clip(np.floor(held + chance), -LIMIT, LIMIT).astype(np.int8)
    return rounded


def side_by_side(
    program: Program, errors: Mapping[str, Errors], lead: Sequence[int]
) -> NDArray[np.int8]:
    """Errors of all outputs [R, T, all of them]; zeros for those that have none."""
    parts = [
        errors[output.name].reshape(*lead, output.size)
        if output.name in errors
        else np.zeros((*lead, output.size), np.int8)
        for output in program.outputs
    ]
    return np.concatenate(parts, axis=-1)


class Targets(NamedTuple):
    """Targets of outputs, and the losses that make errors of them.

    losses: by output, "" for those without; values: int32 [R, T, those of all losses side by side].
    """

    losses: tuple[str, ...]
    values: NDArray[np.int32]

    def columns(self, program: Program) -> Iterator[tuple[int, Loss, NDArray[np.int32]]]:
        """The place of every output that has a loss, this, and its targets [R, T, 1 or n]."""
        first = 0
        for place, (output, name) in enumerate(zip(program.outputs, self.losses, strict=True)):
            if name:
                last = first + (output.size if LOSSES[name].by_value else 1)
                yield place, LOSSES[name], self.values[..., first:last]
                first = last

    def rated(
        self, program: Program, outputs: Mapping[str, Any], words: NDArray[np.uint32]
    ) -> Rated:
        """The errors of outputs [R, T, n], by the random words of the rows [R, T]."""
        errors, lost = dict[str, Errors](), np.zeros((*words.shape, len(self.losses)), np.uint64)
        for place, loss, targets in self.columns(program):
            output = program.outputs[place]
            found = loss.of(
                values_of(program, place, np.asarray(outputs[output.name])),
                targets if loss.by_value else targets[..., 0],
                not output.wide,
                words_for(program, place, words),
            )
            errors[output.name], lost[..., place] = found
        return Rated(side_by_side(program, errors, words.shape), lost)

    def mean(self, program: Program, lost: Sequence[int]) -> float:
        """The mean loss over all rows, or values, that have a target; NaN if none has.

        lost: by output, the sum of what its rows lost.
        """
        total, count = 0.0, 0
        for place, loss, targets in self.columns(program):
            total += lost[place] * loss.unit
            absent = np.count_nonzero(targets == ABSENT) if loss.least == ABSENT else 0
            count += targets.size - int(absent)
        return total / count if count else math.nan
