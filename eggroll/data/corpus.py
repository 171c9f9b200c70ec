"""What a corpus is: streams of tokens for training and validation.

Letters: S streams, T tokens per update, n positions of a stream, V vocabulary. Token 0 is the
mark that begins a document; the network's recurrent state is zeroed on reading it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from eggroll.data.codings import Coding
from eggroll.data.text import Split
from eggroll.errors import InputError
from eggroll.spec.program import Batch

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


TOKENS: Final = "tokens"  # the option `data` of a run on arrays of the caller's


class Streams(ABC):
    """S parallel streams, cut into updates of T tokens.

    length: n, positions of a stream before it repeats or has shown all it has;
    tokens_per_epoch: S * n.
    """

    def __init__(self, streams: int, seq_len: int, length: int) -> None:
        self.streams, self.seq_len, self.length = streams, seq_len, length
        self.tokens_per_epoch = streams * length

    @abstractmethod
    def only(self, first: int, last: int) -> Self:
        """These streams alone, first .. last - 1, of which `batch` reads nothing else then.

        What describes them all stays as it is.
        """

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Tokens and targets of update `step` (0, 1, ...), each [S, T] int32, C-contiguous.

        Update t reads positions t*T .. t*T + T - 1 of each stream; targets lie one further, but
        for those of count's training documents. It is a function of step alone, so resuming needs
        no state.
        """


class Corpus(ABC):
    """A source of token streams.

    name: as given to `load_corpus`; vocabulary: V; warmup: predictions at the start of each
    validation stream that nothing could foresee and that are not scored; about: JSON-able facts
    that tell one version of the data from another.
    """

    name: str
    vocabulary: int
    warmup: int
    coding: Coding
    about: dict[str, Any]

    @abstractmethod
    def streams(self, split: Split, streams: int, seq_len: int, seed: int) -> Streams:
        """Cuts a split into S = `streams` streams read `seq_len` = T tokens at a time.

        Raises:
            InputError: S or T is below 1, or the split is too small for them.
        """

    @abstractmethod
    def baselines(self) -> dict[str, float]:
        """'unigram' and 'bigram': bits per token that these models need for the validation split.

        The unigram model knows how often each token occurs, the bigram model what follows each
        token; for text both are counted on the training split.
        """


class TextStreams(Streams):
    """Stream i reads data[i*n + p % n] at position p, with n = len(data) // S."""

    def __init__(self, data: NDArray[Any], streams: int, seq_len: int) -> None:
        super().__init__(streams, seq_len, len(data) // streams)
        self._rows = data[: self.tokens_per_epoch].reshape(streams, self.length)

    def only(self, first: int, last: int) -> Self:
        some = copy(self)
        some._rows = self._rows[first:last]
        return some

    def batch(self, step: int) -> Batch:
        start = step * self.seq_len % self.length
        end = start + self.seq_len + 1
        block = self._rows[:, start:end]
        if end > self.length:
            block = np.concatenate([block, self._rows[:, : end - self.length]], axis=1)
        tokens, targets = block[:, :-1], block[:, 1:]
        return Batch(tokens.astype(np.int32, order="C"), targets.astype(np.int32, order="C"))


class ArrayCorpus(Corpus):
    """A corpus whose splits are arrays of tokens [n], in memory or mapped from a file.

    counts: what its tokens are called.
    """

    counts: ClassVar[str] = "tokens"

    def __init__(
        self,
        name: str,
        train: NDArray[Any],
        valid: NDArray[Any],
        coding: Coding,
        about: dict[str, Any],
    ) -> None:
        self.name, self.coding, self.about = name, coding, about
        self.vocabulary, self.warmup = coding.vocabulary, 0
        self._arrays: dict[Split, NDArray[Any]] = {"train": train, "valid": valid}

    def streams(self, split: Split, streams: int, seq_len: int, seed: int) -> Streams:
        """Contiguous streams of equal length, which do not depend on `seed`."""
        check_shape(streams, seq_len)
        data = self._arrays[split]
        if len(data) // streams < seq_len + 1:
            raise InputError(self.too_small(split, streams, seq_len))
        return TextStreams(data, streams, seq_len)

    def too_small(self, split: Split, streams: int, seq_len: int) -> str:
        """The sentence for a split that has too few tokens."""
        size = len(self._arrays[split])
        return (
            f"the {split} split of {self.name!r} ({size:,} {self.counts}) is too small for "
            f"{streams} streams of seq_len {seq_len}: at most {size // (seq_len + 1)} fit, so use "
            "a smaller --pop, a larger --group-size or a shorter --seq-len."
        )

    def baselines(self) -> dict[str, float]:
        """Over the whole validation split, marks included; 'bigram' not of a large V."""
        return dict(self._baselines)

    @cached_property
    def _baselines(self) -> dict[str, float]:
        return cross_entropies(self._arrays["train"], self._arrays["valid"], self.vocabulary)


def check_shape(streams: int, seq_len: int) -> None:
    """Raises InputError unless there is a stream, and a token of each."""
    if streams < 1:
        raise InputError(
            f"{streams} streams are too few: use a --pop of at least one --group-size."
        )
    if seq_len < 1:
        raise InputError(f"--seq-len {seq_len} is out of range: use 1 or more.")
