"""Token credit in plain NumPy, written from docs/estimators.md for the EGG network.

Everything that decides which noise and which credit a leaf gets is said again here, by the leaves'
names, and nothing is shared with the package. Letters: N pairs, T tokens, V vocabulary, K inputs
of a leaf. Member 2p of pair p adds noise, member 2p+1 subtracts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
import oracle
from oracle import EXP2, Q, clip, log_likelihood, wrap32

M32 = (1 << 32) - 1
UNIT = {16: 4, 256: 2}  # S of the score -> right shift from 1/256 bit to the unit of R


@dataclass
class CreditNoise:
    """signs: leaf -> int [N, ceil(T/32)] words of 32 bits; draws: int [N, T], 32 bits each.

    group: members that are compared with their mean, each with signs of its own; 0: pairs.
    """

    signs: dict[str, np.ndarray]
    draws: np.ndarray
    group: int = 0

    def sign(self, leaf: str, pair: int, t: int) -> int:
        word = int(self.signs[leaf][pair][t // 32]) & M32
        return -1 if word >> (t % 32) & 1 else 1

    def second(self, leaf: str, pair: int, t: int) -> int:
        """That of member 2p+1, which subtracts its noise times this."""
        if not self.group:
            return self.sign(leaf, pair, t)
        word = mixed(int(self.signs[leaf][pair][t // 32]))
        return -1 if word >> (t % 32) & 1 else 1

    def of(self, member: int, leaf: str, t: int) -> int:
        pair, odd = divmod(member, 2)
        return -self.second(leaf, pair, t) if odd else self.sign(leaf, pair, t)

    def credit(self, leaf: str, pair: int, R) -> list[int]:
        """c_t from R_t of the pair, or in groups from those of both members."""
        if not self.group:
            return [int(clip(self.sign(leaf, pair, t) * r)) for t, r in enumerate(R)]
        return [
            int(clip(sum(self.of(2 * pair + i, leaf, t) * r for i, r in enumerate(both))))
            for t, both in enumerate(R)
        ]

    def compared(self, scores, p: int, discount: int, read, S: int):
        """R_t of pair p, or of both its members against the mean of their group, rounded down."""
        if not self.group:
            return discounted(scores[2 * p] - scores[2 * p + 1], read, discount, S)
        first = 2 * p - 2 * p % self.group
        mean = scores[first : first + self.group].sum(axis=0) // self.group
        both = [discounted(scores[m] - mean, read, discount, S) for m in (2 * p, 2 * p + 1)]
        return list(zip(*both, strict=True))


def rounded(v, s: int):
    return v if s == 0 else (v + 2 ** (s - 1)) >> s


def owner(leaf: str) -> str:
    """The leaf whose noise a leaf shares: Wf, Uf, bf have one noise vector, so have Wh, Uh, bh."""
    layer, dot, name = leaf.rpartition(".")
    return f"{layer}{dot}W{name[1]}" if name in ("Uf", "bf", "Uh", "bh") else leaf


def discount_of(leaf: str, layers: int, discount: int) -> int:
    """Nothing behind the last recurrent state reaches a later token."""
    last = f"layer{layers - 1}."
    behind = ("norm", "head", *(last + name for name in ("norm2", "up", "down")))
    return 0 if layers == 0 or leaf in behind else discount


class Worker(oracle.Member):
    """A member with noise on its weights; remembers what every matrix was given."""

    def __init__(self, weights, noise, index, tables):
        super().__init__(weights, noise, index, tables)
        self.t, self.inputs = 0, {}

    def linear(self, leaf, x):
        self.inputs[leaf, self.t] = np.array(x, np.int64)
        return super().linear(leaf, x)


class NodeWorker(Worker):
    """A member with noise on the outputs of its layers, with another sign at every token."""

    def __init__(self, weights, noise, index, tables, credit_noise):
        super().__init__(weights, noise, index, tables)
        self.credit_noise, self.index = credit_noise, index

    def turned(self, leaf) -> int:
        return self.credit_noise.of(self.index, leaf, self.t)

    def vector(self, leaf):
        w = np.asarray(self.w[leaf], np.int64)
        if owner(leaf) != leaf:
            return w
        product = self.noise.product(leaf, self.pair, len(w))
        plus = self.turned(leaf)  # a turned sign takes what the pair's other member would have
        return clip(w + ((plus * product) >> (Q + self.noise.shift + 3)))

    def embed(self, leaf, t):
        E = self.matrix(leaf)
        _, B = self.noise.factors(leaf, self.pair, E.shape)
        n = rounded(B[:, 0], self.noise.shift + 1)
        return clip(E[t] + clip(self.turned(leaf) * n))

    def linear(self, leaf, x):
        self.inputs[leaf, self.t] = np.array(x, np.int64)
        W = self.matrix(leaf)
        root, total = isqrt(W.shape[1]), W @ x
        if leaf != "head" and owner(leaf) == leaf:
            A, _ = self.noise.factors(leaf, self.pair, W.shape)
            n = rounded(16 * root * A[:, 0], self.noise.shift)
            total = total + self.turned(leaf) * n
        return clip(wrap32(total) // (16 * root))


def mixed(v: int) -> int:
    v &= M32
    v = (v ^ (v >> 16)) * 0x7FEB352D & M32
    v = (v ^ (v >> 15)) * 0x846CA68B & M32
    return v ^ (v >> 16)


def below(n: int, v: int) -> int:
    return (n * (v >> 12)) >> 20


def drawn(logits, q: int, S=16) -> int:
    """A token with the odds EXP2 of its logit, from the random word q."""
    weights = [int(w) for w in EXP2[S][np.asarray(logits) + 128]]
    tiles = [weights[i : i + 8] for i in range(0, len(weights), 8)]
    total = chosen = 0
    for i, tile in enumerate(tiles):
        total += sum(tile)
        if below(total, mixed(q + i)) < sum(tile):
            chosen = i
    at, before = below(sum(tiles[chosen]), mixed(~q)), 0
    for o, w in enumerate(tiles[chosen]):
        before += w
        if before > at:
            return 8 * chosen + o
    raise AssertionError("a draw beyond its tile")


def discounted(d, tokens, g: int, S: int) -> list[int]:
    """R_t of one pair and leaf from its score differences d [T], in 1/S bit."""
    out, after = [0] * len(d), 0
    for t in reversed(range(len(d))):
        r = 256 // S * int(d[t]) + ((g * after) >> 4)
        out[t] = rounded(r, UNIT[S])
        after = 0 if tokens[t] == 0 else r
    return out


def credited(leaf, w, R, plus, noise, tokens, credit_noise) -> list[int]:
    """c_t of one pair: R_t times the noise's sign, or times x.B where the weights have noise."""
    if credit_noise is not None:
        return credit_noise.credit(owner(leaf), plus.pair, R)
    if w.ndim == 1:
        return [int(clip(r)) for r in R]
    A, B = noise.factors(leaf, plus.pair, w.shape)
    if leaf == "embedding":
        return [int(clip((r * int(A[c, 0])) >> 4)) for r, c in zip(R, tokens, strict=True)]
    by = 5 + isqrt(w.shape[1]).bit_length() - 1
    projection = [int(plus.inputs[leaf, t] @ B[:, 0]) for t in range(len(R))]
    return [int(clip((r * m) >> by)) for r, m in zip(R, projection, strict=True)]


def vote(z, leaf, own, weights, c, plus, noise, tokens, S) -> None:
    """Adds one pair's vote to z, from its credit c [T]; own: whose noise it is."""
    w, T = weights[leaf], len(c)
    h = max(0, (T.bit_length() - 4) // 2) + 4 - UNIT[S]
    if leaf == "embedding":
        _, B = noise.factors(leaf, plus.pair, w.shape)
        for t in range(T):
            z[tokens[t]] += c[t] * B[:, 0]
    elif w.ndim == 1:
        n = (
            noise.product(leaf, plus.pair, len(w))
            if own == leaf
            else noise.factors(own, plus.pair, weights[own].shape)[0][:, 0]
        )
        z += clip(rounded(sum(c), h)) * n
    else:
        A, _ = noise.factors(own, plus.pair, weights[own].shape)
        u = clip(rounded(sum(c[t] * plus.inputs[leaf, t] for t in range(T)), 4 + h))
        z += np.outer(A[:, 0], u)


def read_out(z, plus, logits, targets, draws, S) -> None:
    """One pair's vote for the head: what it should have said less what it would say."""
    for t, row in enumerate(logits):
        token, x = drawn(row, int(draws[t]), S), plus.inputs["head", t]
        if token == targets[t]:
            continue
        z[token] -= x
        if row[targets[t]] < 127:  # a clipped logit follows its row no more
            z[targets[t]] += x


def credit(
    estimator, weights, tokens, targets, state, noise, credit_noise, discount, tables=None, S=16
):
    """Scores [P, T] in 1/S bit, states [P, L, D] and Z per leaf.

    noise: oracle.Noise of rank 1, its shift being sigma_shift; credit_noise: token-credit's.
    """
    credit_noise = credit_noise if estimator == "token-credit" else None
    Z = {leaf: np.zeros(w.shape, np.int64) for leaf, w in weights.items()}
    scores, states = np.zeros(tokens.shape, np.int64), []
    firsts = []
    for pair in range(len(tokens) // 2):
        for m in (2 * pair, 2 * pair + 1):
            given = (weights, noise, m, tables)
            member = NodeWorker(*given, credit_noise) if credit_noise else Worker(*given)
            s, rows = np.array(state[m], np.int64), []
            for member.t in range(tokens.shape[1]):
                row, s = member.token(int(tokens[m, member.t]), s)
                scores[m, member.t] = log_likelihood(row, int(targets[m, member.t]), S)
                rows.append(row)
            states.append(s)
            if m % 2 == 0:
                firsts.append((member, rows))
    for pair, (plus, logits) in enumerate(firsts):
        read = tokens[2 * pair]
        for leaf, w in weights.items():
            if leaf == "head" and credit_noise is not None:
                read_out(Z[leaf], plus, logits, targets[2 * pair], credit_noise.draws[pair], S)
                continue
            g = discount_of(leaf, len(state[0]), discount)
            R = (credit_noise or CreditNoise({}, np.empty(0))).compared(scores, pair, g, read, S)
            c = credited(leaf, w, R, plus, noise, read, credit_noise)
            own = owner(leaf) if credit_noise else leaf
            vote(Z[leaf], leaf, own, weights, c, plus, noise, read, S)
    return scores, np.array(states), {leaf: wrap32(z) for leaf, z in Z.items()}
