"""Credit carried back, and rule `adam`, in plain NumPy, written from docs/estimators.md.

For any declared program: member by member, row by row, operation by operation, from the last to the
first. Nothing is shared with the package but the declaration; the random words are given. Letters:
P members, T rows, K inputs and O outputs of a leaf, Z votes; 32-bit words are Python or int64.
"""

from __future__ import annotations

from math import isqrt, sqrt
from typing import NamedTuple

import numpy as np
from oracle import EXP2, wrap32
from oracle_program import TABLES, Member, run, scores_of
from oracle_rows import shown_in

M32 = (1 << 32) - 1
C = 2**22 - 1  # the bound of credit
CLIPPED = ("linear", "norm", "add", "add_bias", "bias", "features")
LAYERS = ("linear", "features", "embed")
RESULTS = ("score", "output", "sums")
SCORE_SCALE = 14  # credit has fourteen fraction bits in units of the head's error


class Row(NamedTuple):
    """What a member read at a row, and its operations in order: (operation, inputs, result)."""

    token: int
    features: np.ndarray | None
    ran: list


class Recorder(Member):
    """A member without noise that remembers what every operation read and gave."""

    def __init__(self, program, weights):
        super().__init__(program, weights)
        self.rows = []

    def seen(self, op, inputs, y):
        if self.t == len(self.rows):
            self.rows.append(Row(self.token, self.features, []))
        self.rows[self.t].ran.append((op, inputs, y))


def held(v, bound):
    return np.minimum(np.maximum(v, -bound), bound)


def random_words(q, leaf, count):
    """The words of the values of a leaf at a token, q being the token's own."""
    v = (int(q) + 0x9E3779B9 * leaf + np.arange(count)) & M32
    v = (v ^ (v >> 16)) * 0x7FEB352D & M32  # of Python's or NumPy's 64 bits: it wraps, and then
    v = (v ^ (v >> 15)) * 0x846CA68B & M32  # only the lower 32 are kept
    return v ^ (v >> 16)


def to_int8(c, h, words):
    """Credit in int8, rounded up or down by chance; no bit of a word is used where h is 0."""
    return held((c + (words >> (32 - h))) >> h, 127)


def clipped_away(op, y, c):
    """Credit c of what an operation gave, without that of values at the clip."""
    return np.where(np.abs(y) == 127, 0, c) if op.kind in CLIPPED else c


def pushed_out(op, y, c):
    """The same of a final operation: only what would push a value at the clip further out."""
    return np.where(stuck(y, c), 0, c) if op.kind in CLIPPED else c


def final(stage, at):
    """Whether the caller alone has what operation `at` gives, by no other matrix."""
    op = stage.ops[at]
    if not writes(op) or op.out in (0, 1):  # x and s are handed on
        return False
    readers = []
    for i in range(at + 1, len(stage.ops)):
        if op.out in stage.ops[i].inputs:
            readers.append(i)
        if stage.ops[i].out == op.out and writes(stage.ops[i]):
            break
    return bool(readers) and all(
        stage.ops[i].kind == "output" or (stage.ops[i].kind != "linear" and final(stage, i))
        for i in readers
    )


def crosses(token):
    """Whether the state at the beginning of a row comes from the row before."""
    return token != 0


def head_error(logits, target, words):
    """127 times what the probabilities lack, rounded by chance."""
    E = EXP2[16][logits + 128]
    s, z = int(E.sum()), 0
    while s >> z >= 2**24:
        z += 1
    R = (127 << 24) // (s >> z)
    e = np.where(np.arange(len(logits)) == target, 127, 0)
    e = e - (((((E >> z) * R) >> 8) + (words >> 16)) >> 16)
    return np.where(stuck(logits, e), 0, e)


def stuck(logits, e):
    """Whether a logit at the clip is pushed further out."""
    return (logits == 127) & (e > 0) | (logits == -127) & (e < 0)


def reciprocal(K):
    """(a, n): a / 2^n stands for 1 / (16 floor(sqrt K))."""
    d = 16 * isqrt(K)
    n = d.bit_length() + 3
    return (2 ** (n + 1) // d + 1) // 2, n


def through(F, c, h):
    """Int8 credit c [O] through a matrix [O, K] to its inputs."""
    a, n = reciprocal(F.shape[1])
    r = held(F.T @ c, 2**26) * a
    return held(r >> (n - h), C) if h <= n else held(held(r, C) << (h - n), C)


def inner(stage, at):
    """Whether all that operation `at` reads comes from layers of its stage, by whatever way."""
    op = stage.ops[at]
    for r in op.inputs:
        writers = [i for i in range(at) if stage.ops[i].out == r and writes(stage.ops[i])]
        if not writers:  # what the stage was handed, or its state
            return False
        made = stage.ops[writers[-1]]
        if made.kind not in LAYERS and (not made.inputs or not inner(stage, writers[-1])):
            return False
    return True


def writes(op):
    return op.kind not in RESULTS


def passing(program, estimator, weights, feedback):
    """Leaf's index -> the matrix through which it passes credit on, for those that do."""
    found = {}
    for stage in program.stages:
        for at, op in enumerate(stage.ops):
            if op.kind not in ("linear", "score") and (op.kind != "sums" or program.scored):
                continue
            name = program.leaves[op.leaf].name
            if estimator == "local" and is_head(program, stage, at):
                found[op.leaf] = weights[name]
            elif estimator == "feedback" or inner(stage, at):
                found[op.leaf] = feedback[name]
    return {leaf: np.asarray(F, np.int64) for leaf, F in found.items()}


def is_head(program, stage, at):
    """Whether a matrix is next to an error: that of the score, or those of outputs."""
    if program.scored:
        return stage.ops[at].kind == "score"
    return stage.ops[at].kind == "sums" or final(stage, at)


class Carrier:
    """Carries the errors of members back: adds up votes Z and, of every leaf, the sum of |c|.

    matrices: `passing`'s; scales: h of every leaf; q: the random word of the row, at work.
    """

    def __init__(self, program, weights, matrices, scales):
        self.program, self.matrices, self.scales = program, matrices, scales
        self.weights = {name: np.asarray(w, np.int64) for name, w in weights.items()}
        self.votes = {name: np.zeros(w.shape, np.int64) for name, w in self.weights.items()}
        self.sizes = [0] * len(program.leaves)
        self.q, self.target, self.row, self.errors = 0, 0, None, None

    def vote(self, op):
        return self.votes[self.program.leaves[op.leaf].name]

    def weight(self, op):
        return self.weights[self.program.leaves[op.leaf].name]

    def to_leaf(self, op, c):
        """Int8 credit of a leaf, and its size for the next scale."""
        self.sizes[op.leaf] += int(np.abs(c).sum())
        return to_int8(c, self.scales[op.leaf], random_words(self.q, op.leaf, len(c)))

    def back(self, op, c, h):
        F = self.matrices.get(op.leaf)
        return [None if F is None else through(F, c, h)]

    def error(self, op):
        """The caller's error of an output at the row, at work; None without one."""
        if self.errors is None:
            return None
        sizes = [output.size for output in self.program.outputs]
        first = sum(sizes[: op.numbers[0]])
        return self.errors[first : first + sizes[op.numbers[0]]].astype(np.int64)

    def member(self, rows, targets, words, errors=None):
        """One member: stage by stage, row by row, operation by operation.

        errors: [T, all outputs side by side], of the caller, or None.
        """
        handed = [None] * len(rows)  # credit of register x, row by row, as stages hand it back
        end = len(rows[0].ran)
        for stage in reversed(self.program.stages):
            begin, of_state = end - len(stage.ops), None
            for t in reversed(range(len(rows))):
                self.q, self.target, self.row = words[t], targets[t], rows[t]
                self.errors = None if errors is None else errors[t]
                credit = {0: handed[t], 1: of_state}
                for at in reversed(range(len(stage.ops))):
                    self.operation(credit, final(stage, at), *rows[t].ran[begin + at])
                handed[t] = credit[0]
                of_state = credit[1] if crosses(rows[t].token) else None
            end = begin

    def operation(self, credit, is_final, op, inputs, y):
        """Takes the credit of what an operation gave, and gives its inputs theirs."""
        c = credit.pop(op.out, None) if writes(op) else None
        if writes(op):
            credit[op.out] = None
            if c is None:
                return
            c = pushed_out(op, y, c) if is_final else clipped_away(op, y, c)
        for r, part in zip(op.inputs, SLOPES[op.kind](self, op, inputs, y, c), strict=True):
            if part is not None:
                before = credit.get(r)
                credit[r] = held(part if before is None else before + part, C)


def of_score(carrier, op, inputs, y, c):
    words = random_words(carrier.q, op.leaf, len(y))
    e = head_error(y, carrier.target, words)
    carrier.sizes[op.leaf] += int(np.abs(e).sum())
    carrier.vote(op)[:] += np.outer(e, inputs[0])
    return carrier.back(op, e, SCORE_SCALE)


def of_linear(carrier, op, inputs, y, c):
    c = carrier.to_leaf(op, c)
    carrier.vote(op)[:] += np.outer(c, inputs[0])
    return carrier.back(op, c, carrier.scales[op.leaf])


def of_norm(carrier, op, inputs, y, c):
    (x,) = inputs
    D = len(x)
    m = max(1, int(np.abs(x).sum()) // D)
    carrier.vote(op)[:] += carrier.to_leaf(op, c) * held(16 * x // m, 127)
    a = c * carrier.weight(op)
    return [a // m - np.sign(x) * held(int((a * x).sum()) // (m * m * D), C)]


def of_add(carrier, op, inputs, y, c):
    return [c, c]


def of_bias(carrier, op, inputs, y, c):
    carrier.vote(op)[:] += carrier.to_leaf(op, c)
    return [c] * len(inputs)


def of_concat(carrier, op, inputs, y, c):
    n = len(inputs[0])
    return [c[:n], c[n:]]


def of_relu(carrier, op, inputs, y, c):
    return [np.where(inputs[0] > 0, c, 0)]


def of_lookup(carrier, op, inputs, y, c):
    values = TABLES[op.table] if op.table in TABLES else carrier.program.tables[op.table]
    table = np.array(values, np.int64)
    after, before = held(inputs[0] + 1, 127), held(inputs[0] - 1, 127)
    return [(c * (table[after + 127] - table[before + 127])) >> 1]


def of_forget(carrier, op, inputs, y, c):
    f, s = inputs
    return [(c * s) >> 8, (c * (f + 127)) >> 8]


def of_mix(carrier, op, inputs, y, c):
    f, h, s = inputs
    to_h = (c * (f + 127)) >> 8
    return [(c * (h - s)) >> 8, to_h, c - to_h]


def of_embed(carrier, op, inputs, y, c):
    carrier.vote(op)[carrier.row.token] += carrier.to_leaf(op, c)
    return []


def of_features(carrier, op, inputs, y, c):
    c = carrier.to_leaf(op, c).reshape(op.numbers[0], -1)
    for place, f in shown_in(op, carrier.row.features):
        carrier.vote(op)[f] += c[place]
    return []


def of_output(carrier, op, inputs, y, c):
    e = carrier.error(op)
    return [None if e is None else e << SCORE_SCALE]


def of_sums(carrier, op, inputs, y, c):
    e = carrier.error(op)
    if e is None:
        return [None]
    carrier.sizes[op.leaf] += int(np.abs(e).sum())
    carrier.vote(op)[:] += np.outer(e, inputs[0])
    return carrier.back(op, e, SCORE_SCALE)


def nothing(carrier, op, inputs, y, c):
    return [None] * len(inputs)


SLOPES = {
    "embed": of_embed,
    "linear": of_linear,
    "norm": of_norm,
    "add": of_add,
    "add_bias": of_bias,
    "lookup": of_lookup,
    "forget": of_forget,
    "mix": of_mix,
    "score": of_score,
    "input": nothing,
    "features": of_features,
    "bias": of_bias,
    "relu": of_relu,
    "concat": of_concat,
    "output": of_output,
    "sums": of_sums,
}


def learn(
    program, weights, tokens, targets, state, words, estimator, scales, feedback,
    rows=(None, None), errors=None,
):  # fmt: skip
    """Scores [P, T], states [P, state_size], Z per leaf and sums of |c| per leaf.

    words: [P, T], the members' random words; scales: h per leaf; feedback: leaf -> int8 [O, K];
    errors: of the outputs, int8 [P, T, all of them side by side], or None.
    """
    matrices = passing(program, estimator, weights, feedback)
    carrier = Carrier(program, weights, matrices, scales)
    scores, state = np.zeros(tokens.shape, np.int64), np.array(state, np.int64)
    for m in range(len(tokens)):
        member = Recorder(program, weights)
        given = run(member, m, tokens, state[m], rows)
        if program.scored:
            scores[m], _ = scores_of(given, targets[m], program.score_bits)
        of_m = None if errors is None else errors[m]
        carrier.member(member.rows, targets[m], words[m], of_m)
    return scores, state, {k: wrap32(z) for k, z in carrier.votes.items()}, carrier.sizes


def values_of(program):
    """Values of a row that each leaf gets credit for."""
    lists = {
        op.leaf: op.numbers[0]
        for stage in program.stages
        for op in stage.ops
        if op.kind == "features"
    }
    by_row = ("embed", "features")
    kinds = {op.leaf: op.kind for stage in program.stages for op in stage.ops}
    return [
        lists.get(i, 1) * leaf.shape[-1] if kinds[i] in by_row else leaf.shape[0]
        for i, leaf in enumerate(program.leaves)
    ]


def next_scales(program, scales, sizes, rows):
    """The scales of the next update; rows: of all members together."""
    return [
        next_scale(h, size // (rows * values))
        for h, size, values in zip(scales, sizes, values_of(program), strict=True)
    ]


def next_scale(h, mean):
    """The scale that suits a mean |c|."""
    return min(16, max(0, mean.bit_length() - 2)) if mean else h


VOTES = 2**26  # the bound of a vote
MEAN, POWER = 26, 13  # of 256: what a vote adds to m, its square to s^2
FORGET, AGE = 2, 50  # of the share that is lost, at the peak
EASE = 500  # updates from which on the rate of a run is smaller


class Adam:
    """Rule `adam` on one leaf: m and s, and a fine copy (Python integers) of its values.

    feedback: a fine copy of F, which gets the same steps, or None; shrinks: whether both do.
    """

    def __init__(self, fine, feedback=None, *, shrinks=False):
        self.shrinks = shrinks
        self.fine = [int(v) for v in np.ravel(fine)]
        self.feedback = None if feedback is None else [int(v) for v in np.ravel(feedback)]
        self.m, self.s = [0] * len(self.fine), [0] * len(self.fine)

    def update(self, Z, g, delta):
        """One update with votes Z and the factors of `schedule`."""
        for i, v in enumerate(np.ravel(Z)):
            step = self.moved(i, 16 * max(-VOTES, min(VOTES, int(v)))) * g
            step = sign(self.m[i]) * (abs(step) // max(self.s[i], 1))
            for copy in (self.fine, self.feedback):
                if copy is not None:
                    kept = decayed(copy[i], delta) if self.shrinks else copy[i]
                    copy[i] = max(-LIMIT, min(LIMIT, kept + step))

    def rounded(self):
        """The int8 values."""
        return np.array([(v + (1 << 15)) >> 16 for v in self.fine])

    def moved(self, i, z):
        """Both moments moved by a vote; returns the first."""
        self.m[i] = part(self.m[i], 256 - MEAN) + part(z, MEAN)
        q, old = self.s[i] ** 2, 256 - POWER
        self.s[i] = isqrt((q >> 8) * old + ((q & 255) * old >> 8) + (z**2 >> 8) * POWER)
        return self.m[i]


LIMIT = (127 << 16) + (1 << 15) - 1  # the largest fine value that rounds to 127


def sign(v):
    return (v > 0) - (v < 0)


def part(v, b):
    return sign(v) * (abs(v) * b >> 8)


def decayed(v, delta):
    return v - sign(v) * (abs(v) * delta >> 24)


def schedule(t, steps, learning_rate):
    """(g, delta) of update t: the factor of a step and the share that is lost."""
    p, w = min(t / steps, 1), max(1, min(20, steps // 10))
    phi = (1 - p) ** 2 * (1 + 2 * p) * min(1, (t + 1) / w)
    lost = FORGET / (t + AGE)
    eased = sqrt(sqrt(EASE / min(max(steps, 500), 8000)))
    return round(2**16 * min(64, learning_rate * eased * phi)), round(2**24 * (lost * phi))
