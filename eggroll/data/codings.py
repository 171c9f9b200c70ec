"""Codings of tokens: bytes, numbers, or byte pairs of a tokenizer, which may be trained here.

Token 0 is the mark that begins a document in all of them. Letters: V vocabulary.
"""

from __future__ import annotations

import hashlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eggroll.data.text import MARK, Text
from eggroll.errors import InputError, object_in
from eggroll.files import (
    cache_folder,
    check_own,
    filling,
    locked,
    of_cache,
    open_regular,
    replacing,
    write_whole,
)

BYTES: Final = 256
TOKENIZER_FILE: Final = "tokenizer.json"  # of a run's folder
MOST_TOKENS: Final = 65536
DEFAULT_VOCABULARY: Final = 16  # the option `vocabulary` where none is given: of data count
LARGEST_FILE: Final = 1 << 28  # bytes of a tokenizer's file
BATCH: Final = 256  # documents encoded at a time
SAMPLED: Final = 1 << 26  # bytes of training text that a tokenizer learns from, at most
READ_BLOCK: Final = 1 << 22  # bytes of a split read at a time
QUIET: Final = 1 << 22  # bytes of text from which a tokenizer is trained in a second


class Coding(ABC):
    """A way from text to tokens and back."""

    vocabulary: int  # V

    @abstractmethod
    def tokens(self, text: str, name: str) -> list[int]:
        """The tokens of a text; name: what errors call it.

        Raises:
            InputError: it has no tokens here.
        """

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for."""


def coding_of(config: Any, folder: Path, facts: Any) -> Coding:
    """The coding of a run with these options.

    folder: of its files; facts: of its data, as its checkpoint has them, None if it has none.

    Raises:
        InputError: its tokenizer is not there, or another.
    """
    if config.numbers:
        return Numbers(config.vocabulary)
    if not config.pairs:
        return Bytes()
    tokenizer = read_tokenizer(folder / TOKENIZER_FILE)
    if facts is not None and tokenizer.digest != facts.get("tokenizer"):
        raise InputError(
            f"tokenizer {str(folder / TOKENIZER_FILE)[:200]!r} is not the one of this run: bring "
            "back the file that the run had."
        )
    return tokenizer


def with_tokenizer(options: Any) -> Any:
    """Options of a run with the vocabulary of its tokenizer, whose path is made absolute.

    Raises:
        InputError: the tokenizer cannot be used, or another vocabulary is given beside it.
    """
    if not options.tokenizer:
        return options
    path = os.path.abspath(os.path.expanduser(options.tokenizer))
    vocabulary = read_tokenizer(path).vocabulary
    if options.vocabulary not in (DEFAULT_VOCABULARY, vocabulary):
        raise InputError(
            f"--vocabulary is {options.vocabulary}, and --tokenizer {options.tokenizer!r:.200} has "
            f"{vocabulary} tokens, the mark included: leave --vocabulary out."
        )
    return replace(options, tokenizer=path, vocabulary=vocabulary)


class Bytes(Coding):
    """A token is a byte of UTF-8; NUL is the mark."""

    vocabulary = BYTES

    def tokens(self, text: str, name: str) -> list[int]:
        try:
            return list(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name} has {text[error.start : error.end]!r}, half of a character: give whole "
                "ones."
            ) from error

    def bytes_of(self, token: int) -> bytes:
        return bytes([token])


class Numbers(Coding):
    """A token is a number from 0 to V - 1, written as one."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def tokens(self, text: str, name: str) -> list[int]:
        most = self.vocabulary - 1
        words = text.split()
        for word in words:
            # Longer numbers than Python reads are refused as well.
            if not (word.isdecimal() and len(word) <= 40 and int(word) <= most):
                raise InputError(
                    f"{name} has {word[:60]!r}: this model's tokens are numbers, so numbers from "
                    f"0 to {most} are needed; try {name} '1 2 3'."
                )
        return [int(word) for word in words]

    def bytes_of(self, token: int) -> bytes:
        return b"%d " % token


class BytePairs(Coding):
    """Tokens of a byte-level byte-pair encoding; its id i is token i + 1, as 0 is the mark.

    Its tokens' bytes are those of the text, unless the tokenizer changes texts first, as some given
    ones do (those trained here do not).
    """

    def __init__(self, data: bytes, name: str) -> None:
        """data: a tokenizer.json of Hugging Face's tokenizers; name: what errors call it.

        Raises:
            InputError: it is none, or not byte-level, or too large.
        """
        tokenizers = tokenizers_package()
        self.data, self.name = data, name
        with _refusing(name):
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(data)
            facts = object_in(data, {"decoder": dict | None})
        if (facts.get("decoder") or {}).get("type") != "ByteLevel":
            raise InputError(
                f"{name} is not byte-level, so a text cannot be had back from its tokens: give a "
                "byte-level BPE, as those of GPT-2 and Llama 3, or --vocabulary for one of the "
                "corpus."
            )
        with _refusing(name):
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._bytes = _bytes_of_ids(self._tokenizer)
        self.vocabulary = len(self._bytes)
        if not 2 <= self.vocabulary <= MOST_TOKENS:
            raise InputError(
                f"{name} has {self.vocabulary - 1:,} tokens: at most {MOST_TOKENS - 1:,} are "
                "possible; give a smaller one."
            )

    @cached_property
    def digest(self) -> str:
        """Sha256, hex, of the file."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of every token, int64 [V]; the mark counts as one, as in a corpus of bytes."""
        return np.array([len(content) for content in self._bytes], np.int64)

    def tokens(self, text: str, name: str) -> list[int]:
        text = text.encode("utf-8", "replace").decode("utf-8")
        with _refusing(self.name):
            return [i + 1 for i in self._tokenizer.encode(text, add_special_tokens=False).ids]

    def bytes_of(self, token: int) -> bytes:
        return self._bytes[token]

    def documents(self, texts: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        """The tokens of documents, each with its mark; what is no UTF-8 becomes U+FFFD."""
        contents = (content.decode("utf-8", "replace") for content in texts)
        while batch := list(islice(contents, BATCH)):
            with _refusing(self.name):
                encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for encoding in encodings:
                tokens = np.zeros(len(encoding.ids) + 1, np.uint16)
                tokens[1:] = np.array(encoding.ids, np.int64) + 1
                yield tokens


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Raises InputError for whatever Rust makes of a tokenizer: a panic is no Exception."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise InputError(
            f"{name} is no tokenizer.json ({' '.join(str(error).split())[:100]}): give one as the "
            "package tokenizers writes it."
        ) from None


def _bytes_of_ids(tokenizer: Any) -> list[bytes]:
    """The bytes of the mark and of every id; those of special tokens are their text's."""
    letters = _letters()
    contents = [b"\0"] + [b""] * tokenizer.get_vocab_size(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    for text, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if i + 1 >= len(contents):
            raise InputError("the tokenizer has ids beyond its size: give one without gaps.")
        ordinary = all(letter in letters for letter in text) and i not in added
        contents[i + 1] = bytes(letters[letter] for letter in text) if ordinary else text.encode()
    return contents


def _letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def read_tokenizer(path: str | Path) -> BytePairs:
    """The tokenizer in a file.

    Raises:
        InputError: it cannot be read, or is none.
    """
    name = f"tokenizer {str(path)[:200]!r}"
    try:
        with open_regular(Path(path)) as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(
            f"{name} cannot be read ({error.strerror}): give a tokenizer.json."
        ) from None
    if len(data) > LARGEST_FILE:
        raise InputError(f"{name} has more than {LARGEST_FILE:,} bytes: give a smaller one.")
    return BytePairs(data, name)


def tokenizers_package() -> Any:
    """The package tokenizers.

    Raises:
        InputError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(
            "tokens other than bytes need the package tokenizers: run `pip install tokenizers`, or "
            "leave --vocabulary and --tokenizer out."
        ) from error
    return tokenizers


# A tokenizer trained on a text, and a split encoded by one; both are kept in the cache.


def train_tokenizer(name: str, text: Text, vocabulary: int) -> BytePairs:
    """A byte-level BPE with V tokens, the mark included, trained on the training split; cached.

    Raises:
        InputError: the text does not give so many.
    """
    tokenizers = tokenizers_package()
    key = f"{text.about['splits']['train']['sha256']} {vocabulary} {tokenizers.__version__}"
    path = cache_folder() / "tokenizers" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    with of_cache(path), locked(path.with_suffix(".lock")):
        if not path.exists():
            if len(text.train) > QUIET:
                message = f"training a tokenizer of {vocabulary:,} tokens on {name} ..."
                print(message, file=sys.stderr, flush=True)
            tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
            tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = tokenizers.decoders.ByteLevel()
            trainer = tokenizers.trainers.BpeTrainer(
                vocab_size=vocabulary - 1, show_progress=False,
                initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            )  # fmt: skip
            tokenizer.train_from_iterator(_sample(text.train), trainer)
            write_whole(path, tokenizer.to_str().encode())
        check_own(path)
        coding = read_tokenizer(path)
    if coding.vocabulary != vocabulary:
        path.unlink(missing_ok=True)
        raise InputError(
            f"--vocabulary is {vocabulary}: the training text of {name!r} gives no more than "
            f"{coding.vocabulary} tokens; use --vocabulary {coding.vocabulary} or less, or more "
            "text."
        )
    return coding


def _sample(data: NDArray[np.uint8]) -> Iterator[str]:
    """Documents of at most SAMPLED bytes, spread evenly."""
    stride = -(-len(data) // SAMPLED)
    for number, content in enumerate(_documents(data)):
        if number % stride == 0:
            yield content.decode("utf-8", "replace")


def encoded_split(
    data: NDArray[np.uint8], digest: str, coding: BytePairs, title: str
) -> NDArray[np.uint16]:
    """The tokens of a split, memory-mapped from the cache, where they are put once.

    digest: of the split; what: named while it takes its time.
    """
    key = hashlib.sha256(f"{digest} {coding.digest}".encode()).hexdigest()[:24]
    path = cache_folder() / "tokens" / f"{key}.u16"
    with of_cache(path):
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                _encode(data, coding, path, title)
        check_own(path)
        tokens: NDArray[np.uint16] = np.memmap(path, "<u2", "r").view(np.ndarray)
        return tokens


def _encode(data: NDArray[np.uint8], coding: BytePairs, path: Path, title: str) -> None:
    """Writes a split's tokens whole or not at all, with progress on stderr."""
    done = 0
    with replacing(path) as file, filling(f"tokens of {title}", len(data)) as show:
        for tokens in coding.documents(_documents(data)):
            file.write(tokens.astype("<u2", copy=False).tobytes())
            done += int(coding.sizes[tokens].sum())
            show(done)


def _documents(data: NDArray[np.uint8]) -> Iterator[bytes]:
    """The documents of a split, without their marks."""
    rest = b""
    for start in range(1, len(data), READ_BLOCK):
        *whole, rest = (rest + data[start : start + READ_BLOCK].tobytes()).split(MARK)
        yield from whole
    yield rest
