"""Corpora and the streams that training and validation read.

Letters: S streams, T tokens per update, n positions of a stream, V vocabulary. Token 0 is the
mark that begins a document; the network's recurrent state is zeroed on reading it.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from math import log2
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from eggroll.data import codings
from eggroll.data.codings import BYTES, Bytes, Numbers, Pairs, library, read
from eggroll.data.corpus import TOKENS, ArrayCorpus, Corpus, Streams, check_shape
from eggroll.data.hub import HUB, near, read_table, source_of
from eggroll.data.text import (
    MARK,
    VAL_SHARE,
    Split,
    Text,
    as_fraction,
    read_path,
    read_stdlib,
    reason,
)
from eggroll.errors import InputError, shown
from eggroll.files import cache_folder, filling, flush_to_disk, locked, write_whole
from eggroll.spec import rng
from eggroll.spec.program import MAX_VOCABULARY, Batch

LEARNT_FROM: Final = 1 << 26  # bytes of training text at most, spread evenly over it
BLOCK: Final = 1 << 22  # bytes looked at a time
AT_ONCE: Final = 1 << 22  # bytes from which a tokenizer is trained in a second


class PairsCorpus(ArrayCorpus):
    """A corpus of text as tokens of a byte-pair encoding, V of them with the mark."""

    def __init__(self, name: str, text: Text, coding: Pairs) -> None:
        digests = {split: facts["sha256"] for split, facts in text.about["splits"].items()}
        super().__init__(
            name,
            _encoded(text.train, digests["train"], coding, f"{name} train"),
            _encoded(text.valid, digests["valid"], coding, f"{name} valid"),
            coding,
            text.about | {"tokenizer": coding.digest},
        )


def trained(name: str, text: Text, vocabulary: int) -> Pairs:
    """A byte-level BPE with V tokens, the mark included, trained on the training split; cached.

    Raises:
        InputError: the text does not give so many.
    """
    tokenizers = library()
    key = f"{text.about['splits']['train']['sha256']} {vocabulary} {tokenizers.__version__}"
    path = cache_folder() / "tokenizers" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            if len(text.train) > AT_ONCE:
                what = f"training a tokenizer of {vocabulary:,} tokens on {name} ..."
                print(what, file=sys.stderr, flush=True)
            made = tokenizers.Tokenizer(tokenizers.models.BPE())
            made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            made.decoder = tokenizers.decoders.ByteLevel()
            trainer = tokenizers.trainers.BpeTrainer(
                vocab_size=vocabulary - 1, show_progress=False,
                initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            )  # fmt: skip
            made.train_from_iterator(_some(text.train), trainer)
            write_whole(path, made.to_str().encode())
        found = read(path)
    if found.vocabulary != vocabulary:
        path.unlink(missing_ok=True)
        raise InputError(
            f"--vocabulary is {vocabulary}: the training text of {name!r} gives no more than "
            f"{found.vocabulary} tokens; use --vocabulary {found.vocabulary} or less, or more text."
        )
    return found


def _documents(data: NDArray[np.uint8]) -> Iterator[bytes]:
    """The documents of a split, without their marks."""
    rest = b""
    for start in range(1, len(data), BLOCK):
        *whole, rest = (rest + data[start : start + BLOCK].tobytes()).split(MARK)
        yield from whole
    yield rest


def _some(data: NDArray[np.uint8]) -> Iterator[str]:
    """Documents of at most LEARNT_FROM bytes, spread evenly."""
    every = -(-len(data) // LEARNT_FROM)
    for number, content in enumerate(_documents(data)):
        if number % every == 0:
            yield content.decode("utf-8", "replace")


def _encoded(data: NDArray[np.uint8], digest: str, coding: Pairs, what: str) -> NDArray[np.uint16]:
    """The tokens of a split, memory-mapped from the cache, where they are put once.

    digest: of the split; what: named while it takes its time.
    """
    key = hashlib.sha256(f"{digest} {coding.digest}".encode()).hexdigest()[:24]
    path = cache_folder() / "tokens" / f"{key}.u16"
    try:
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                _encode(data, coding, path, what)
        found: NDArray[np.uint16] = np.memmap(path, "<u2", "r").view(np.ndarray)
    except OSError as error:
        raise InputError(
            f"the cache of tokens {str(path)!r} cannot be read or written ({reason(error)}): make "
            "room there, or set EGGROLL_CACHE to another folder."
        ) from error
    return found


def _encode(data: NDArray[np.uint8], coding: Pairs, path: Path, what: str) -> None:
    """Writes a split's tokens whole or not at all, with progress on stderr."""
    partial, done = path.with_name(f".{path.name}.partial"), 0
    try:
        with open(partial, "wb") as file, filling(f"tokens of {what}", len(data)) as show:
            for tokens in coding.documents(_documents(data)):
                file.write(tokens.astype("<u2", copy=False).tobytes())
                done += int(coding.sizes[tokens].sum())
                show(done)
            file.flush()
            flush_to_disk(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


DIGESTED: Final = 1 << 22  # tokens at a time

Ids = NDArray[Any]


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
        what = "training" if split == "train" else "validation"
        return (
            f"the {what} tokens are {len(self._arrays[split]):,}, too few for {streams:,} streams "
            f"of seq_len {seq_len}: {streams * (seq_len + 1):,} are needed, so give more of them, "
            "or use a smaller pop, a larger group_size or a smaller seq_len."
        )


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
    held: float | None = None if isinstance(tokens, tuple) else share
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
        cut = len(whole) - math.floor(len(whole) * as_fraction(share))
        train, valid = whole[:cut], whole[cut:]
    for array, name in ((train, "training"), (valid, "validation")):
        if len(array) < 2:
            raise InputError(
                f"there are {len(array)} {name} tokens: 2 or more are needed, so give a longer "
                "array, or a pair (train, validation)."
            )
    found = 1 + max(int(train.max()), int(valid.max()))
    return TokenCorpus(train, valid, max(found, 2) if vocabulary is None else vocabulary, held)


def token_ids(values: Any, vocabulary: int | None, what: str, shape: str = "[T] or [S, T]") -> Ids:
    """An array of token ids, checked: of integers, not empty, each in 0..V-1.

    vocabulary: V; None allows as many as there can be. shape: [n], or [T] or [S, T].

    Raises:
        InputError: it is none.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{what} is no array ({error}): an array of token ids {shape}, such as int32 or "
            "uint16, is needed."
        ) from error
    described = f"{array.dtype} {list(array.shape)}"
    if array.ndim not in ((1,) if shape == "[n]" else (1, 2)):
        raise InputError(f"{what} is {described}: token ids of shape {shape} are needed.")
    if not array.size:
        raise InputError(f"{what} is empty ({described}): token ids of shape {shape} are needed.")
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{what} is {described}: token ids are whole numbers, so convert it to an integer "
            "type, such as int32 or uint16."
        )
    low, high = int(array.min()), int(array.max())
    most = (vocabulary or MAX_VOCABULARY) - 1
    if low < 0 or high > most:
        wrong = low if low < 0 else high
        more = "" if vocabulary is None or wrong < 0 else ", or a larger vocabulary"
        raise InputError(f"{what} has the token {wrong}: ids from 0 to {most} are needed{more}.")
    return array


def check_vocabulary(vocabulary: Any) -> None:
    """Raises InputError unless it is a size that a vocabulary can have."""
    whole = isinstance(vocabulary, int | np.integer) and not isinstance(vocabulary, bool)
    if not whole or not 2 <= vocabulary <= MAX_VOCABULARY:
        raise InputError(
            f"vocabulary is {shown(vocabulary)}: a whole number from 2 to {MAX_VOCABULARY} is "
            "needed, one more than the highest token id, or none, to infer it."
        )


def _digest(array: Ids) -> str:
    """Sha256, hex, of the ids as int32, so that their type makes no difference."""
    digest = hashlib.sha256()
    for start in range(0, len(array), DIGESTED):
        digest.update(array[start : start + DIGESTED].astype("<i4").tobytes())
    return digest.hexdigest()


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
    coding = codings.read(tokenizer) if tokenizer else trained(name, text, vocabulary)
    return PairsCorpus(name, text, coding)


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
        return Batch(tokens, targets)

    def _count(
        self, rows: NDArray[np.int64], document: NDArray[np.int64], begin: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
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
