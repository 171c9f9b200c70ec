"""Corpora by name, and the streams of tokens that training and validation read of them.

Letters: S streams, T tokens per update, n positions of a stream, V vocabulary, H histories of a
token model. Token 0 is the mark that begins a document; the network's recurrent state is zeroed on
reading it.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from math import log2
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from eggroll.data import codings
from eggroll.data.codings import BYTES, BytePairs, Bytes, Coding, Numbers
from eggroll.data.counting import CountedModel, FrozenCounts, kept_counts, usual_order
from eggroll.data.hub import HUB, TOKENS, read_table, similar_name, source_of
from eggroll.data.text import VAL_SHARE, Split, Text, as_fraction, read_path, read_stdlib
from eggroll.errors import InputError, shown
from eggroll.spec import rng
from eggroll.spec.program import MAX_VOCABULARY, Batch

DIGESTED: Final = 1 << 22  # tokens at a time
DENSE: Final = 1024  # largest V whose bigrams are counted, in an array [V, V]
# Tokens counted at a time: they stay in cache, and a mapped file out of memory.
BLOCK: Final = 1 << 16
# Tokens of a split that are counted at most, in blocks spread evenly over it.
COUNTED: Final = 1 << 26

Ids = NDArray[Any]
Floats = NDArray[np.float64]


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
    if tokenizer:
        return BytePairCorpus(name, text, codings.read_tokenizer(tokenizer))
    return BytePairCorpus(name, text, codings.train_tokenizer(name, text, vocabulary))


def _text(name: str, share: float) -> Text:
    """The text of that name; see `load_corpus`."""
    if name == "stdlib":
        return read_stdlib(share)
    if source := source_of(name):
        return read_table(source, share)
    path = os.path.expanduser(name)
    if not name or not os.path.exists(path):
        raise InputError(
            f"data {name!r:.200} is unknown: {similar_name(name)}give --data one of stdlib, count, "
            f"{', '.join(HUB)}, hf:NAME, or the path of an existing file or folder."
        )
    return read_path(path, share)


class Corpus(ABC):
    """A source of token streams."""

    name: str  # as given to `load_corpus`
    vocabulary: int  # V
    warmup: int  # predictions at a validation stream's start that nothing foretells: not scored
    coding: Coding
    about: dict[str, Any]  # JSON-able facts that tell one version of the data from another
    warnings: tuple[str, ...] = ()  # see Text

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

    def frozen_counts(self) -> Sequence[FrozenCounts]:
        """Stronger counting models of text: first that of pairs where `baselines` has no bigram."""
        return ()


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


def check_shape(streams: int, seq_len: int) -> None:
    """Raises InputError unless there is a stream, and a token of each."""
    if streams < 1:
        raise InputError(
            f"{streams} streams are too few: use a --pop of at least one --group-size."
        )
    if seq_len < 1:
        raise InputError(f"--seq-len {seq_len} is out of range: use 1 or more.")


# Tokens in arrays: of text, or given by the caller.


class ArrayCorpus(Corpus):
    """A corpus whose splits are arrays of tokens [n], in memory or mapped from a file."""

    counts: ClassVar[str] = "tokens"  # the name of its tokens

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

    @cached_property
    def counted(self) -> CountedModel:
        """The strong counting model of the training split."""
        return CountedModel(self._arrays["train"], self.vocabulary)

    def frozen_counts(self) -> Sequence[FrozenCounts]:
        return () if isinstance(self.coding, Numbers) else self._frozen_counts

    @cached_property
    def _frozen_counts(self) -> Sequence[FrozenCounts]:
        train, valid = self._arrays["train"], self._arrays["valid"]
        splits, key = self.about.get("splits"), ""
        if splits:
            digests = (facts["sha256"] for facts in splits.values())
            key = " ".join([*digests, str(self.about.get("tokenizer")), str(self.vocabulary)])
        title = self.name if len(train) > codings.QUIET // 4 else ""
        order = usual_order(self.vocabulary)
        strong = kept_counts(key and f"{key} {order}", lambda: self.counted, valid, title)
        if self.vocabulary <= DENSE:
            return (strong,)
        pairs = kept_counts(
            key and f"{key} 2", lambda: CountedModel(train, self.vocabulary, 2), valid
        )
        return pairs, strong


class TextStreams(Streams):
    """Stream i reads data[i*n + p % n] at position p, with n = len(data) // S."""

    def __init__(self, data: NDArray[Any], streams: int, seq_len: int) -> None:
        super().__init__(streams, seq_len, len(data) // streams)
        self._rows = data[: self.tokens_per_epoch].reshape(streams, self.length)

    def only(self, first: int, last: int) -> Self:
        streams = copy(self)
        streams._rows = self._rows[first:last]
        return streams

    def batch(self, step: int) -> Batch:
        start = step * self.seq_len % self.length
        end = start + self.seq_len + 1
        block = self._rows[:, start:end]
        if end > self.length:
            block = np.concatenate([block, self._rows[:, : end - self.length]], axis=1)
        tokens, targets = block[:, :-1], block[:, 1:]
        return Batch(tokens.astype(np.int32, order="C"), targets.astype(np.int32, order="C"))


class TextCorpus(ArrayCorpus):
    """Bytes of text, V = 256: every document is the mark 0 followed by its bytes."""

    counts = "bytes"

    def __init__(self, name: str, text: Text) -> None:
        super().__init__(name, text.train, text.valid, Bytes(), text.about)
        self.warnings = text.warnings


class BytePairCorpus(ArrayCorpus):
    """A corpus of text as tokens of a byte-pair encoding, V of them with the mark."""

    def __init__(self, name: str, text: Text, coding: BytePairs) -> None:
        digests = {split: facts["sha256"] for split, facts in text.about["splits"].items()}
        super().__init__(
            name,
            codings.encoded_split(text.train, digests["train"], coding, f"{name} train"),
            codings.encoded_split(text.valid, digests["valid"], coding, f"{name} valid"),
            coding,
            text.about | {"tokenizer": coding.digest},
        )
        self.warnings = text.warnings


class TokenCorpus(ArrayCorpus):
    """Two arrays of token ids 0..V-1, [tokens], of any integer type; they are not copied.

    Token 0 is the mark that begins a document, as in every corpus: the network's state is zeroed
    there. An array may do without.
    """

    def __init__(self, train: Ids, valid: Ids, vocabulary: int, share: float | None = None) -> None:
        """share: of the tokens, that was held out; None of two arrays."""
        arrays = {"train": train, "valid": valid}
        splits = {k: {"tokens": len(a), "sha256": _digest(a)} for k, a in arrays.items()}
        about = {"vocabulary": vocabulary, "val_share": share, "splits": splits}
        super().__init__(TOKENS, train, valid, Numbers(vocabulary), about)

    def too_small(self, split: Split, streams: int, seq_len: int) -> str:
        split_name = "training" if split == "train" else "validation"
        return (
            f"the {split_name} tokens are {len(self._arrays[split]):,}, too few for {streams:,} "
            f"streams of seq_len {seq_len}: {streams * (seq_len + 1):,} are needed, so give more "
            "of them, or use a smaller pop, a larger group_size or a smaller seq_len."
        )


def _digest(array: Ids) -> str:
    """Sha256, hex, of the ids as int32, so that their type makes no difference."""
    digest = hashlib.sha256()
    for start in range(0, len(array), DIGESTED):
        digest.update(array[start : start + DIGESTED].astype("<i4").tobytes())
    return digest.hexdigest()


def token_corpus(
    tokens: Any, vocabulary: int | None = None, share: float = VAL_SHARE
) -> TokenCorpus:
    """The corpus of an array [n] of token ids, or of a pair of them: (train, validation).

    vocabulary: V; None: the highest id and 1. share: of one array, the last part that is held out
    for validation, rounded down to whole tokens.

    Raises:
        InputError: the arrays are no token ids, too few, or not below the vocabulary.
    """
    if vocabulary is not None:
        check_vocabulary(vocabulary)
    held_share: float | None = None if isinstance(tokens, tuple) else share
    if isinstance(tokens, tuple):
        if len(tokens) != 2:
            raise InputError(
                f"tokens is a tuple of {len(tokens)}: one array or a pair (train, validation) is "
                "needed."
            )
        train, valid = (
            token_ids(array, vocabulary, f"tokens[{i}]", shape="[n]")
            for i, array in enumerate(tokens)
        )
    else:
        whole = token_ids(tokens, vocabulary, "tokens", shape="[n]")
        end = len(whole) - math.floor(len(whole) * as_fraction(share))
        train, valid = whole[:end], whole[end:]
    for array, name in ((train, "training"), (valid, "validation")):
        if len(array) < 2:
            raise InputError(
                f"there are {len(array)} {name} tokens: 2 or more are needed, so give a longer "
                "array, or a pair (train, validation)."
            )
    needed = 1 + max(int(train.max()), int(valid.max()))
    vocabulary = max(needed, 2) if vocabulary is None else vocabulary
    return TokenCorpus(train, valid, vocabulary, held_share)


def token_ids(values: Any, vocabulary: int | None, name: str, shape: str = "[T] or [S, T]") -> Ids:
    """An array of token ids, checked: of integers, not empty, each in 0..V-1.

    vocabulary: V; None allows as many as there can be. shape: [n], or [T] or [S, T].

    Raises:
        InputError: it is none.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{name} is no array ({error}): an array of token ids {shape}, such as int32 or "
            "uint16, is needed."
        ) from error
    described = f"{array.dtype} {list(array.shape)}"
    if array.ndim not in ((1,) if shape == "[n]" else (1, 2)):
        raise InputError(f"{name} is {described}: token ids of shape {shape} are needed.")
    if not array.size:
        raise InputError(f"{name} is empty ({described}): token ids of shape {shape} are needed.")
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{name} is {described}: token ids are whole numbers, so convert it to an integer "
            "type, such as int32 or uint16."
        )
    low, high = int(array.min()), int(array.max())
    most = (vocabulary or MAX_VOCABULARY) - 1
    if low < 0 or high > most:
        wrong = low if low < 0 else high
        more = "" if vocabulary is None or wrong < 0 else ", or a larger vocabulary"
        raise InputError(f"{name} has the token {wrong}: ids from 0 to {most} are needed{more}.")
    return array


def check_vocabulary(vocabulary: Any) -> None:
    """Raises InputError unless it is a size that a vocabulary can have."""
    whole = isinstance(vocabulary, int | np.integer) and not isinstance(vocabulary, bool)
    if not whole or not 2 <= vocabulary <= MAX_VOCABULARY:
        raise InputError(
            f"vocabulary is {shown(vocabulary)}: a whole number from 2 to {MAX_VOCABULARY} is "
            "needed, one more than the highest token id, or none, to infer it."
        )


# The task of counting.


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
        words = rng.words(key, self.number + np.uint64(1)) >> np.uint64(32)
        self.lacking = (words % np.uint64(symbols or 1)).astype(np.int64)
        ramps = self.steps[:, None] * np.arange(seq_len + 1) % self.cycle
        self.ramps = ramps.astype(np.int32)

    def only(self, first: int, last: int) -> Self:
        streams = copy(self)
        streams.number, streams.lacking = self.number[first:last], self.lacking[first:last]
        return streams

    def batch(self, step: int) -> Batch:
        document, begin = np.divmod(step * self.seq_len + self.lacking, self.symbols)
        begin -= np.where(document == 0, self.lacking, 0)
        left = self.symbols - begin - np.where(document == 0, self.lacking, 0)
        rows = np.arange(len(self.number))
        tokens, targets = self._count(rows, document, begin)
        while len(rows := rows[left[rows] < self.seq_len]):  # whose next document begins here
            document, begin = document + 1, -left
            following = self._count(rows, document[rows], begin[rows])
            after = np.arange(self.seq_len) >= left[rows, None]
            tokens[rows] = np.where(after, following[0], tokens[rows])
            targets[rows] = np.where(after, following[1], targets[rows])
            left = left + self.symbols
        return Batch(tokens, targets)

    def _count(
        self, rows: NDArray[np.int64], document: NDArray[np.int64], begin: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """A document of each of these streams, whose symbol number `begin` is the first here.

        begin: [rows]; below 0 the document begins later, and what stands before it is undefined.
        """
        index = (document.astype(np.uint64) << np.uint64(26)) + self.number[rows]
        start = (rng.words(self.key, index) % np.uint64(self.cycle)).astype(np.int64)
        choice = rng.words(self.key, index + np.uint64(1)) % np.uint64(len(self.steps))
        step = self.steps[choice.astype(np.int64)]
        # Reduced before it is multiplied, so that no update number can overflow.
        base = (start + step * ((begin - 1) % self.cycle)) % self.cycle
        symbols = self.ramps[choice.astype(np.int64)] + (1 + base[:, None]).astype(np.int32)
        symbols -= np.where(symbols > self.cycle, np.int32(self.cycle), np.int32(0))
        tokens, targets = symbols[:, :-1].copy(), symbols[:, 1:].copy()
        mark = np.flatnonzero((begin <= 0) & (begin > -self.seq_len))
        tokens[mark, -begin[mark]] = 0
        if not self.endless:
            targets[mark, -begin[mark]] = 1
            second = np.flatnonzero((begin <= 1) & (begin > 1 - self.seq_len))
            place = second, 1 - begin[second]
            targets[place] = 1 + (tokens[place] - 1 + self.steps[0]) % self.cycle
        return tokens, targets


# Models of a token by its history, which a network should beat.


def cross_entropies(
    train: NDArray[Any], valid: NDArray[Any], values: int = BYTES
) -> dict[str, float]:
    """Bits per token of `valid` under models counted on `train`; ids of both are below `values`.

    unigram: p(b), counts smoothed towards the uniform distribution; bigram: p(b | a), counts
    smoothed towards the unigram model, left out of more than 1,024 values. Both are asked for every
    token but the first.
    """
    count = bigram_counts if values <= DENSE else unigram_counts
    train_counts, valid_counts = count(train, values), count(valid, values)
    uniform = np.full((1, values), 1 / values)
    models = {"unigram": smooth(train_counts.sum(axis=0, keepdims=True), uniform)}
    if values <= DENSE:
        models["bigram"] = smooth(train_counts, models["unigram"])
    total = max(int(valid_counts.sum()), 1)
    return {name: float(-(valid_counts * np.log2(p)).sum()) / total for name, p in models.items()}


def bigram_counts(data: NDArray[Any], values: int = BYTES) -> NDArray[np.int64]:
    """Counts of token b after token a, [a, b]; of a long split, in a sample of COUNTED tokens."""
    counts = np.zeros(values * values, np.int64)
    for block in _blocks(data):
        counts += np.bincount(block[:-1] * values + block[1:], minlength=len(counts))
    return counts.reshape(values, values)


def unigram_counts(data: NDArray[Any], values: int = BYTES) -> NDArray[np.int64]:
    """Counts of tokens that follow any other, [1, V]; sampled as bigrams are."""
    totals = np.zeros(values, np.int64)
    for block in _blocks(data):
        totals += np.bincount(block[1:], minlength=values)
    return totals[None]


def _blocks(data: NDArray[Any]) -> Iterator[NDArray[np.intp]]:
    """Blocks that are counted, each with the token before its first one."""
    stride = max(BLOCK, -(-len(data) * BLOCK // COUNTED))
    for start in range(0, len(data) - 1, stride):
        yield data[start : start + BLOCK + 1].astype(np.intp)


def smooth(counts: NDArray[np.int64], prior: Floats) -> Floats:
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
