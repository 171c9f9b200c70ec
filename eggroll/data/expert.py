"""A counted expert beside a network: both probabilities of a token, mixed in integers.

docs/estimators.md#a-counted-expert states the arithmetic. Letters: V vocabulary, S streams, N
predictions, P samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.data.counting import CountedModel, Counts, places
from eggroll.spec import fixed_point as fx

ExpertName = Literal["none", "counts"]
WEIGHT_BITS: Final = 8
WHOLE: Final = 1 << WEIGHT_BITS  # of the weights of both
START: Final = 176  # the network's weight at a depth that no text has told of
LEAST: Final = 8  # of either weight, so that no probability is 0
ROUNDS: Final = 16  # of counting a weight
MIXED_BITS: Final = 30 + WEIGHT_BITS  # probabilities of the mixture count in 2^-38


def network_probabilities(totals: NDArray[np.uint64], hits: NDArray[np.int8]) -> Counts:
    """A network's probabilities of targets in 2^-30, rounded down, int64, from `likelihoods`.

    totals: sums of 2^(31 + (logit + 128) / 16) over the vocabulary; hits: logits of targets.
    """
    own = fx.exact_exp2()[hits.astype(np.int64) + 128]
    whole = (totals + np.uint64((1 << 14) - 1)) >> np.uint64(14)
    return ((own << np.uint64(16)) // whole).astype(np.int64)


def probabilities_of(bits: NDArray[Any]) -> Counts:
    """A float network's probabilities of targets in 2^-30, rounded down, int64, from their bits."""
    return np.exp2(30 - bits.astype(np.float64)).astype(np.int64)


def mixed(network: Counts, counted: Counts, weights: Counts) -> Counts:
    """The mixture in 2^-38, int64: two probabilities in 2^-30, the network's weight in 256ths."""
    return weights * network + (WHOLE - weights) * counted


def counted_weights(network: Counts, counted: Counts, depths: Counts, most: int) -> Counts:
    """The network's weight by depth, int64 [most + 1], counted on held-out text.

    Each round gives a depth the mean share of the network in the mixture there: expectation
    maximisation in integers.
    """
    weights = np.full(most + 1, START, np.int64)
    number = np.bincount(depths, minlength=most + 1)
    told = number > 0
    for _ in range(ROUNDS):
        own = weights[depths] * network
        shares = own * WHOLE // (own + (WHOLE - weights[depths]) * counted)
        sums = np.bincount(depths, shares, most + 1).astype(np.int64)  # exact below 2^53
        weights[told] = np.clip(sums[told] // number[told], LEAST, WHOLE - LEAST)
    return weights


class Beside(NamedTuple):
    """A validation with the expert: bits per token, and the network's weights by depth."""

    bits: float
    weights: tuple[int, ...]


class CountedExpert:
    """The counting model of a training split beside a network.

    Each half of the validation streams is scored with weights that were counted on the other one,
    so no token tells of its own weight.
    """

    def __init__(self, model: CountedModel, rows: NDArray[Any]) -> None:
        """rows: [S, T + 1], the streams of the validation."""
        self.model = model
        counted, depths = model.probabilities(places(rows, model.bits, model.order))
        self._counted = counted.reshape(len(rows), -1)
        self._depths = depths.reshape(len(rows), -1)

    def beside(self, network: Counts) -> Beside:
        """The validation with a network's probabilities of the targets in 2^-30, int64 [S, T]."""
        most, halves = self.model.order - 1, (slice(0, None, 2), slice(1, None, 2))

        def weights_by(part: slice) -> Counts:
            counted, depths = (array[part].reshape(-1) for array in (self._counted, self._depths))
            return counted_weights(network[part].reshape(-1), counted, depths, most)

        bits = 0.0
        for scored, told in (halves, halves[::-1]):
            weights = weights_by(told)[self._depths[scored]]
            both = mixed(network[scored], self._counted[scored], weights)
            bits += float((MIXED_BITS - np.log2(both)).sum())
        return Beside(bits / network.size, tuple(weights_by(slice(None)).tolist()))


def rows_of(batches: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> NDArray[np.int32]:
    """Streams [S, T + 1] from batches that follow each other: tokens and targets, [S, t]."""
    parts = list(batches)
    last = parts[-1][1][:, -1:]
    return np.concatenate([*(tokens for tokens, _ in parts), last], axis=1).astype(np.int32)


class Mixture(NamedTuple):
    """The expert as sampling needs it; weights: the network's by depth, in 256ths."""

    model: CountedModel
    weights: Sequence[int]

    def logits(self, logits: NDArray[np.int8], history: NDArray[Any]) -> NDArray[np.int8]:
        """Logits of the mixture, int8 [P, V]: 16 times its base-2 logarithm, the highest 127.

        logits: of the network, int8 [P, V]; history: [P, T], the last tokens of each sample.
        """
        powers = fx.exact_exp2()[logits.astype(np.int64) + 128]
        totals = powers.sum(axis=1, keepdims=True)
        network = network_probabilities(totals, logits)
        counted, depths = self.model.distributions(history)
        weights = np.array(self.weights, np.int64)[depths][:, None]
        both = mixed(network, counted, weights)
        log = log2_16ths(both)
        below = np.minimum(log.max(axis=1, keepdims=True) - log, 254)
        result: NDArray[np.int8] = (127 - below).astype(np.int8)
        return result

    def loss(
        self,
        likelihoods: Iterable[tuple[NDArray[np.uint64], NDArray[np.int8]]],
        rows: NDArray[Any],
    ) -> float:
        """Bits per token of streams [S, T + 1]; likelihoods: the network's, in batches [S, t]."""
        totals, hits = (np.concatenate(part, 1) for part in zip(*likelihoods, strict=True))
        at = places(rows, self.model.bits, self.model.order)
        counted, depths = (part.reshape(hits.shape) for part in self.model.probabilities(at))
        weights = np.array(self.weights, np.int64)[depths]
        both = mixed(network_probabilities(totals, hits), counted, weights)
        return float((MIXED_BITS - np.log2(both)).mean())


def log2_16ths(values: Counts) -> Counts:
    """floor(16 log2(v)) of integers from 1 to 2^53, exactly."""
    leading = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
    scaled = values.astype(np.uint64) << (63 - leading).astype(np.uint64)
    return 16 * leading + np.searchsorted(fx.log2_breakpoints(4), scaled, side="right")
