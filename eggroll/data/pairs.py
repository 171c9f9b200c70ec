"""Text as tokens of a byte-pair encoding: trained on the corpus or given, and encoded once."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from eggroll.cache import cache_folder, filling, locked
from eggroll.data.codings import Pairs, library, read
from eggroll.data.corpora import MARK, Text, reason
from eggroll.data.corpus import ArrayCorpus
from eggroll.errors import InputError
from eggroll.runlog import flush_to_disk, write_whole

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
