"""The answer for any declared program, in plain NumPy, written to be read.

oracle.py knows one network and says by hand what it computes; this page runs the declaration,
operation by operation, and takes nothing but the declaration from the package. Constants, noise and
log-likelihood are oracle.py's. Letters as there: P members, T tokens, V vocabulary, D width.
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
    """One member, at one token: what an operation may read.

    weights: int8 leaves by name; noise: an oracle.Noise, or None for the unperturbed model.
    """

    def __init__(self, program, weights, noise=None, index=0):
        self.program, self.noise = program, noise
        self.weights = {name: np.asarray(w, np.int64) for name, w in weights.items()}
        self.pair, self.sign = index // 2, 1 - 2 * (index % 2)

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


def embed(member, op):
    name, E = member.leaf(op)
    x = E[member.token]
    if member.noise is not None:
        A, B = member.factors(name, E.shape)
        x = x + member.shifted(B @ A[member.token])
    return clip(x)


def linear(member, op, x):
    name, W = member.leaf(op)
    total = wrap32(W @ x)
    if member.noise is not None:
        A, B = member.factors(name, W.shape)
        total = wrap32(total + member.shifted(A @ (B.T @ x)))
    return clip(total // (16 * isqrt(len(x))))


def norm(member, op, x):
    return clip((x * member.vector(op)) // max(1, int(np.abs(x).sum()) // len(x)))


def add(member, op, a, b):
    return clip(a + b)


def add_bias(member, op, a, b):
    return clip(a + b + member.vector(op))


def lookup(member, op, x):
    return np.array(TABLES[op.table])[x + 127]


def forget(member, op, f, s):
    return ((f + 127) * s) >> 8


def mix(member, op, f, h, s):
    return s + (((f + 127) * (h - s)) >> 8)


OPERATIONS = {
    "embed": embed,
    "linear": linear,
    "norm": norm,
    "add": add,
    "add_bias": add_bias,
    "lookup": lookup,
    "forget": forget,
    "mix": mix,
    "score": linear,  # gives logits, which `run_token` keeps apart
}


def run_token(member, token, state):
    """One token through all stages: logits [V]; `state` [state_size] becomes the new one."""
    member.token, D, x = token, member.program.width, None
    if token == 0:  # the mark where a document begins
        state[:] = 0
    for stage in member.program.stages:
        has_state = stage.state >= 0
        mine = slice(stage.state, stage.state + D)
        registers = {0: x, 1: state[mine].copy() if has_state else None}
        for op in stage.ops:
            y = OPERATIONS[op.kind](member, op, *(registers[r] for r in op.inputs))
            assert len(y) == (stage.registers[op.out] if op.kind != "score" else len(y))
            if op.kind == "score":
                logits = y
            else:
                registers[op.out] = y
        x = registers[0]
        if has_state:
            state[mine] = registers[1]
    return logits


def evaluate(program, weights, tokens, targets, state, noise=None):
    """Scores [P, T], new states [P, state_size] and logits [P, T, V]; tokens, targets: [P, T]."""
    scores, logits = np.zeros(tokens.shape, np.int64), []
    state = np.array(state, np.int64)
    for m, row in enumerate(tokens):
        member = Member(program, weights, noise, m)
        logits.append([run_token(member, int(token), state[m]) for token in row])
        for t, u in enumerate(logits[m]):
            scores[m, t] = log_likelihood(u, int(targets[m, t]), 1 << program.score_bits)
    return scores, state, np.array(logits)
