"""Cross-entropies of unigram and bigram models, which a network should beat.

Letters: V values of a token, 256 for text; H histories, 1 for the unigram model, V for the bigram.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES = 256
DENSE = 1024  # values of which pairs are counted, in an array of all of them
BLOCK = 1 << 16  # tokens counted at a time: they stay in cache, and a mapped file out of memory
COUNTED = 1 << 26  # tokens of a split that are counted at most, in blocks spread evenly over it

Floats = NDArray[np.float64]


def cross_entropies(
    train: NDArray[Any], valid: NDArray[Any], values: int = BYTES
) -> dict[str, float]:
    """Bits per token of `valid` under models counted on `train`; ids of both are below `values`.

    unigram: p(b), counts smoothed towards the uniform distribution; bigram: p(b | a), counts
    smoothed towards the unigram model, left out of more than 1,024 values. Both are asked for every
    token but the first.
    """
    count = pair_counts if values <= DENSE else counts
    seen, asked = count(train, values), count(valid, values)
    uniform = np.full((1, values), 1 / values)
    models = {"unigram": smoothed(seen.sum(axis=0, keepdims=True), uniform)}
    if values <= DENSE:
        models["bigram"] = smoothed(seen, models["unigram"])
    total = max(int(asked.sum()), 1)
    return {name: float(-(asked * np.log2(p)).sum()) / total for name, p in models.items()}


def pair_counts(data: NDArray[Any], values: int = BYTES) -> NDArray[np.int64]:
    """Counts of token b after token a, [a, b]; of a long split, in a sample of COUNTED tokens."""
    found = np.zeros(values * values, np.int64)
    for block in _blocks(data):
        found += np.bincount(block[:-1] * values + block[1:], minlength=len(found))
    return found.reshape(values, values)


def counts(data: NDArray[Any], values: int = BYTES) -> NDArray[np.int64]:
    """Counts of tokens that follow any other, [1, V]; sampled as those of pairs."""
    found = np.zeros(values, np.int64)
    for block in _blocks(data):
        found += np.bincount(block[1:], minlength=values)
    return found[None]


def _blocks(data: NDArray[Any]) -> Iterator[NDArray[np.intp]]:
    """Blocks that are counted, each with the token before its first one."""
    stride = max(BLOCK, -(-len(data) * BLOCK // COUNTED))
    for start in range(0, len(data) - 1, stride):
        yield data[start : start + BLOCK + 1].astype(np.intp)


def smoothed(counts: NDArray[np.int64], prior: Floats) -> Floats:
    """Probabilities [H, V]: (counts + strength * prior) / (sum of counts + strength).

    counts: [H, V]; prior: [1, V], positive. The strength is the power of two under which each
    counted event is likeliest given all the others (leave-one-out), so that noise is smoothed away
    and regularities are kept: the hierarchical Dirichlet model of MacKay and Peto, 1995.
    """
    totals = counts.sum(axis=1, keepdims=True)

    def left_out(strength: float) -> float:
        others = np.maximum(counts - 1, 0) + strength * prior
        share = others / (np.maximum(totals - 1, 0) + strength)
        return float((counts * np.log2(share)).sum())

    strength = max((2.0**power for power in range(28)), key=left_out)
    result: Floats = (counts + strength * prior) / (totals + strength)
    return result
