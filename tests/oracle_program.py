"""The answer for any declared program, in plain NumPy, written to be read.

oracle.py knows one network and says by hand what it computes; this page runs the declaration,
operation by operation, and takes nothing but the declaration from the package. Constants, noise and
log-likelihood are oracle.py's. Letters as there: P members, T tokens, V vocabulary, D width.
Members read rows: a token, and what is shown beside it (`Rows` of the package, in NumPy).
"""

from __future__ import annotations

from math import exp, isqrt, tanh

import numpy as np
from oracle import Q, clip, log_likelihood, wrap32

TABLES = {
    "sigmoid": [round(254 / (1 + exp(-v / 16))) - 127 for v in range(-127, 128)],
    "tanh": [round(64 * tanh(v / 64)) for v in range(-127, 128)],
}


class Member:
    """One member, at one row: what an operation may read.

    weights: int8 leaves by name; noise: an oracle.Noise, or None for the unperturbed model; t,
    token, inputs and features: the row that is read, its place among T and what it holds.
    """

    def __init__(self, program, weights, noise=None, index=0):
        self.program, self.noise = program, noise
        self.weights = {name: np.asarray(w, np.int64) for name, w in weights.items()}
        self.pair, self.sign = index // 2, 1 - 2 * (index % 2)
        self.t, self.token, self.inputs, self.features = 0, 0, None, None

    def leaf(self, op):
        """The leaf's name and its values."""
        name = self.program.leaves[op.leaf].name
        return name, self.weights[name]

    def shifted(self, noise):
        return wrap32(noise) >> (Q + self.noise.shift)

    def factors(self, name, shape):
        """A [out, r], which carries the member's sign, and B [in, r]."""
        A, B = self.noise.factors(name, self.pair, shape)
        return self.sign * A, B

    def vector(self, op):
        """A vector leaf as this member has it."""
        name, w = self.leaf(op)
        if self.noise is None:
            return w
        return clip(w + self.shifted(self.sign * self.noise.product(name, self.pair, len(w))))

    def in_rows(self, name, shape, indices):
        """What noise on the weights adds to the sum of these rows of a leaf [count, D]."""
        if self.noise is None:
            return 0
        A, B = self.factors(name, shape)
        return self.shifted(B @ A[indices].sum(0))

    def in_sums(self, name, shape, x):
        """The noise added to the sums of a leaf [O, K] with inputs x."""
        if self.noise is None:
            return 0
        A, B = self.factors(name, shape)
        return self.shifted(A @ (B.T @ x))

    def in_nodes(self, name, size, place):
        """Noise on values rather than weights, as token credit has it: list `place` of a leaf."""
        return 0

    def seen(self, op, inputs, y):
        """Told what an operation read and gave, for members that remember it."""


def embed(member, op):
    name, E = member.leaf(op)
    x = clip(E[member.token] + member.in_rows(name, E.shape, [member.token]))
    return clip(x + member.in_nodes(name, len(x), 0))


def features(member, op):
    name, E = member.leaf(op)
    lists, active, first, shift = op.numbers
    parts = []
    for place in range(lists):
        row = member.features[first + place * active : first + (place + 1) * active]
        shown = [int(f) for f in row if f >= 0]
        y = clip((E[shown].sum(0) + member.in_rows(name, E.shape, shown)) >> shift)
        parts.append(clip(y + member.in_nodes(name, E.shape[1], place)))
    return np.concatenate(parts)


def input_(member, op):
    return np.maximum(member.inputs, -127)


def sums(member, op, x):
    name, W = member.leaf(op)
    return wrap32(wrap32(W @ x) + member.in_sums(name, W.shape, x))


def linear(member, op, x):
    return clip(sums(member, op, x) // (16 * isqrt(len(x))))


def norm(member, op, x):
    return clip((x * member.vector(op)) // max(1, int(np.abs(x).sum()) // len(x)))


def add(member, op, a, b):
    return clip(a + b)


def add_bias(member, op, a, b):
    return clip(a + b + member.vector(op))


def bias(member, op, a):
    return clip(a + member.vector(op))


def relu(member, op, a):
    return np.maximum(a, 0)


def concat(member, op, a, b):
    return np.concatenate([a, b])


def lookup(member, op, x):
    table = TABLES[op.table] if op.table in TABLES else member.program.tables[op.table]
    return np.array(table, np.int64)[x + 127]


def forget(member, op, f, s):
    return ((f + 127) * s) >> 8


def mix(member, op, f, h, s):
    return s + (((f + 127) * (h - s)) >> 8)


def output(member, op, x):
    return x


OPERATIONS = {
    "embed": embed,
    "linear": linear,
    "norm": norm,
    "add": add,
    "add_bias": add_bias,
    "lookup": lookup,
    "forget": forget,
    "mix": mix,
    "score": linear,  # gives logits, which `run_row` keeps apart, like all that the caller has
    "input": input_,
    "features": features,
    "bias": bias,
    "relu": relu,
    "concat": concat,
    "output": output,
    "sums": sums,
}


def run_row(member, state):
    """One row through all stages: what the caller has, by name, logits [V] being "score".

    `state` [state_size] becomes the new one.
    """
    D, x, given = member.program.width, None, {}
    if member.token == 0:  # the mark where a document begins
        state[:] = 0
    for stage in member.program.stages:
        has_state = stage.state >= 0
        mine = slice(stage.state, stage.state + D)
        registers = {0: x, 1: state[mine].copy() if has_state else None}
        for op in stage.ops:
            inputs = [registers[r] for r in op.inputs]
            y = OPERATIONS[op.kind](member, op, *inputs)
            member.seen(op, inputs, y)
            if op.kind == "score":
                given["score"] = y
            elif op.kind in ("output", "sums"):
                given[member.program.outputs[op.numbers[0]]] = y
            else:
                assert len(y) == stage.registers[op.out]
                registers[op.out] = y
        x = registers[0]
        if has_state:
            state[mine] = registers[1]
    return given


def run(member, m, tokens, state, rows):
    """All rows of member m: what `run_row` gives of each. `state` becomes the new one."""
    given = []
    for member.t, token in enumerate(tokens[m]):
        member.token = int(token)
        member.inputs, member.features = (
            None if shown is None else np.asarray(shown[m, member.t], np.int64) for shown in rows
        )
        given.append(run_row(member, state))
    return given


def scores_of(given, targets, score_bits):
    """Scores [T] and logits [T, V] of one member."""
    logits = [row["score"] for row in given]
    S = 1 << score_bits
    return [log_likelihood(u, int(c), S) for u, c in zip(logits, targets, strict=True)], logits


def evaluate(program, weights, tokens, targets, state, noise=None, rows=(None, None)):
    """Scores [P, T], new states [P, state_size] and logits [P, T, V]; tokens, targets: [P, T]."""
    scores, logits = np.zeros(tokens.shape, np.int64), []
    state = np.array(state, np.int64)
    for m in range(len(tokens)):
        member = Member(program, weights, noise, m)
        given = run(member, m, tokens, state[m], rows)
        scores[m], u = scores_of(given, targets[m], program.score_bits)
        logits.append(u)
    return scores, state, np.array(logits)


def outputs(program, tokens, state, rows, member):
    """Output name -> [P, T, size], and new states; member: index -> a Member."""
    state, given = np.array(state, np.int64), []
    for m in range(len(tokens)):
        given.append(run(member(m), m, tokens, state[m], rows))
    return {
        out.name: np.array([[row[out] for row in rows_of] for rows_of in given])
        for out in program.outputs
    }, state
