"""Actions drawn from int8 logits by whole numbers, and what their success says of the logits.

Letters: P members, N = P/2 pairs, T rows, A actions, K inputs of the logits' leaf.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.arrays import array_of
from eggroll.errors import InputError
from eggroll.fixed_point import LIMIT, exp2_table
from eggroll.rng import mix


class Acted(NamedTuple):
    """What a policy did, row by row.

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
    right = logits.dtype == np.int8 and words.dtype == np.uint64 and logits.ndim > 0
    if not right or logits.shape[:-1] != words.shape:
        raise InputError(
            f"logits are {logits.dtype} {list(logits.shape)} and words {words.dtype} "
            f"{list(words.shape)}: int8 [.., actions] and uint64 [..] are needed."
        )
    ends = np.cumsum(exp2_table()[logits.astype(np.int16) + 128], axis=-1, dtype=np.uint64)
    at = (ends[..., -1] * (words >> np.uint64(40))) >> np.uint64(24)
    taken: NDArray[np.int32] = (ends <= at[..., None]).sum(axis=-1, dtype=np.int32)
    return taken


def other_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words for a second draw, independent of the first."""
    return mix(~words)


def readout(acted: Acted, worth: NDArray[np.int64], shape: tuple[int, ...]) -> mx.array:
    """Votes Z int32 [A, K] = shape for the leaf of the logits.

    worth: [N, T], what member 2p earned less what member 2p + 1 did. Of every member, the inputs
    times its share of the worth (clipped to int8; member 2p + 1 has the opposite) go to the row of
    the action that it took, and are taken from that of another draw: in the mean, the slope of the
    logarithm of the action's probability.
    """
    P, T, K = acted.inputs.shape
    credit = np.clip(worth, -LIMIT, LIMIT).astype(np.int32)
    c = np.stack([credit, -credit], axis=1).reshape(P * T)
    inputs = acted.inputs.reshape(P * T, K).astype(np.int32)
    Z = np.empty(shape, np.int32)
    for action in range(shape[0]):  # whole numbers, so no BLAS: its threads would be in the way
        moves = (acted.actions.reshape(-1) == action).astype(np.int32)
        moves -= acted.others.reshape(-1) == action
        at = np.flatnonzero(moves)
        Z[action] = (c[at] * moves[at]) @ inputs[at]
    return mx.array(Z)
