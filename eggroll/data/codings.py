"""What tokens stand for: bytes, numbers, or pairs of bytes that a tokenizer joined.

Token 0 is the mark that begins a document in all of them. Letters: V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.files import open_regular

BYTES: Final = 256
FILE: Final = "tokenizer.json"  # of a run's folder
MOST: Final = 65536  # tokens
DEFAULT: Final = 16  # the option `vocabulary` where none is given: of data count
LARGEST: Final = 1 << 28  # bytes of a tokenizer's file
BATCH: Final = 256  # documents encoded at a time


class Coding(ABC):
    """A way from text to tokens and back. vocabulary: V."""

    vocabulary: int

    @abstractmethod
    def tokens(self, text: str, name: str) -> list[int]:
        """The tokens of a text; name: what errors call it.

        Raises:
            InputError: it has no tokens here.
        """

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for."""


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


class Pairs(Coding):
    """Tokens of a byte-level byte-pair encoding; its id i is token i + 1, as 0 is the mark.

    Its tokens' bytes are those of the text, unless the tokenizer changes texts first, as some given
    ones do (those trained here do not).
    """

    def __init__(self, data: bytes, name: str) -> None:
        """data: a tokenizer.json of Hugging Face's tokenizers; name: what errors call it.

        Raises:
            InputError: it is none, or not byte-level, or too large.
        """
        tokenizers = library()
        self.data = data
        try:
            self._made: Any = tokenizers.Tokenizer.from_buffer(data)
            facts = json.loads(data)
        except Exception as error:  # whatever Rust made of it
            raise InputError(
                f"{name} is no tokenizer.json ({' '.join(str(error).split())[:100]}): give one as "
                "the package tokenizers writes it."
            ) from None
        if (facts.get("decoder") or {}).get("type") != "ByteLevel":
            raise InputError(
                f"{name} is not byte-level, so a text cannot be had back from its tokens: give a "
                "byte-level BPE, as those of GPT-2 and Llama 3, or --vocabulary for one of the "
                "corpus."
            )
        self._made.no_truncation()
        self._made.no_padding()
        self._bytes = _bytes_of_ids(self._made)
        self.vocabulary = len(self._bytes)
        if not 2 <= self.vocabulary <= MOST:
            raise InputError(
                f"{name} has {self.vocabulary - 1:,} tokens: at most {MOST - 1:,} are possible; "
                "give a smaller one."
            )

    @cached_property
    def digest(self) -> str:
        """Sha256, hex, of the file."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of every token, int64 [V]; the mark counts as one, as in a corpus of bytes."""
        return np.array([len(found) for found in self._bytes], np.int64)

    def tokens(self, text: str, name: str) -> list[int]:
        text = text.encode("utf-8", "replace").decode("utf-8")
        return [i + 1 for i in self._made.encode(text, add_special_tokens=False).ids]

    def bytes_of(self, token: int) -> bytes:
        return self._bytes[token]

    def documents(self, texts: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        """The tokens of documents, each with its mark; what is no UTF-8 becomes U+FFFD."""
        contents = (content.decode("utf-8", "replace") for content in texts)
        while batch := list(islice(contents, BATCH)):
            for found in self._made.encode_batch_fast(batch, add_special_tokens=False):
                tokens = np.zeros(len(found.ids) + 1, np.uint16)
                tokens[1:] = np.array(found.ids, np.int64) + 1
                yield tokens


def library() -> Any:
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


def _bytes_of_ids(made: Any) -> list[bytes]:
    """The bytes of the mark and of every id; those of special tokens are their text's."""
    letters = _letters()
    found = [b"\0"] + [b""] * made.get_vocab_size(with_added_tokens=True)
    added = made.get_added_tokens_decoder()
    for text, i in made.get_vocab(with_added_tokens=True).items():
        if i + 1 >= len(found):
            raise InputError("the tokenizer has ids beyond its size: give one without gaps.")
        known = all(letter in letters for letter in text) and i not in added
        found[i + 1] = bytes(letters[letter] for letter in text) if known else text.encode()
    return found


def _letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for (Radford et al. 2019)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def read(path: str | Path) -> Pairs:
    """The tokenizer in a file.

    Raises:
        InputError: it cannot be read, or is none.
    """
    name = f"tokenizer {str(path)[:200]!r}"
    try:
        with open_regular(Path(path)) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(
            f"{name} cannot be read ({error.strerror}): give a tokenizer.json."
        ) from None
    if len(data) > LARGEST:
        raise InputError(f"{name} has more than {LARGEST:,} bytes: give a smaller one.")
    return Pairs(data, name)


def of_tokenizer(options: Any) -> Any:
    """Options of a run with the vocabulary of its tokenizer, whose path is made absolute.

    Raises:
        InputError: the tokenizer cannot be used, or another vocabulary is given beside it.
    """
    if not options.tokenizer:
        return options
    path = os.path.abspath(os.path.expanduser(options.tokenizer))
    found = read(path).vocabulary
    if options.vocabulary not in (DEFAULT, found):
        raise InputError(
            f"--vocabulary is {options.vocabulary}, and --tokenizer {options.tokenizer!r:.200} has "
            f"{found} tokens, the mark included: leave --vocabulary out."
        )
    return replace(options, tokenizer=path, vocabulary=found)


def coding_of(config: Any, folder: Path, facts: Any) -> Coding:
    """What the tokens of a run with these options stand for.

    folder: of its files; facts: of its data, as its checkpoint has them, None if it has none.

    Raises:
        InputError: its tokenizer is not there, or another.
    """
    if config.numbers:
        return Numbers(config.vocabulary)
    if not config.pairs:
        return Bytes()
    found = read(folder / FILE)
    if facts is not None and found.digest != facts.get("tokenizer"):
        raise InputError(
            f"tokenizer {str(folder / FILE)[:200]!r} is not the one of this run: bring back the "
            "file that the run had."
        )
    return found
