"""Token credit of any declared program, in plain NumPy, written from docs/estimators.md.

oracle_credit.py knows the EGG network by the names of its leaves; here the declaration says what a
leaf does, and everything that decides its noise and credit is said again, member by member. Letters
as there: N pairs, T rows, K inputs of a leaf. Member 2p of pair p adds noise, 2p+1 subtracts it.
"""

from __future__ import annotations

from functools import partial
from math import isqrt

import numpy as np
from oracle import Q, clip, wrap32
from oracle_credit import UNIT, CreditNoise, discounted, drawn, rounded
from oracle_program import Member, outputs, run, scores_of

SUMMED = ("add_bias", "bias")  # of matrices' outputs, if nobody else reads them
RESULTS = ("score", "output", "sums")  # operations that write no register


def operations(program):
    """(stage, operation) in the order in which they run."""
    return [(stage, op) for stage in program.stages for op in stage.ops]


def owners(program) -> dict[str, str]:
    """Leaf -> the leaf whose noise it shares, for all that have none of their own."""
    names, found = [leaf.name for leaf in program.leaves], {}
    for stage, op in operations(program):
        if op.kind not in SUMMED:
            continue
        made = []
        for r in op.inputs:
            writers = [o for o in stage.ops if o.out == r and o.kind not in RESULTS]
            readings = [i for o in stage.ops for i in o.inputs if i == r]
            alone = len(writers) == len(readings) == 1 and writers[0].kind == "linear"
            made.append(names[writers[0].leaf] if alone else None)
        if None not in made:
            found |= dict.fromkeys((*made[1:], names[op.leaf]), made[0])
    return found


def credited_later(program) -> set[str]:
    """The leaves that can change a later row: those at or before the last write of a state."""
    order = [op for _, op in operations(program)]
    writes = [i for i, op in enumerate(order) if op.out == 1 and op.kind not in RESULTS]
    before = order[: writes[-1] + 1] if writes else []
    return {program.leaves[op.leaf].name for op in before if op.leaf >= 0}


def read_out_leaves(program) -> set[str]:
    """Leaves without noise on what they give: the score's and those of policies.

    A policy's votes come from the actions that were drawn, which are not seen here.
    """
    leaves = {op.leaf for _, op in operations(program) if op.kind == "score"}
    leaves |= {policy.leaf for policy in program.policies}
    return {program.leaves[leaf].name for leaf in leaves}


class Worker(Member):
    """A member with noise on its weights; remembers what every matrix was given."""

    def __init__(self, program, weights, noise, index):
        super().__init__(program, weights, noise, index)
        self.given = {}

    def in_sums(self, name, shape, x):
        self.given[name, self.t] = np.array(x, np.int64)
        return super().in_sums(name, shape, x)


class NodeWorker(Worker):
    """A member with noise on what its layers give, with another sign at every row."""

    def __init__(self, program, weights, noise, credit_noise: CreditNoise, index):
        super().__init__(program, weights, noise, index)
        self.credit_noise, self.owners, self.index = credit_noise, owners(program), index
        self.read_out = read_out_leaves(program)

    def turned(self, name, noise):
        return self.credit_noise.of(self.index, name, self.t) * noise

    def vector(self, op):
        name, w = self.leaf(op)
        if name in self.owners:
            return w
        product = self.noise.product(name, self.pair, len(w))
        return clip(w + (self.turned(name, product) >> (Q + self.noise.shift + 3)))

    def in_rows(self, name, shape, indices):
        return 0

    def in_nodes(self, name, size, place):
        start = self.noise.starts[name][self.pair] + place * size
        n = rounded(self.noise.table[start : start + size], self.noise.shift + 1)
        return clip(self.turned(name, n))

    def in_sums(self, name, shape, x):
        self.given[name, self.t] = np.array(x, np.int64)
        if name in self.owners or name in self.read_out:
            return 0
        A, _ = self.noise.factors(name, self.pair, shape)
        n = rounded(16 * isqrt(shape[1]) * A[:, 0], self.noise.shift)
        return self.turned(name, n)


def worker(program, weights, noise, credit_noise):
    """Index -> a member as `credit` runs it; credit_noise: None for noise on the weights."""
    if credit_noise is None:
        return partial(Worker, program, weights, noise)
    return partial(NodeWorker, program, weights, noise, credit_noise)


def shown_in(op, row):
    """(list, index) of all features that a row shows to an operation."""
    lists, active, first, _ = op.numbers
    for at in range(lists * active):
        if row[first + at] >= 0:
            yield at // active, int(row[first + at])


def vote_of_rows(z, op, name, R, plus, noise, signs, tokens, features) -> None:
    """An embedding's vote, or that of sparse features: row by row."""
    credit = signs.credit(name, plus.pair, R) if signs is not None else R
    for t, r in enumerate(credit):
        shown = [(0, int(tokens[t]))] if op.kind == "embed" else shown_in(op, features[t])
        A, B = noise.factors(name, plus.pair, z.shape)
        start, D = int(noise.starts[name][plus.pair]), z.shape[1]
        for place, f in shown:
            if signs is not None:
                n = noise.table[start + place * D : start + (place + 1) * D]
                z[f] += r * n
            elif op.kind == "embed":
                z[f] += clip((r * int(A[f, 0])) >> 4) * B[:, 0]
            else:
                z[f] += clip((int(clip(r)) * int(A[f, 0])) >> 4) * B[:, 0]


def vote_of_sums(z, op, name, own, R, plus, noise, signs, S) -> None:
    """The vote of a matrix or a vector, from sums over all rows; own: whose noise it is."""
    T = len(R)
    h = max(0, (T.bit_length() - 4) // 2) + 4 - UNIT[S]
    given = [plus.given[name, t] for t in range(T)] if z.ndim == 2 else []
    if signs is not None:
        c = signs.credit(own, plus.pair, R)
    elif z.ndim == 1:
        c = [clip(r) for r in R]
    else:
        by = 5 + isqrt(z.shape[1]).bit_length() - 1
        _, B = noise.factors(name, plus.pair, z.shape)
        c = [clip((r * int(x @ B[:, 0])) >> by) for r, x in zip(R, given, strict=True)]
    if z.ndim == 2:
        A, _ = noise.factors(own, plus.pair, plus.weights[own].shape)
        u = clip(rounded(sum(a * x for a, x in zip(c, given, strict=True)), 4 + h))
        z += np.outer(A[:, 0], u)
        return
    if own == name:
        n = noise.product(name, plus.pair, len(z))
    else:
        n = noise.factors(own, plus.pair, plus.weights[own].shape)[0][:, 0]
    z += clip(rounded(sum(c), h)) * n


def read_out(z, name, plus, logits, targets, draws, S) -> None:
    """One pair's vote for the head: what it should have said less what it would say."""
    for t, row in enumerate(logits):
        token, x = drawn(row, int(draws[t]), S), plus.given[name, t]
        if token == targets[t]:
            continue
        z[token] -= x
        if row[targets[t]] < 127:  # a clipped logit follows its row no more
            z[targets[t]] += x


def credit(program, weights, tokens, targets, state, rows, noise, signs, discount, values=None):
    """Scores [P, T], states [P, state_size] and Z per leaf.

    noise: oracle.Noise of rank 1; signs: token-credit's CreditNoise, None for noise on weights with
    no draws; values [N, T]: what stands for the score differences.
    """
    make, S = worker(program, weights, noise, signs), 1 << program.score_bits
    Z = {leaf: np.zeros(w.shape, np.int64) for leaf, w in weights.items()}
    state, scores = np.array(state, np.int64), np.zeros(tokens.shape, np.int64)
    shared, later = owners(program) if signs else {}, credited_later(program)
    firsts = []  # of every pair: member 2p, and its logits
    for p in range(len(tokens) // 2):
        for m in (2 * p + 1, 2 * p):
            plus = make(m)
            given, logits = run(plus, m, tokens, state[m], rows), None
            if program.scored:
                scores[m], logits = scores_of(given, targets[m], program.score_bits)
        firsts.append((plus, logits))
    for p, (plus, logits) in enumerate(firsts):
        read = tokens[2 * p]
        for _, op in operations(program):
            if op.leaf < 0:
                continue
            name = program.leaves[op.leaf].name
            z, g = Z[name], discount if name in later else 0
            if values is None:
                R = (signs or CreditNoise({}, np.empty(0))).compared(scores, p, g, read, S)
            else:
                R = discounted(values[p], read, g, S)
            if signs and name in read_out_leaves(program):
                if op.kind != "score":
                    continue
                read_out(z, name, plus, logits, targets[2 * p], signs.draws[p], S)
            elif op.kind in ("embed", "features"):
                features = rows[1][2 * p] if op.kind == "features" else None
                vote_of_rows(z, op, name, R, plus, noise, signs, read, features)
            else:
                vote_of_sums(z, op, name, shared.get(name, name), R, plus, noise, signs, S)
    return scores, state, {name: wrap32(z) for name, z in Z.items()}


def credited_outputs(program, weights, tokens, state, rows, noise, signs):
    """Output name -> [P, T, size] of the members that `credit` runs, and new states."""
    return outputs(program, tokens, state, rows, worker(program, weights, noise, signs))
