"""Token credit: the noise of each leaf and what it is credited with (docs/estimators.md).

Letters: N pairs, T tokens of an update, K inputs of a leaf. Estimators with noise work from forward
passes alone; their names here are those of option --estimator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, array_of
from eggroll.spec.fixed_point import LIMIT, exp2_table
from eggroll.spec.program import Program, S, Stage
from eggroll.spec.rng import DRAWS, SIGNS, WHOLE, draws, key, mix

# Score bits -> right shift from 1/256 bit to the unit of credit: 1/16 bit, or 1/64, where the clip
# to int8 leaves +-2 bits of a token's credit.
UNIT_SHIFTS = {4: 4, 8: 2}
SILENT = 63  # the shift of a leaf without noise of its own
# Right shifts beyond sigma_shift: with the noise of other leaves, an embedding's and above all the
# norms' would drown all other credit.
EMBEDDING, VECTOR = 1, 3


class CreditKind(IntEnum):
    """The form of a leaf's credit."""

    NONE = 0
    INPUTS = 1  # a matrix: sum over tokens of credit x input, int8 [K]
    TOKENS = 2  # an embedding: the credit of every token, int8 [T]
    SCALAR = 3  # a vector: the sum of the credit, int8
    READOUT = 4  # the head, from its own errors
    FEATURES = 5  # sparse features: the credit of every row, int8 [T]


class Crediting(NamedTuple):
    """The noise and the credit of each leaf, in declared order.

    nodes: whether the noise is on the outputs of layers, with another sign at every token
    (token-credit), or on the weights (token-votes); shifts: right shift of a leaf's noise, with
    nodes only; owners: the leaf whose noise it is credited with; discounts: what a score is worth
    to the token before, in 1/16; credit_shift: right shift of a leaf's sums on their way to int8;
    unit_shift: from score differences in 1/256 bit to the unit of credit; group: members that read
    the same and are compared with their mean, each with signs of its own, or 0, where the two of a
    pair have opposite signs and are compared with each other.
    """

    nodes: bool
    shifts: tuple[int, ...]
    kinds: tuple[CreditKind, ...]
    owners: tuple[int, ...]
    discounts: tuple[int, ...]
    credit_shift: int
    unit_shift: int
    group: int = 0


class CreditNoise(NamedTuple):
    """Random bits of some consecutive pairs.

    signs: int32 [leaves, N, ceil(T / 32)], bit t % 32 of word t // 32 turns the noise at token t;
    draws: uint32 [N, T], for the readout.
    """

    signs: mx.array
    draws: mx.array


# Operation -> the form of its leaf's credit, and the right shift of its noise beyond sigma_shift.
OF = {
    "embed": (CreditKind.TOKENS, EMBEDDING),
    "linear": (CreditKind.INPUTS, 0),
    "score": (CreditKind.INPUTS, 0),
    "norm": (CreditKind.SCALAR, VECTOR),
    "add_bias": (CreditKind.SCALAR, VECTOR),
    "bias": (CreditKind.SCALAR, VECTOR),
    "features": (CreditKind.FEATURES, EMBEDDING),
    "sums": (CreditKind.INPUTS, 0),
}


def _shared(stage: Stage) -> Iterator[tuple[int, int]]:
    """(owner, leaf): matrices whose outputs are only summed share one noise vector."""
    reads = Counter(register for op in stage.ops for register in op.inputs)
    writes = Counter(op.out for op in stage.ops if op.writes)
    made_by = {
        op.out: op.leaf
        for op in stage.ops
        if op.kind == "linear" and reads[op.out] == writes[op.out] == 1
    }
    for op in stage.ops:
        if op.kind in ("add_bias", "bias") and all(register in made_by for register in op.inputs):
            first, *rest = (made_by[register] for register in op.inputs)
            yield from ((first, leaf) for leaf in (*rest, op.leaf))


def crediting(
    program: Program,
    *,
    nodes: bool,
    sigma_shift: int,
    discount: int,
    seq_len: int,
    group: int = 0,
) -> Crediting:
    """The credit of every leaf of a program, derived from what the leaf does there.

    nodes: noise on the outputs of layers (token-credit), else on the weights (token-votes); group:
    as in Crediting, with nodes only.
    """
    count = len(program.leaves)
    kinds, shifts = [CreditKind.NONE] * count, [sigma_shift] * count
    owners, discounts = list(range(count)), [discount] * count
    last = max((i for i, stage in enumerate(program.stages) if stage.state >= 0), default=-1)
    for i, stage in enumerate(program.stages):
        written = max(
            (j for j, op in enumerate(stage.ops) if op.out == S and op.writes), default=-1
        )
        for j, op in enumerate(stage.ops):
            if op.leaf < 0:
                continue
            kinds[op.leaf], extra_shift = OF[op.kind]
            shifts[op.leaf] += extra_shift
            if op.kind == "score" and nodes:
                kinds[op.leaf], shifts[op.leaf] = CreditKind.READOUT, SILENT
            # What no later token sees has no part in later scores.
            if i > last or (i == last and j > written):
                discounts[op.leaf] = 0
        for owner, leaf in _shared(stage) if nodes else ():
            owners[leaf], shifts[leaf] = owner, SILENT
    for policy in program.policies if nodes else ():  # see policy.py
        kinds[policy.leaf], shifts[policy.leaf] = CreditKind.NONE, SILENT
    result = Crediting(
        nodes, tuple(shifts), tuple(kinds), tuple(owners), tuple(discounts), 0,
        UNIT_SHIFTS[program.score_bits], group,
    )  # fmt: skip
    return result._replace(credit_shift=credit_shift(result, seq_len))


def credit_shift(crediting: Crediting, seq_len: int) -> int:
    """The right shift of a leaf's sums over T tokens on their way to int8.

    Sums of random sign grow with sqrt(T); up to T = 31 they fit as they are if the unit is 1/16
    bit. A finer one is for the tokens alone.
    """
    return max(0, (seq_len.bit_length() - 4) // 2) + 4 - crediting.unit_shift


def draw_signs(
    crediting: Crediting,
    *,
    seed: int,
    step: int,
    first_pair: int,
    pairs: int,
    seq_len: int,
    threads: int = 1,
) -> CreditNoise:
    """The random bits of pairs first_pair .. first_pair + pairs - 1 in update `step`.

    threads: that draw them, 0 takes all cores.
    """
    words = -(-seq_len // 32)
    signs = _signs(crediting, seed, (step,), first_pair * words, (pairs, words), threads)
    if CreditKind.READOUT not in crediting.kinds:
        return CreditNoise(signs, mx.zeros((pairs, seq_len), mx.uint32))
    streams, first = [key(seed, DRAWS, step)], first_pair * seq_len
    drawn = draws(streams, [WHOLE], first, (pairs, seq_len), threads, unsigned=True)
    return CreditNoise(signs, drawn)


def _signs(
    crediting: Crediting,
    seed: int,
    at: tuple[int, ...],
    first: int,
    shape: tuple[int, ...],
    threads: int = 1,
) -> mx.array:
    """Words of signs from position `first` on, int32 [leaves, shape]; zeros without such noise.

    at: the update, and after it the number of what is drawn there, if that is not the first.
    """
    leaves, owners = range(len(crediting.kinds)), set(crediting.owners)
    has_signs = [
        crediting.nodes and leaf in owners and crediting.shifts[leaf] != SILENT for leaf in leaves
    ]
    streams = [key(seed, SIGNS, at[0], leaf, *at[1:]) if has_signs[leaf] else 0 for leaf in leaves]
    return draws(streams, [WHOLE * t for t in has_signs], first, (len(leaves), *shape), threads)


class Turns:
    """The signs of an update whose length is not known when it begins, 32 rows at a time.

    Those of the first 32 rows are the signs that `draw_signs` gives an update of at most 32.
    """

    def __init__(self, crediting: Crediting, *, seed: int, step: int, pairs: int) -> None:
        self.crediting, self.seed, self.step, self.pairs = crediting, seed, step, pairs
        self._words: list[np.ndarray] = []  # uint32 [leaves, N] each

    def _word(self, w: int) -> np.ndarray:
        while len(self._words) <= w:
            at = (self.step, len(self._words)) if self._words else (self.step,)
            made = _signs(self.crediting, self.seed, at, 0, (self.pairs,))
            self._words.append(np.array(made).view(np.uint32))
        return self._words[w]

    def window(self, first: int, count: int) -> np.ndarray:
        """Signs of rows first .. first + count - 1, int32 [leaves, N, ceil(count / 32)].

        Row `first` is bit 0 of the first word.
        """
        out, (w, shift) = [], divmod(first, 32)
        for i in range(w, w + -(-count // 32)):
            word = self._word(i)
            if shift:
                word = word >> np.uint32(shift)
                if count + shift > 32:
                    word = word | (self._word(i + 1) << np.uint32(32 - shift))
            out.append(word.view(np.int32))
        return np.stack(out, axis=2)


# Policies: actions drawn from int8 logits, and what their success says of the logits.
# Letters: P members, A actions, K inputs of the logits' leaf.


class Acted(NamedTuple):
    """The draws of a policy, row by row.

    actions, others: int32 [P, T], the actions taken, and as many drawn beside them; inputs: int8
    [P, T, K] of the logits.
    """

    actions: NDArray[np.int32]
    others: NDArray[np.int32]
    inputs: NDArray[np.int8]


def draw(logits: NDArray[np.int8], words: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Actions int32 [..] with odds 2^(logit / 16), of logits int8 [.., A].

    words: random, uint64 [..]; the same words give the same actions on every machine.

    Raises:
        InputError: another shape or type.
    """
    logits, words = array_of("logits", logits), array_of("words", words)
    right = logits.dtype == np.int8 and words.dtype == np.uint64 and logits.shape[-1:] > (0,)
    if not right or logits.shape[:-1] != words.shape:
        raise InputError(
            f"logits are {logits.dtype} {list(logits.shape)} and words {words.dtype} "
            f"{list(words.shape)}: int8 [.., actions] and uint64 [..] are needed."
        )
    ends = np.cumsum(exp2_table()[logits.astype(np.int16) + 128], axis=-1, dtype=np.uint64)
    at = (ends[..., -1] * (words >> np.uint64(40))) >> np.uint64(24)
    actions: NDArray[np.int32] = (ends <= at[..., None]).sum(axis=-1, dtype=np.int32)
    return actions


def other_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words for a second draw, independent of the first."""
    return mix(~words)


def readout(acted: Acted, values: NDArray[np.int64], shape: tuple[int, ...]) -> mx.array:
    """Votes Z int32 [A, K] = shape for the leaf of the logits.

    values: [N, T], what member 2p earned less what member 2p + 1 did. Of every member, the inputs
    times its share of the value (clipped to int8; member 2p + 1 has the opposite) go to the row of
    the action that it took, and are taken from that of another draw: in the mean, the slope of the
    logarithm of the action's probability.
    """
    P, T, K = acted.inputs.shape
    credit = np.clip(values, -LIMIT, LIMIT).astype(np.int32)
    c = np.stack([credit, -credit], axis=1).reshape(P * T)
    inputs = acted.inputs.reshape(P * T, K).astype(np.int32)
    Z = np.empty(shape, np.int32)
    for action in range(shape[0]):  # whole numbers, so no BLAS: its threads would be in the way
        moves = (acted.actions.reshape(-1) == action).astype(np.int32)
        moves -= acted.others.reshape(-1) == action
        at = np.flatnonzero(moves)
        Z[action] = (c[at] * moves[at]) @ inputs[at]
    return mx.array(Z)
