"""Credit carried back: which way a score's error goes, and on what scale (docs/estimators.md).

For estimators that run every stream once, without noise, and carry the error of its scores back
through the operations. Letters: P members, T tokens, K inputs and O outputs of a leaf.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import mlx.core as mx

from eggroll.spec import rng
from eggroll.spec.fixed_point import divisor
from eggroll.spec.program import FORWARD_ONLY, Program, ProgramError, S, Stage, X
from eggroll.spec.rng import random_matrix

FRACTION = 14  # bits of a register's credit below the unit of the head's error
BOUND = (1 << 22) - 1  # of a register's credit
SUM_BOUND = 1 << 26  # of what a matrix sends back, before it is scaled
MOST, FIRST = 16, 14  # scales: the largest, and that of the first update
ERROR = 127  # the head's error where a probability is off by one
BETWEEN_LEAVES = 0x9E3779B9  # from a leaf's random words to the next one's
CLIPPED = ("linear", "norm", "add", "add_bias", "bias", "features")  # y = clip(..)
LAYERS = ("embed", "linear", "features")  # operations that make a layer of their own


class Backward(NamedTuple):
    """The way by which the errors of an update are carried back.

    scales: right shift of each leaf's credit on its way to int8, in declared order; matrices: int8
    [O, K] by the leaf's name, which pass credit from its outputs to its inputs; a leaf without one
    passes nothing on; losses: by output as losses.Targets has them, if errors are made of targets.
    """

    scales: tuple[int, ...]
    matrices: Mapping[str, mx.array]
    losses: tuple[str, ...] = ()


class Learnt(NamedTuple):
    """The result of P members that ran T tokens and carried their errors back.

    scores: int16 [P, T]; state: int8 [P, state_size]; votes: Z int32 (mod 2^32) per leaf; sizes:
    int64 [leaves], the sum of |c| over all members, tokens and values that a leaf was credited for;
    errors, lost: as of losses.Rated, where they were made of targets.
    """

    scores: mx.array
    state: mx.array
    votes: dict[str, mx.array]
    sizes: mx.array
    errors: mx.array | None = None
    lost: mx.array | None = None


def check_passable(program: Program, estimator: str) -> None:
    """Raises ProgramError if errors cannot be carried back through one of its operations."""
    for op in (op for stage in program.stages for op in stage.ops):
        if op.kind in FORWARD_ONLY:
            raise ProgramError(
                f"estimator {estimator!r} carries errors back, and the operation {op.kind!r} of "
                "this network passes none: try estimator='token-credit'."
            )


def final(stage: Stage) -> tuple[bool, ...]:
    """Of each operation: whether all ways from its result lead to outputs, by no other matrix.

    A value at the clip may then be pulled back, as it is of the caller's error alone.
    """
    found = [False] * len(stage.ops)
    for at in reversed(range(len(stage.ops))):
        op, readers = stage.ops[at], list[int]()
        if not op.writes or op.out in (X, S):
            continue
        for later in range(at + 1, len(stage.ops)):
            if op.out in stage.ops[later].inputs:
                readers.append(later)
            if stage.ops[later].writes and stage.ops[later].out == op.out:
                break
        kinds = ((stage.ops[i].kind, found[i]) for i in readers)
        found[at] = bool(readers) and all(
            kind == "output" or (leads and kind != "linear") for kind, leads in kinds
        )
    return tuple(found)


def heads(program: Program) -> tuple[str, ...]:
    """Names of the matrices next to an error.

    Of a program with a score that of the score, else those of sums and of final linear operations.
    """
    kinds = ("score",) if program.scored else ("sums",)
    return tuple(
        program.leaves[op.leaf].name
        for stage in program.stages
        for op, last in zip(stage.ops, final(stage), strict=True)
        if op.kind in kinds or (op.kind == "linear" and last and not program.scored)
    )


def layers(program: Program, *, inner: bool = False) -> tuple[str, ...]:
    """Names of the leaves of linear operations; inner: of inner layers alone.

    A layer is an inner one if its inputs come from layers of the same stage alone: not from what
    the stage was handed or keeps, so that nothing flows from block to block but by their sum.
    """
    return tuple(
        program.leaves[op.leaf].name
        for stage in program.stages
        for op, within in zip(stage.ops, _inner(stage), strict=True)
        if op.kind == "linear" and (within or not inner)
    )


def _inner(stage: Stage) -> Iterator[bool]:
    """Of each operation: whether all that it reads comes from layers of this stage."""
    made = dict[int, bool]()
    for op in stage.ops:
        inner = all(made.get(register, False) for register in op.inputs) and bool(op.inputs)
        yield inner
        if op.writes:
            made[op.out] = inner or op.kind in LAYERS


def last_ones(program: Program) -> set[str]:
    """Names of the matrices that multiply the row shown, by which credit would go nowhere."""
    found = set[str]()
    for stage in program.stages:
        made = dict[int, str]()
        for op in stage.ops:
            if op.leaf >= 0 and op.inputs and made.get(op.inputs[0]) == "input":
                found.add(program.leaves[op.leaf].name)
            if op.writes:
                made[op.out] = op.kind
    return found


def values_credited(program: Program) -> tuple[int, ...]:
    """Values of a row that each leaf is credited for."""
    values = [0] * len(program.leaves)
    for stage in program.stages:
        for op in stage.ops:
            if op.leaf >= 0:
                shape = program.leaves[op.leaf].shape
                values[op.leaf] = stage.registers[op.out] if op.writes else shape[0]
    return tuple(values)


def values_kept(program: Program) -> int:
    """Values of a row that are kept until its errors are carried back: x, s and all results."""
    results = (stage.registers[op.out] for stage in program.stages for op in stage.ops if op.writes)
    return sum(results) + 2 * program.width * len(program.stages)


def reduced(inputs: int) -> tuple[int, int]:
    """(a, n): a / 2^n is 1 / (16 floor(sqrt K)), a of five bits, so that products stay small."""
    d = divisor(inputs)
    n = d.bit_length() + 3
    return ((2 << n) // d + 1) // 2, n


def next_scale(scale: int, total: int, count: int) -> int:
    """The scale for the next update: with it the mean |c| would be between 2 and 4."""
    mean = total // max(count, 1)
    return min(max(mean.bit_length() - 2, 0), MOST) if mean else scale


def first_feedback(program: Program, names: Collection[str], seed: int) -> dict[str, mx.array]:
    """Random int8 matrices, as initial weights are, of the leaves of these names."""
    return {
        leaf.name: random_matrix(rng.key(seed, rng.FEEDBACK, i), leaf.shape)
        for i, leaf in enumerate(program.leaves)
        if leaf.name in names
    }
