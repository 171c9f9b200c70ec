"""Unigram and bigram models are those of the definition, and sound on little data."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from math import log2

import numpy as np
import pytest
from corpora import corpus_of

from eggroll.data import corpus as baselines


def plain_cross_entropies(train: bytes, valid: bytes) -> dict[str, float]:
    """By the definitions, in loops, each strength chosen by leaving one event out at a time."""

    def model(events: list[tuple[int, int]], prior) -> dict[tuple[int, int], float]:
        pairs, before = Counter(events), Counter(a for a, _ in events)

        def share(strength: float, a: int, b: int, out: int) -> float:
            known = max(pairs[a, b] - out, 0) + strength * prior(b)
            return known / (before[a] - out + strength)

        def left_out(strength: float) -> float:
            return sum(log2(share(strength, a, b, 1)) for a, b in events)

        best = max((2.0**power for power in range(28)), key=left_out)
        return lambda a, b: share(best, a, b, 0)

    singles = model([(0, b) for b in train[1:]], lambda b: 1 / 256)
    double = model(list(pairwise(train)), lambda b: singles(0, b))
    asked = list(pairwise(valid))
    return {
        "unigram": -sum(log2(singles(0, b)) for _, b in asked) / len(asked),
        "bigram": -sum(log2(double(a, b)) for a, b in asked) / len(asked),
    }


@pytest.mark.parametrize("size", [2, 3, 40, 1500])
def test_baselines_are_those_of_the_definition(size):
    values = np.random.default_rng(size).binomial(40, 0.3, size).astype(np.uint8)
    values[1::3] = values[0::3][: len(values[1::3])]
    train, valid = values.tobytes(), values[::-1].tobytes()[:200] + b"new"
    expected = plain_cross_entropies(train, valid)
    assert corpus_of(train, valid).baselines() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("size", [1, 500, 60_000, 2_000_000])
def test_random_bytes_are_worth_eight_bits(size):
    """Counts of noise promise nothing, however few of them there are."""
    rng = np.random.default_rng(size)
    train, valid = (rng.integers(0, 256, n, np.uint8).tobytes() for n in (size, 50_000))
    bits = corpus_of(train, valid).baselines()
    assert bits["unigram"] == pytest.approx(8, abs=0.01)
    assert bits["bigram"] == pytest.approx(8, abs=0.02)


def test_a_regular_text_is_worth_next_to_nothing_to_the_bigram_model():
    bits = corpus_of(b"abcd" * 10_000, b"abcd" * 1000).baselines()
    assert bits["unigram"] == pytest.approx(2, abs=0.01)
    assert 0 <= bits["bigram"] < 0.001


def test_pairs_are_counted_across_blocks_and_long_splits_in_a_sample(monkeypatch):
    data = np.random.default_rng(0).integers(0, 4, 3 * baselines.BLOCK + 7, np.uint8)
    counts = baselines.bigram_counts(data)
    assert counts.sum() == len(data) - 1
    assert {(a, b): n for a, b in product(range(4), repeat=2) if (n := int(counts[a, b]))} == (
        Counter(pairwise(data.tolist()))
    )
    monkeypatch.setattr(baselines, "COUNTED", 2 * baselines.BLOCK)
    assert baselines.BLOCK < baselines.bigram_counts(data).sum() <= 2 * baselines.BLOCK


def test_baselines_of_splits_without_a_pair_are_zero():
    assert corpus_of(b"\0", b"\0").baselines() == {"unigram": 0.0, "bigram": 0.0}
