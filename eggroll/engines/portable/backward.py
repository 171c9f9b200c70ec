"""Credit carried back by the portable engine, in plain MLX; the arithmetic is docs/estimators.md's.

Letters: P members, T tokens, V vocabulary, K inputs, O outputs, Z votes. All values int32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.engines.portable.credit import mixed
from eggroll.engines.portable.operations import Run, clip, exact_matmul, lists_of
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import (
    BETWEEN_LEAVES,
    BOUND,
    CLIPPED,
    ERROR,
    FRACTION,
    SUM_BOUND,
    Backward,
    reduced,
)
from eggroll.spec.program import Batch, Op, Program, S, Weights, X


class Done(NamedTuple):
    """An operation of one row as it ran: what it read, and its result, [P, n] each."""

    op: Op
    inputs: list[mx.array]
    y: mx.array


def bounded(c: mx.array) -> mx.array:
    return mx.clip(c, -BOUND, BOUND)


@dataclass
class RecordedRun(Run):
    """One row that remembers what every operation read and gave."""

    done: list[Done] = field(default_factory=list)

    def keep(self, op: Op, value: mx.array) -> None:
        self.done.append(Done(op, [self.registers[r] for r in op.inputs], value))
        super().keep(op, value)


@dataclass
class Errors:
    """Carries the errors of P members back, row by row, and counts the votes.

    words: uint32 [P, T], random, to round credit by.
    """

    program: Program
    weights: Weights
    back: Backward
    batch: Batch
    words: mx.array
    t: int = 0
    votes: dict[str, mx.array] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    credit: dict[int, mx.array] = field(default_factory=dict)  # of the row's registers

    def __post_init__(self) -> None:
        self.sizes = [0] * len(self.program.leaves)
        self.votes = {leaf.name: mx.zeros(leaf.shape, mx.int32) for leaf in self.program.leaves}

    def run(self, done: list[list[Done]]) -> None:
        """done: [T], all operations that ran there."""
        T, end = len(done), len(done[0])
        x: list[mx.array | None] = [None] * T
        for stage in reversed(self.program.stages):
            first, carried = end - len(stage.ops), None
            for self.t in reversed(range(T)):
                # The state is credited by the rows after this one, x by the stages after this one.
                given = {X: x[self.t], S: carried}
                self.credit = {r: c for r, c in given.items() if c is not None}
                for ran in reversed(done[self.t][first:end]):
                    self._pass(ran)
                x[self.t], carried = self.credit.get(X), self.credit.get(S)
                if stage.state < 0:
                    carried = None
                if carried is not None:  # a document's state begins at zero
                    carried = carried * (self.batch.tokens[:, self.t] != 0)[:, None]
                mx.eval([c for c in (x[self.t], carried) if c is not None], self.votes)
            end = first

    def _pass(self, ran: Done) -> None:
        op = ran.op
        if op.kind == "score":
            return self._score(ran)
        c = self.credit.pop(op.out, None) if op.writes else None
        if c is None:
            return None
        if op.kind in CLIPPED:
            c = mx.where(mx.abs(ran.y) == fx.LIMIT, 0, c)
        given = CREDITS[op.kind](self, ran, c)
        for register, part in zip(op.inputs, given, strict=True):
            if part is not None:
                before = self.credit.get(register)
                self.credit[register] = bounded(part if before is None else before + part)
        return None

    def word(self, leaf: int, count: int) -> mx.array:
        """Random words of a leaf's values at this token, uint32 [P, count]."""
        place = mx.arange(count).astype(mx.uint32) + mx.array(
            leaf * BETWEEN_LEAVES & 0xFFFFFFFF, mx.uint32
        )
        return mixed(self.words[:, self.t, None] + place)

    def rounded(self, leaf: int, c: mx.array) -> mx.array:
        """Credit in int8, rounded up or down by chance, so that its mean is right."""
        self.sizes[leaf] += int(mx.abs(c).astype(mx.int64).sum())
        h = self.back.scales[leaf]
        if h == 0:
            return clip(c)
        chance = (self.word(leaf, c.shape[1]) >> (32 - h)).astype(mx.int32)
        return clip((c + chance) >> h)

    def vote(self, leaf: int, part: mx.array) -> None:
        name = self.program.leaves[leaf].name
        self.votes[name] = self.votes[name] + part

    def through(self, leaf: int, c: mx.array, scale: int) -> mx.array | None:
        """Int8 credit of a matrix's outputs [P, O] -> credit of its inputs [P, K]."""
        matrix = self.back.matrices.get(self.program.leaves[leaf].name)
        if matrix is None:
            return None
        r = mx.clip(exact_matmul(c, matrix.astype(mx.int32)), -SUM_BOUND, SUM_BOUND)
        a, n = reduced(matrix.shape[1])
        by = n - scale
        return bounded((r * a) >> by if by >= 0 else mx.clip(r * a, -BOUND, BOUND) << -by)

    def _score(self, ran: Done) -> None:
        op, (x,), u = ran.op, ran.inputs, ran.y
        e = self._error(u, self.batch.targets[:, self.t], op.leaf)
        self.sizes[op.leaf] += int(mx.abs(e).sum())
        self.vote(op.leaf, exact_matmul(e.T, x))
        c = self.through(op.leaf, e, FRACTION)
        if c is not None:
            (register,) = op.inputs
            before = self.credit.get(register)
            self.credit[register] = bounded(c if before is None else before + c)

    def _error(self, u: mx.array, targets: mx.array, leaf: int) -> mx.array:
        """127 times (1 at the target less the probability), rounded by chance: int32 [P, V]."""
        E = mx.array(fx.exp2_table())[u + 128].astype(mx.int64)
        total = E.sum(axis=1, keepdims=True)
        z = mx.zeros_like(total)
        for bit in range(24, 40):  # of a sum below 2^36
            z = z + (total >> bit != 0)
        ratio = (ERROR << 24) // (total >> z)
        chance = (self.word(leaf, u.shape[1]) >> 16).astype(mx.int64)
        e = -((((E >> z) * ratio >> 8) + chance) >> 16).astype(mx.int32)
        e = e + ERROR * (mx.arange(u.shape[1]) == targets[:, None])
        # Where a logit is clipped, what would push it further out has no effect.
        outward = ((u == fx.LIMIT) & (e > 0)) | ((u == -fx.LIMIT) & (e < 0))
        return mx.where(outward, 0, e)


InputCredit = tuple[mx.array | None, ...]  # of each input of an operation


def of_embed(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    name = errors.program.leaves[ran.op.leaf].name
    rows = errors.batch.tokens[:, errors.t]
    errors.votes[name] = errors.votes[name].at[rows].add(errors.rounded(ran.op.leaf, c))
    return ()


def of_features(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    op, name = ran.op, errors.program.leaves[ran.op.leaf].name
    D, Z = errors.program.leaves[op.leaf].shape[1], errors.votes[name]
    c = errors.rounded(op.leaf, c)
    for place, indices in enumerate(lists_of(op, errors.batch.features[:, errors.t])):
        shown = (indices >= 0)[..., None]
        Z = Z.at[mx.maximum(indices, 0)].add(c[:, None, place * D : (place + 1) * D] * shown)
    errors.votes[name] = Z
    return ()


def of_linear(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    leaf, (x,) = ran.op.leaf, ran.inputs
    c = errors.rounded(leaf, c)
    errors.vote(leaf, exact_matmul(c.T, x))
    return (errors.through(leaf, c, errors.back.scales[leaf]),)


def of_norm(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    leaf, (x,) = ran.op.leaf, ran.inputs
    D = x.shape[1]
    m = mx.maximum(mx.abs(x).sum(axis=1, keepdims=True) // D, 1)
    errors.vote(leaf, (errors.rounded(leaf, c) * clip(16 * x // m)).sum(axis=0))
    a = c * errors.weights[errors.program.leaves[leaf].name].astype(mx.int32)
    total = (a.astype(mx.int64) * x).sum(axis=1, keepdims=True)
    mean = bounded(total // (m.astype(mx.int64) * m * D)).astype(mx.int32)
    return (a // m - mx.sign(x) * mean,)


def of_add(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    return (c, c)


def of_bias(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    errors.vote(ran.op.leaf, errors.rounded(ran.op.leaf, c).sum(axis=0))
    return (c,) * len(ran.inputs)


def of_lookup(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    table = errors.program.tables[ran.op.table].astype(np.int32)
    slope = np.append(table[1:], table[-1]) - np.append(table[0], table[:-1])
    return ((c * mx.array(slope)[ran.inputs[0] + fx.LIMIT]) >> 1,)


def of_forget(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    f, s = ran.inputs
    return (c * s) >> 8, (c * (f + fx.LIMIT)) >> 8


def of_mix(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    f, h, s = ran.inputs
    to_h = (c * (f + fx.LIMIT)) >> 8
    return (c * (h - s)) >> 8, to_h, c - to_h


def of_relu(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    return (mx.where(ran.inputs[0] > 0, c, 0),)


def of_concat(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    n = ran.inputs[0].shape[1]
    return c[:, :n], c[:, n:]


def of_input(errors: Errors, ran: Done, c: mx.array) -> InputCredit:
    return ()


# Operation -> the credit of its inputs and leaf, from that of its result. Of `score` the credit is
# its own error; `output` and `sums` have none.
CREDITS: dict[str, Callable[[Errors, Done, mx.array], InputCredit]] = {
    "embed": of_embed,
    "linear": of_linear,
    "norm": of_norm,
    "add": of_add,
    "add_bias": of_bias,
    "lookup": of_lookup,
    "forget": of_forget,
    "mix": of_mix,
    "input": of_input,
    "features": of_features,
    "bias": of_bias,
    "relu": of_relu,
    "concat": of_concat,
}
