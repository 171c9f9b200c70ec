"""Token credit of the portable engine, in plain MLX; the arithmetic is docs/estimators.md's.

Letters: P members, N = P/2 pairs, T tokens, V vocabulary, K inputs, O outputs, Z votes. Values
per pair are those of member 2p.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

import mlx.core as mx

from eggroll.engines.portable.operations import (
    TokenPass,
    clip,
    exact_matmul,
    feature_factors,
    index_lists,
    table_slice,
)
from eggroll.spec import fixed_point as fx
from eggroll.spec.credit import SILENT, Crediting, CreditKind, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Op, Program

TILE = 8  # logits that are drawn from together


@dataclass
class Tape:
    """A population's record for its votes: inputs, and projections x.B where weights have noise."""

    program: Program
    noise: Slices
    credit_noise: CreditNoise
    crediting: Crediting
    tokens: mx.array  # int32 [N, T] of members 2p
    features: mx.array | None  # int32 [N, T, program.indices] of members 2p
    # Leaf -> int32 [N, K] and int32 [N], of every token.
    inputs: dict[int, list[mx.array]] = field(default_factory=dict)
    projections: dict[int, list[mx.array]] = field(default_factory=dict)
    readout: mx.array | None = None  # Z int32 [V, K] of the tokens so far

    @classmethod
    def of(
        cls,
        program: Program,
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        batch: Batch,
    ) -> Tape:
        """An empty tape of what all members read."""
        first = batch.members(slice(0, None, 2))
        return cls(program, noise, credit_noise, crediting, first.tokens, first.features)

    def signs(self, leaf: int, t: int) -> tuple[mx.array, mx.array]:
        """Signs of the noise of members 2p and 2p + 1 at t, int32 [N] each: 1 or -1.

        The second's noise is subtracted. The signs differ in groups alone.
        """
        word = self.credit_noise.signs[leaf, :, t // 32]
        first = 1 - 2 * ((word >> (t % 32)) & 1)
        if not self.crediting.group:
            return first, first
        second = scramble(word.view(mx.uint32)).view(mx.int32)
        return first, 1 - 2 * ((second >> (t % 32)) & 1)

    def slice(self, leaf: int, offset: int, shape: tuple[int, ...]) -> mx.array:
        return table_slice(self.noise, leaf, offset, shape)

    def outputs(self, leaf: int) -> mx.array:
        """A of a matrix, int32 [N, O]."""
        O, K = self.program.leaves[leaf].shape
        return self.slice(leaf, K, (O,))

    def read(self, logits: mx.array, targets: mx.array, t: int) -> None:
        """Adds the inputs to the target's row of the readout and takes them from that of a draw.

        logits: int32 [N, V], targets: int32 [N], of members 2p at token t.
        """
        if CreditKind.READOUT not in self.crediting.kinds:
            return
        leaf = self.crediting.kinds.index(CreditKind.READOUT)
        x, Z = self.inputs[leaf][t], self.readout
        if Z is None:
            Z = mx.zeros(self.program.leaves[leaf].shape, mx.int32)
        token = draw_tokens(logits, self.credit_noise.draws[:, t], self.program.score_bits)
        hit = mx.take_along_axis(logits, targets[:, None], axis=1)  # [N, 1]
        # What is drawn itself cancels; a clipped logit follows its row no more.
        rises = (hit < fx.LIMIT) | (token == targets)[:, None]
        self.readout = Z.at[targets].add(x * rises).at[token].add(-x)
        mx.eval(self.readout)

    def _discounted(self, d: mx.array, discount: int) -> list[mx.array]:
        """R [N] of every token from the score differences of pairs or members, d [N, T]."""
        after, returns = mx.zeros(d.shape[0], mx.int32), []
        for t in reversed(range(d.shape[1])):
            r = (d[:, t] << (8 - self.program.score_bits)) + ((discount * after) >> 4)
            returns.append(round_shift(r, self.crediting.unit_shift))
            after = r * (self.tokens[:, t] != 0)
        return returns[::-1]

    def _credit(self, leaf: int, d: mx.array) -> list[mx.array]:
        """Credit [N] of every token."""
        kind, discount = self.crediting.kinds[leaf], self.crediting.discounts[leaf]
        if self.crediting.group:
            return self._credit_of_both(
                leaf, *(self._discounted(d[i::2], discount) for i in (0, 1))
            )
        R = self._discounted(d, discount)
        if self.crediting.nodes:
            owner = self.crediting.owners[leaf]
            return [clip(self.signs(owner, t)[0] * r) for t, r in enumerate(R)]
        if kind in (CreditKind.SCALAR, CreditKind.FEATURES):
            return [clip(r) for r in R]
        if kind == CreditKind.TOKENS:
            V, D = self.program.leaves[leaf].shape
            A = mx.take_along_axis(self.slice(leaf, D, (V,)), self.tokens, axis=1)
            factors, shift = [A[:, t] for t in range(len(R))], 4
        else:
            factors = self.projections[leaf]
            shift = 4 + isqrt(self.program.leaves[leaf].shape[1]).bit_length()
        products = [r.astype(mx.int64) * factor for r, factor in zip(R, factors, strict=True)]
        return [clip(p >> shift).astype(mx.int32) for p in products]

    def _credit_of_both(
        self, leaf: int, R: list[mx.array], second: list[mx.array]
    ) -> list[mx.array]:
        credit = []
        for t, (r, q) in enumerate(zip(R, second, strict=True)):
            add_noise, minus = self.signs(self.crediting.owners[leaf], t)
            credit.append(clip(add_noise * r - minus * q))
        return credit

    def differences(self, scores: mx.array) -> mx.array:
        """Scores int32 [P, T] of members 2p less those of 2p + 1, [N, T].

        In groups: of every member less its group's mean, rounded down, [P, T].
        """
        (P, T), g = scores.shape, self.crediting.group
        if not g:
            return scores[0::2] - scores[1::2]
        grouped = scores.reshape(P // g, g, T)
        return (grouped - grouped.sum(axis=1, keepdims=True) // g).reshape(P, T)

    def votes(self, d: mx.array) -> dict[str, mx.array]:
        """Z int32 of every leaf, from `differences` or from values in their place."""
        Z = {}
        for i, leaf in enumerate(self.program.leaves):
            kind = self.crediting.kinds[i]
            if kind == CreditKind.NONE:
                Z[leaf.name] = mx.zeros(leaf.shape, mx.int32)
            elif kind == CreditKind.READOUT:
                assert self.readout is not None
                Z[leaf.name] = self.readout
            else:
                Z[leaf.name] = self._vote(i, kind, self._credit(i, d))
        mx.eval(Z)
        return Z

    def _vote(self, leaf: int, kind: CreditKind, credit: list[mx.array]) -> mx.array:
        shape, owner = self.program.leaves[leaf].shape, self.crediting.owners[leaf]
        h = self.crediting.credit_shift
        if kind == CreditKind.TOKENS:
            B, Z = self.slice(owner, 0, (shape[1],)), mx.zeros(shape, mx.int32)
            for t, c in enumerate(credit):
                Z = Z.at[self.tokens[:, t]].add(c[:, None] * B)
            return Z
        if kind == CreditKind.FEATURES:
            return self._vote_of_features(leaf, credit)
        if kind == CreditKind.SCALAR:
            two = self.slice(leaf, 0, (*shape, 2))
            noise = two[..., 0] * two[..., 1] if owner == leaf else self.outputs(owner)
            return (clip(round_shift(sum(credit[1:], credit[0]), h))[:, None] * noise).sum(axis=0)
        traces = [c[:, None] * x for c, x in zip(credit, self.inputs[leaf], strict=True)]
        u = clip(round_shift(sum(traces[1:], traces[0]), 4 + h))
        return exact_matmul(self.outputs(owner).T, u)

    def _vote_of_features(self, leaf: int, credit: list[mx.array]) -> mx.array:
        """Z [count, D], which every row adds to at the indices that it shows."""
        count, D = self.program.leaves[leaf].shape
        op = next(op for stage in self.program.stages for op in stage.ops if op.leaf == leaf)
        Z = mx.zeros((count, D), mx.int32)
        assert self.features is not None
        for t, c in enumerate(credit):
            for place, indices in enumerate(index_lists(op, self.features[:, t])):
                shown = (indices >= 0)[..., None]
                if self.crediting.nodes:
                    vote = (c[:, None] * self.slice(leaf, place * D, (D,)))[:, None] * shown
                else:
                    A = feature_factors(self.noise, leaf, D, indices)
                    vote = clip((c[:, None, None] * A) >> 4) * self.slice(leaf, 0, (1, D))
                Z = Z.at[mx.maximum(indices, 0)].add(vote)
        return Z


@dataclass
class CreditPass(TokenPass):
    """One token of a population whose pairs are credited."""

    tape: Tape = field(kw_only=True)
    t: int = field(kw_only=True)

    @property
    def crediting(self) -> Crediting:
        return self.tape.crediting

    def silent(self, op: Op) -> bool:
        return self.crediting.nodes and self.crediting.shifts[op.leaf] == SILENT

    def signed_noise(self, leaf: int, noise: mx.array) -> mx.array:
        """Noise per pair [N, n] as its members have it at this token, [P, n]."""
        add_noise, minus = (noise * sign[:, None] for sign in self.tape.signs(leaf, self.t))
        return mx.stack([add_noise, -minus], axis=1).reshape(-1, noise.shape[1])

    def vector(self, op: Op) -> mx.array:
        if not self.crediting.nodes:
            return super().vector(op)
        w = self.leaf(op)
        if self.silent(op):
            return w
        two = self.slice(op.leaf, 0, (w.size, 2))
        noise = self.signed_noise(op.leaf, two[..., 0] * two[..., 1])
        return clip(w + (noise >> (fx.Q + self.crediting.shifts[op.leaf])))

    def noise_on_embedding(self, op: Op) -> mx.array | None:
        if not self.crediting.nodes:
            return super().noise_on_embedding(op)
        if self.silent(op):
            return None
        B = self.slice(op.leaf, 0, (self.program.width,))
        return clip(self.signed_noise(op.leaf, round_shift(B, self.crediting.shifts[op.leaf])))

    def noise_on_features(self, op: Op, indices: mx.array) -> mx.array | None:
        return None if self.crediting.nodes else super().noise_on_features(op, indices)

    def noise_on_list(self, op: Op, place: int, size: int) -> mx.array | None:
        if not self.crediting.nodes:
            return None
        n = round_shift(self.slice(op.leaf, place * size, (size,)), self.crediting.shifts[op.leaf])
        return clip(self.signed_noise(op.leaf, n))

    def noise_on_sums(self, op: Op, x: mx.array) -> mx.array | None:
        tape, K, kind = self.tape, x.shape[1], self.crediting.kinds[op.leaf]
        if kind in (CreditKind.INPUTS, CreditKind.READOUT):
            tape.inputs.setdefault(op.leaf, []).append(x[0::2])
        if not self.crediting.nodes:
            projection = (x[0::2] * self.slice(op.leaf, 0, (K,))).sum(axis=1)
            tape.projections.setdefault(op.leaf, []).append(projection)
            return super().noise_on_sums(op, x)
        if self.silent(op):
            return None
        noise = round_shift(fx.divisor(K) * tape.outputs(op.leaf), self.crediting.shifts[op.leaf])
        return self.signed_noise(op.leaf, noise)


def draw_tokens(logits: mx.array, word: mx.array, score_bits: int = 4) -> mx.array:
    """A token per row of logits int32 [N, V], with the odds of EXP2, from random uint32 [N]."""
    N, V = logits.shape
    weights = mx.array(fx.exp2_table(score_bits))[logits + 128].astype(mx.int64)
    tiles = mx.pad(weights, [(0, 0), (0, -V % TILE)]).reshape(N, -1, TILE)
    w = tiles.sum(axis=2)
    index = mx.arange(w.shape[1])
    draws = scramble(word[:, None] + index.astype(mx.uint32))
    replaced = scaled_below(mx.cumsum(w, axis=1), draws) < w  # by this tile: the last one stays
    chosen = mx.where(replaced, index, 0).max(axis=1)[:, None]
    tile = mx.take_along_axis(tiles, chosen[..., None], axis=1)[:, 0]
    at = scaled_below(tile.sum(axis=1), scramble(~word))[:, None]
    return chosen[:, 0] * TILE + (mx.cumsum(tile, axis=1) <= at).sum(axis=1)


def scaled_below(n: mx.array, word: mx.array) -> mx.array:
    """Whole numbers below n, int64, from uint32 random words."""
    return (n * (word >> 12).astype(mx.int64)) >> 20


def scramble(v: mx.array) -> mx.array:
    """Scrambles uint32 words, a bijection."""
    v = (v ^ (v >> 16)) * mx.array(0x7FEB352D, mx.uint32)
    v = (v ^ (v >> 15)) * mx.array(0x846CA68B, mx.uint32)
    return v ^ (v >> 16)


def round_shift(v: mx.array, shift: int) -> mx.array:
    return v if shift == 0 else (v + (1 << (shift - 1))) >> shift
