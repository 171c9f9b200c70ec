"""Text as tokens of a byte-pair encoding: trained on the corpus or given, and encoded once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eggroll.cache import cache_folder, locked
from eggroll.data.baselines import cross_entropies
from eggroll.data.codings import Pairs, library, read
from eggroll.data.corpora import MARK, Split, Text, reason
from eggroll.data.corpus import Corpus, Streams, TextStreams, check_shape
from eggroll.errors import InputError
from eggroll.runlog import write_whole

LEARNT_FROM: Final = 1 << 26  # bytes of training text at most, spread evenly over it
BLOCK: Final = 1 << 22  # bytes looked at a time


class PairsCorpus(Corpus):
    """A corpus of text as tokens of a byte-pair encoding, V of them with the mark."""

    def __init__(self, name: str, text: Text, coding: Pairs) -> None:
        self.name, self.vocabulary, self.warmup = name, coding.vocabulary, 0
        self.coding = coding
        self.about = text.about | {"tokenizer": coding.digest}
        digests = text.about["splits"]
        self._arrays: dict[Split, NDArray[np.uint16]] = {
            "train": _encoded(text.train, digests["train"]["sha256"], coding, f"{name} train"),
            "valid": _encoded(text.valid, digests["valid"]["sha256"], coding, f"{name} valid"),
        }

    def streams(self, split: Split, streams: int, seq_len: int, seed: int) -> Streams:
        """Contiguous streams of equal length, which do not depend on `seed`."""
        check_shape(streams, seq_len)
        data = self._arrays[split]
        if len(data) // streams < seq_len + 1:
            raise InputError(
                f"the {split} split of {self.name!r} ({len(data):,} tokens) is too small for "
                f"{streams} streams of seq_len {seq_len}: at most {len(data) // (seq_len + 1)} "
                "fit, so use a smaller --pop, a larger --group-size or a shorter --seq-len."
            )
        return TextStreams(data, streams, seq_len)

    def baselines(self) -> dict[str, float]:
        """Bits per token, counted on the training split; 'bigram' is left out of a large V."""
        return cross_entropies(self._arrays["train"], self._arrays["valid"], self.vocabulary)


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
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns: Any = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    partial = path.with_name(f".{path.name}.partial")
    try:
        with (
            open(partial, "wb") as file,
            Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ):
            task = progress.add_task(f"tokens of {what}", total=len(data))
            for tokens in coding.documents(_documents(data)):
                file.write(tokens.astype("<u2", copy=False).tobytes())
                progress.advance(task, int(coding.sizes[tokens].sum()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
