"""The answer, in plain NumPy: EGGROLL on an int8 recurrent network, written to be read.

Every engine must equal this page bit for bit. Nothing here is shared with the package: tables are
recomputed, loops are explicit and arithmetic is 64 bits wide with the wraps written out.

Letters: P members, N = P/2 pairs, T tokens, V vocabulary, D width, r rank. Member 2i adds pair i's
noise, member 2i+1 subtracts it. Values are int8 in Q4 (16 stands for 1.0), never -128.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

Q = 4


def clip(v):
    return np.clip(v, -127, 127)


def wrap32(v):
    """Two's complement int32, the width of every accumulator."""
    return np.asarray(v).astype(np.int64).astype(np.int32).astype(np.int64)


def root16(n: int) -> int:
    """floor(n ** (1/16)), exactly."""
    return isqrt(isqrt(isqrt(isqrt(n))))


# A score's unit is 1/S bit. EXP2[S][i] = floor(S * 2^(i/16)) = floor(root16(S^16 * 2^i)).
EXP2 = {S: np.array([root16(S**16 * 2**i) for i in range(256)], np.int64) for S in (16, 256)}


def log2_floor(n: int, S: int) -> int:
    """floor(S * log2(n / S)): the largest j with 2^j <= (n / S)^S, S being a power of two."""
    return (int(n) ** S).bit_length() - (S**S).bit_length()


# The exact loss adds up 2^(31 + i/16), held as floor(2^(31 + f/16)) * 2^(i // 16), f = i % 16.
EXACT = [root16(2 ** (16 * 31 + i % 16)) * 2 ** (i // 16) for i in range(256)]


class Noise:
    """Noise added to a leaf by member m; a start is the first table index of its pair's slice."""

    def __init__(self, table, starts, rank, shift):
        self.table = np.asarray(table, np.int64)
        self.starts, self.rank, self.shift = starts, rank, shift

    def factors(self, leaf, pair, shape):
        """A [out, r] and B [in, r] of a matrix or embedding [out, in]."""
        out, in_ = shape
        start, r = int(self.starts[leaf][pair]), self.rank
        B = self.table[start : start + r * in_].reshape(in_, r)
        A = self.table[start + r * in_ : start + r * (in_ + out)].reshape(out, r)
        return A, B

    def product(self, leaf, pair, n):
        """The two-byte products [n] of a vector leaf."""
        start = int(self.starts[leaf][pair])
        two = self.table[start : start + 2 * n].reshape(n, 2)
        return two[:, 0] * two[:, 1]


class Member:
    """One member of the population (or the unperturbed model: noise None) with its own state."""

    def __init__(self, weights, noise=None, index=0, tables=None):
        self.w, self.noise, self.tables = weights, noise, tables
        self.pair, self.sign = index // 2, 1 - 2 * (index % 2)

    def matrix(self, leaf):
        return np.asarray(self.w[leaf], np.int64)

    def vector(self, leaf):
        w = np.asarray(self.w[leaf], np.int64)
        if self.noise is None:
            return w
        pert = self.sign * self.noise.product(leaf, self.pair, len(w))
        return clip(w + (pert >> (Q + self.noise.shift)))

    def embed(self, leaf, t):
        E = self.matrix(leaf)
        x = E[t]
        if self.noise is not None:
            A, B = self.noise.factors(leaf, self.pair, E.shape)
            x = x + (wrap32(B @ (self.sign * A[t])) >> (Q + self.noise.shift))
        return clip(x)

    def linear(self, leaf, x):
        W = self.matrix(leaf)
        acc = wrap32(W @ x)
        if self.noise is not None:
            A, B = self.noise.factors(leaf, self.pair, W.shape)
            acc = wrap32(acc + (wrap32((self.sign * A) @ (x @ B)) >> (Q + self.noise.shift)))
        return clip(acc // (16 * isqrt(W.shape[1])))

    def norm(self, leaf, x):
        m = max(1, int(np.abs(x).sum()) // len(x))
        return clip((x * self.vector(leaf)) // m)

    def gate(self, name, v):
        return v if self.tables is None else np.asarray(self.tables[name], np.int64)[v + 127]

    def gru(self, layer, x, s):
        def pre(gate, h):
            return clip(
                self.linear(f"{layer}W{gate}", x)
                + self.linear(f"{layer}U{gate}", h)
                + self.vector(f"{layer}b{gate}")
            )

        f = self.gate("sigmoid", pre("f", s)) + 127
        h = self.gate("tanh", pre("h", (f * s) >> 8))
        return s + ((f * (h - s)) >> 8)

    def token(self, t, state):
        """One token through the network: logits [V], new state [L, D]."""
        x = self.embed("embedding", t)
        state = np.zeros_like(state) if t == 0 else np.array(state, np.int64)
        for layer in range(len(state)):
            p = f"layer{layer}."
            state[layer] = self.gru(p, self.norm(p + "norm1", x), state[layer])
            x = clip(x + state[layer])
            up = self.linear(p + "up", self.norm(p + "norm2", x))
            x = clip(x + self.linear(p + "down", up))
        return self.linear("head", self.norm("norm", x)), state


def log_likelihood(logits, target, S=16):
    """In 1/S bit."""
    u = logits + 128
    return S // 16 * int(u[target]) - log2_floor(EXP2[S][u].sum(), S)


def likelihoods(logits, targets):
    """Sums over the vocabulary of 2^(31 + (logit + 128) / 16) and the targets' logits, [P, T]."""
    totals = [[sum(EXACT[v + 128] for v in row) for row in rows] for rows in logits.tolist()]
    hits = np.take_along_axis(logits, np.asarray(targets)[..., None], axis=-1)[..., 0]
    return np.array(totals, np.uint64), hits


def evaluate(weights, tokens, targets, state, noise=None, tables=None, S=16):
    """Token scores [P, T], states [P, L, D] and logits [P, T, V]; tokens and targets are [P, T]."""
    P, T = tokens.shape
    scores, logits, out = np.zeros((P, T), np.int64), [], []
    for m in range(P):
        member, s, rows = Member(weights, noise, m, tables), np.array(state[m], np.int64), []
        for t in range(T):
            row, s = member.token(int(tokens[m, t]), s)
            scores[m, t] = log_likelihood(row, int(targets[m, t]), S)
            rows.append(row)
        logits.append(rows)
        out.append(s)
    return scores, np.array(out), np.array(logits)


def pair_fitness(scores):
    total = scores.sum(1)
    return np.sign(total[0::2] - total[1::2])


def votes(weights, noise, fitness, clt=True):
    """Z per leaf: the noise of each pair, as the forward pass used it, times its fitness."""
    value = (lambda a: a) if clt else np.sign
    Z = {}
    for leaf, w in weights.items():
        z = np.zeros(w.shape, np.int64)
        for pair, f in enumerate(fitness):
            if w.ndim == 2:
                A, B = noise.factors(leaf, pair, w.shape)
                z += f * (value(A) @ value(B).T)
            else:
                z += f * value(noise.product(leaf, pair, len(w)))
        Z[leaf] = wrap32(z)
    return Z


def passes(Z, z_q4, pairs, rank=1, clt=True):
    """|Z| >= (T_q / 16) * floor(sqrt(N)) * 256 * sqrt(r), compared in exact integers, squared."""
    bound = (int(z_q4) * isqrt(pairs) * (256 if clt else 1)) ** 2
    bound *= rank if Z.ndim == 2 else 1  # a vector's noise has no rank
    return np.array([(16 * abs(int(z))) ** 2 >= bound for z in Z.reshape(-1)]).reshape(Z.shape)


def update(weights, Z, z_q4, pairs, rank=1, clt=True):
    return {
        k: clip(np.where(passes(Z[k], z_q4, pairs, rank, clt), w + np.where(Z[k] > 0, 1, -1), w))
        for k, w in weights.items()
    }
