"""Corpora and the streams that training and validation read.

Letters: S streams, T tokens per update, n positions of a stream, V vocabulary. Token 0 is the
mark that begins a document; the network's recurrent state is zeroed on reading it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from math import log2
from typing import Self

import numpy as np
from numpy.typing import NDArray

from eggroll import rng
from eggroll.data import codings, pairs
from eggroll.data.codings import BYTES, Bytes, Numbers
from eggroll.data.corpora import VAL_SHARE, Split, Text, read_path, read_stdlib
from eggroll.data.corpus import TOKENS, ArrayCorpus, Batch, Corpus, Streams, check_shape
from eggroll.data.hub import read_table
from eggroll.data.tables import HUB, near, source_of
from eggroll.errors import InputError


def load_corpus(
    name: str,
    *,
    vocabulary: int = 16,
    steps: Sequence[int] = (1,),
    tokenizer: str = "",
    val_share: float = VAL_SHARE,
) -> Corpus:
    """The corpus of that name: stdlib, count, tinystories, minipile, hf:..., or a path.

    A known name wins over a path: write ./count for a file of that name. `vocabulary` and `steps`
    are those of count (see `CountCorpus`). Of text, a vocabulary above 256 makes tokens of a
    byte-pair encoding that is trained on it; tokenizer: the path of one to read it with;
    val_share: of its documents, held out for validation where the data have no split for it.

    Raises:
        InputError: unknown name, missing or unusable data, count options out of range.
    """
    if name == "count":
        return CountCorpus(vocabulary, steps)
    if name == TOKENS:
        raise InputError(
            "data 'tokens' stands for arrays that are given in Python: use eggroll.train(config, "
            "tokens=...), or ./tokens for a file of that name."
        )
    text = _text(name, val_share)
    if vocabulary <= BYTES and not tokenizer:
        return TextCorpus(name, text)
    coding = codings.read(tokenizer) if tokenizer else pairs.trained(name, text, vocabulary)
    return pairs.PairsCorpus(name, text, coding)


def _text(name: str, share: float) -> Text:
    if name == "stdlib":
        return read_stdlib(share)
    if source := source_of(name):
        return read_table(source, share)
    path = os.path.expanduser(name)
    if not name or not os.path.exists(path):
        raise InputError(
            f"data {name!r:.200} is unknown: {near(name)}give --data one of stdlib, count, "
            f"{', '.join(HUB)}, hf:NAME, or the path of an existing file or folder."
        )
    return read_path(path, share)


class TextCorpus(ArrayCorpus):
    """Bytes of text, V = 256: every document is the mark 0 followed by its bytes."""

    counts = "bytes"

    def __init__(self, name: str, text: Text) -> None:
        super().__init__(name, text.train, text.valid, Bytes(), text.about)


class CountCorpus(Corpus):
    """Counting: each symbol is the last one plus the document's own step, cycling over 1 .. V-1.

    A document is the mark 0, a random start symbol, and so on. With several steps the next symbol
    depends on the last two, so the state must remember. A validation stream is one endless
    document, of which the first two predictions, of the start and of the step, are not scored.
    Training streams show documents of max(V, 32) symbols, as a network that sees one beginning only
    never learns to begin. Nothing is asked for that no prefix foretells: the target is 1 after the
    mark and the smallest step after the start, so the training loss can reach 0.

    Raises:
        InputError: V outside 2..65536, steps empty, repeated or outside 1 .. max(1, V-2).
    """

    def __init__(self, vocabulary: int, steps: Sequence[int]) -> None:
        if not 2 <= vocabulary <= 65536:
            raise InputError(f"count vocabulary {vocabulary} is out of range: use 2 to 65536.")
        largest = max(1, vocabulary - 2)
        if not steps or len(set(steps)) < len(steps):
            raise InputError(
                f"count steps {list(steps)} must be different and at least one: use distinct "
                f"numbers from 1 to {largest}."
            )
        if wrong := [step for step in steps if not 1 <= step <= largest]:
            raise InputError(
                f"count steps {wrong} are out of range: with vocabulary {vocabulary} use 1 to "
                f"{largest}, or a larger vocabulary."
            )
        self.name, self.vocabulary, self.warmup = "count", vocabulary, 2
        self.coding = Numbers(vocabulary)
        self.steps = tuple(sorted(steps))
        self.document = max(vocabulary, 32)
        self.about = {
            "vocabulary": vocabulary,
            "steps": list(self.steps),
            "document": self.document,
        }

    def streams(self, split: Split, streams: int, seq_len: int, seed: int) -> Streams:
        """Streams whose starts and steps are a hash of (seed, split, stream, document)."""
        check_shape(streams, seq_len)
        key = rng.key(seed, rng.COUNT, {"train": 1, "valid": 2}[split])
        symbols = self.document if split == "train" else None
        return CountStreams(self.vocabulary, self.steps, key, streams, seq_len, symbols)

    def baselines(self) -> dict[str, float]:
        """By the rule, not by counting: log2 of the symbols, and log2 of the steps."""
        return {"unigram": log2(self.vocabulary - 1), "bigram": log2(len(self.steps))}


class CountStreams(Streams):
    """Symbol 0 of a document is the mark, symbol p > 0 is 1 + (start + step * (p - 1)) % (V - 1).

    symbols: of a training document, None for one without end. A stream's first document lacks up
    to symbols - 1 of them, so that not all streams begin another in the same update. Length is the
    mark and one whole cycle, V.
    """

    def __init__(
        self,
        vocabulary: int,
        steps: Sequence[int],
        key: int,
        streams: int,
        seq_len: int,
        symbols: int | None,
    ) -> None:
        super().__init__(streams, seq_len, vocabulary)
        self.key, self.endless, self.symbols = key, symbols is None, symbols or 1 << 62
        self.cycle, self.steps = vocabulary - 1, np.array(steps, np.int64)
        self.number = 2 * np.arange(streams, dtype=np.uint64)
        cut = rng.words(key, self.number + np.uint64(1)) >> np.uint64(32)
        self.cut = (cut % np.uint64(symbols or 1)).astype(np.int64)
        ramps = self.steps[:, None] * np.arange(seq_len + 1) % self.cycle
        self.ramps = ramps.astype(np.int32)

    def only(self, first: int, last: int) -> Self:
        some = copy(self)
        some.number, some.cut = self.number[first:last], self.cut[first:last]
        return some

    def batch(self, step: int) -> Batch:
        document, begin = np.divmod(step * self.seq_len + self.cut, self.symbols)
        begin -= np.where(document == 0, self.cut, 0)
        left = self.symbols - begin - np.where(document == 0, self.cut, 0)
        rows = np.arange(len(self.number))
        tokens, targets = self._count(rows, document, begin)
        while len(rows := rows[left[rows] < self.seq_len]):  # whose next document begins here
            document, begin = document + 1, -left
            news = self._count(rows, document[rows], begin[rows])
            later = np.arange(self.seq_len) >= left[rows, None]
            tokens[rows] = np.where(later, news[0], tokens[rows])
            targets[rows] = np.where(later, news[1], targets[rows])
            left = left + self.symbols
        return tokens, targets

    def _count(
        self, rows: NDArray[np.int64], document: NDArray[np.int64], begin: NDArray[np.int64]
    ) -> Batch:
        """A document of each of these streams, whose symbol number `begin` is the first here.

        begin: [rows]; below 0 the document begins later, and what stands before it is undefined.
        """
        index = (document.astype(np.uint64) << np.uint64(26)) + self.number[rows]
        start = (rng.words(self.key, index) % np.uint64(self.cycle)).astype(np.int64)
        chosen = rng.words(self.key, index + np.uint64(1)) % np.uint64(len(self.steps))
        step = self.steps[chosen.astype(np.int64)]
        # Reduced before it is multiplied, so that no update number can overflow.
        base = (start + step * ((begin - 1) % self.cycle)) % self.cycle
        symbols = self.ramps[chosen.astype(np.int64)] + (1 + base[:, None]).astype(np.int32)
        symbols -= np.where(symbols > self.cycle, np.int32(self.cycle), np.int32(0))
        tokens, targets = symbols[:, :-1].copy(), symbols[:, 1:].copy()
        mark = np.flatnonzero((begin <= 0) & (begin > -self.seq_len))
        tokens[mark, -begin[mark]] = 0
        if not self.endless:
            targets[mark, -begin[mark]] = 1
            one = np.flatnonzero((begin <= 1) & (begin > 1 - self.seq_len))
            place = one, 1 - begin[one]
            targets[place] = 1 + (tokens[place] - 1 + self.steps[0]) % self.cycle
        return tokens, targets
