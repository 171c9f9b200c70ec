"""The backward pass of the portable engine, in plain MLX; the arithmetic is docs/estimators.md's.

Letters: P members, T tokens, V vocabulary, K inputs, O outputs, Z votes. All values int32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.engines.portable.credit import scramble
from eggroll.engines.portable.operations import TokenPass, clip, exact_matmul, index_lists
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import (
    BETWEEN_LEAVES,
    BOUND,
    CLIPPED,
    ERROR,
    FRACTION,
    SUM_BOUND,
    Backward,
    final,
    reduced,
)
from eggroll.spec.program import Batch, Op, Program, S, Weights, X


@dataclass
class BackwardPass:
    """Carries the errors of P members back, row by row, and counts the votes."""

    program: Program
    weights: Weights
    back: Backward
    batch: Batch
    words: mx.array  # uint32 [P, T], random, to round credit by
    t: int = 0
    votes: dict[str, mx.array] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    credit: dict[int, mx.array] = field(default_factory=dict)  # of the row's registers

    def __post_init__(self) -> None:
        self.sizes = [0] * len(self.program.leaves)
        self.votes = {leaf.name: mx.zeros(leaf.shape, mx.int32) for leaf in self.program.leaves}

    def run(self, records: list[list[OpRecord]]) -> None:
        """records: [T], of all operations that ran there."""
        T, end = len(records), len(records[0])
        x: list[mx.array | None] = [None] * T
        for stage in reversed(self.program.stages):
            first, state = end - len(stage.ops), None
            for self.t in reversed(range(T)):
                # The state is credited by the rows after this one, x by the stages after this one.
                later = {X: x[self.t], S: state}
                self.credit = {r: c for r, c in later.items() if c is not None}
                for record, last in zip(
                    reversed(records[self.t][first:end]), reversed(final(stage)), strict=True
                ):
                    self._step(record, last)
                x[self.t], state = self.credit.get(X), self.credit.get(S)
                if stage.state < 0:
                    state = None
                if state is not None:  # a document's state begins at zero
                    state = state * (self.batch.tokens[:, self.t] != 0)[:, None]
                mx.eval([c for c in (x[self.t], state) if c is not None], self.votes)
            end = first

    def _step(self, record: OpRecord, last: bool) -> None:
        """Carries the credit of an operation's result to its inputs and its leaf.

        last: whether the operation is a final one.
        """
        op = record.op
        if op.kind == "score":
            return self._score(record)
        if not op.writes:
            return self._output(record)
        c = self.credit.pop(op.out, None) if op.writes else None
        if c is None:
            return None
        if op.kind in CLIPPED:
            stuck = outward(record.y, c) if last else mx.abs(record.y) == fx.LIMIT
            c = mx.where(stuck, 0, c)
        credits = BACKWARD_OPERATIONS[op.kind](self, record, c)
        for register, credit in zip(op.inputs, credits, strict=True):
            if credit is not None:
                self._add(register, credit)
        return None

    def _add(self, register: int, credit: mx.array) -> None:
        before = self.credit.get(register)
        self.credit[register] = bounded(credit if before is None else before + credit)

    def word(self, leaf: int, count: int) -> mx.array:
        """Random words of a leaf's values at this token, uint32 [P, count]."""
        place = mx.arange(count).astype(mx.uint32) + mx.array(
            leaf * BETWEEN_LEAVES & 0xFFFFFFFF, mx.uint32
        )
        return scramble(self.words[:, self.t, None] + place)

    def round_credit(self, leaf: int, c: mx.array) -> mx.array:
        """Credit in int8, rounded up or down by chance, so that its mean is right."""
        self.sizes[leaf] += int(mx.abs(c).astype(mx.int64).sum())
        h = self.back.scales[leaf]
        if h == 0:
            return clip(c)
        chance = (self.word(leaf, c.shape[1]) >> (32 - h)).astype(mx.int32)
        return clip((c + chance) >> h)

    def vote(self, leaf: int, Z: mx.array) -> None:
        name = self.program.leaves[leaf].name
        self.votes[name] = self.votes[name] + Z

    def through(self, leaf: int, c: mx.array, scale: int) -> mx.array | None:
        """Int8 credit of a matrix's outputs [P, O] -> credit of its inputs [P, K]."""
        matrix = self.back.matrices.get(self.program.leaves[leaf].name)
        if matrix is None:
            return None
        r = mx.clip(exact_matmul(c, matrix.astype(mx.int32)), -SUM_BOUND, SUM_BOUND)
        a, n = reduced(matrix.shape[1])
        shift = n - scale
        return bounded((r * a) >> shift if shift >= 0 else bounded(r * a) << -shift)

    def _score(self, record: OpRecord) -> None:
        op, (x,), u = record.op, record.inputs, record.y
        e = self._error(u, self.batch.targets[:, self.t], op.leaf)
        self.sizes[op.leaf] += int(mx.abs(e).sum())
        self.vote(op.leaf, exact_matmul(e.T, x))
        c = self.through(op.leaf, e, FRACTION)
        if c is not None:
            self._add(op.inputs[0], c)

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
        return mx.where(outward(u, e), 0, e)

    def _output(self, record: OpRecord) -> None:
        """The caller's error of an output: credit of its register or, of `sums`, of its leaf."""
        if self.batch.errors is None:
            return
        op, (x,), place = record.op, record.inputs, record.op.numbers[0]
        sizes = [output.size for output in self.program.outputs]
        first = sum(sizes[:place])
        e = self.batch.errors[:, self.t, first : first + sizes[place]].astype(mx.int32)
        if op.kind == "output":
            return self._add(op.inputs[0], e << FRACTION)
        self.sizes[op.leaf] += int(mx.abs(e).sum())
        self.vote(op.leaf, exact_matmul(e.T, x))
        c = self.through(op.leaf, e, FRACTION)
        if c is not None:
            self._add(op.inputs[0], c)


@dataclass
class RecordedPass(TokenPass):
    """One row whose operations are recorded."""

    records: list[OpRecord] = field(default_factory=list)

    def store(self, op: Op, value: mx.array) -> None:
        self.records.append(OpRecord(op, [self.registers[r] for r in op.inputs], value))
        super().store(op, value)


class OpRecord(NamedTuple):
    """An operation of one row as it ran."""

    op: Op
    inputs: list[mx.array]  # [P, n] each
    y: mx.array  # its result [P, n]


def outward(y: mx.array, c: mx.array) -> mx.array:
    """True where credit would push a value at the clip further out, which has no effect."""
    return ((y == fx.LIMIT) & (c > 0)) | ((y == -fx.LIMIT) & (c < 0))


def bounded(c: mx.array) -> mx.array:
    return mx.clip(c, -BOUND, BOUND)


# Operations: from the credit of the result, that of the inputs and the leaf.

InputCredits = tuple[mx.array | None, ...]  # of each input of an operation


def embed_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    name = run.program.leaves[record.op.leaf].name
    rows = run.batch.tokens[:, run.t]
    run.votes[name] = run.votes[name].at[rows].add(run.round_credit(record.op.leaf, c))
    return ()


def features_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    op, name = record.op, run.program.leaves[record.op.leaf].name
    D, Z = run.program.leaves[op.leaf].shape[1], run.votes[name]
    c = run.round_credit(op.leaf, c)
    for place, indices in enumerate(index_lists(op, run.batch.features[:, run.t])):
        shown = (indices >= 0)[..., None]
        Z = Z.at[mx.maximum(indices, 0)].add(c[:, None, place * D : (place + 1) * D] * shown)
    run.votes[name] = Z
    return ()


def linear_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    leaf, (x,) = record.op.leaf, record.inputs
    c = run.round_credit(leaf, c)
    run.vote(leaf, exact_matmul(c.T, x))
    return (run.through(leaf, c, run.back.scales[leaf]),)


def norm_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    leaf, (x,) = record.op.leaf, record.inputs
    D = x.shape[1]
    m = mx.maximum(mx.abs(x).sum(axis=1, keepdims=True) // D, 1)
    run.vote(leaf, (run.round_credit(leaf, c) * clip(16 * x // m)).sum(axis=0))
    a = c * run.weights[run.program.leaves[leaf].name].astype(mx.int32)
    total = (a.astype(mx.int64) * x).sum(axis=1, keepdims=True)
    mean = bounded(total // (m.astype(mx.int64) * m * D)).astype(mx.int32)
    return (a // m - mx.sign(x) * mean,)


def add_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    return (c, c)


def bias_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    run.vote(record.op.leaf, run.round_credit(record.op.leaf, c).sum(axis=0))
    return (c,) * len(record.inputs)


def lookup_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    table = run.program.tables[record.op.table].astype(np.int32)
    slope = np.append(table[1:], table[-1]) - np.append(table[0], table[:-1])
    return ((c * mx.array(slope)[record.inputs[0] + fx.LIMIT]) >> 1,)


def forget_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    f, s = record.inputs
    return (c * s) >> 8, (c * (f + fx.LIMIT)) >> 8


def mix_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    f, h, s = record.inputs
    to_h = (c * (f + fx.LIMIT)) >> 8
    return (c * (h - s)) >> 8, to_h, c - to_h


def relu_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    return (mx.where(record.inputs[0] > 0, c, 0),)


def concat_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    n = record.inputs[0].shape[1]
    return c[:, :n], c[:, n:]


def input_back(run: BackwardPass, record: OpRecord, c: mx.array) -> InputCredits:
    return ()


# Operation -> the credit of its inputs and leaf, from that of its result. Of `score` the credit is
# its own error, of `output` and `sums` the caller's.
BACKWARD_OPERATIONS: dict[str, Callable[[BackwardPass, OpRecord, mx.array], InputCredits]] = {
    "embed": embed_back,
    "linear": linear_back,
    "norm": norm_back,
    "add": add_back,
    "add_bias": bias_back,
    "lookup": lookup_back,
    "forget": forget_back,
    "mix": mix_back,
    "input": input_back,
    "features": features_back,
    "bias": bias_back,
    "relu": relu_back,
    "concat": concat_back,
}
