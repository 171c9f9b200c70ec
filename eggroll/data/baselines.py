"""Cross-entropies of unigram and bigram models, which a network should beat.

Letters: V = 256 byte values, H histories (1 for the unigram model, V for the bigram model).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VALUES = 256
BLOCK = 1 << 16  # bytes counted at a time: they stay in cache, and a mapped file out of memory
COUNTED = 1 << 26  # bytes of a split that are counted at most, in blocks spread evenly over it

Floats = NDArray[np.float64]


def cross_entropies(train: NDArray[np.uint8], valid: NDArray[np.uint8]) -> dict[str, float]:
    """Bits per byte of `valid` under models counted on `train`.

    unigram: p(b), counts smoothed towards the uniform distribution; bigram: p(b | a), counts
    smoothed towards the unigram model. Both are asked for every byte but the first.
    """
    seen, asked = pair_counts(train), pair_counts(valid)
    unigram = smoothed(seen.sum(axis=0, keepdims=True), np.full((1, VALUES), 1 / VALUES))
    bigram = smoothed(seen, unigram)
    total = max(int(asked.sum()), 1)
    return {
        name: float(-(asked * np.log2(model)).sum()) / total
        for name, model in (("unigram", unigram), ("bigram", bigram))
    }


def pair_counts(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Counts of byte b after byte a, [a, b]; of a long split, in a sample of COUNTED bytes."""
    counts = np.zeros(VALUES * VALUES, np.int64)
    stride = max(BLOCK, -(-len(data) * BLOCK // COUNTED))
    for start in range(0, len(data) - 1, stride):
        values = data[start : start + BLOCK + 1].astype(np.intp)
        counts += np.bincount(values[:-1] * VALUES + values[1:], minlength=len(counts))
    return counts.reshape(VALUES, VALUES)


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
