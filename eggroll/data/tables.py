"""Rows of text, read by the package `datasets`: from the Hugging Face hub and from local tables.

Nothing is read from the network but what the option `data` names.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from eggroll.data.corpora import Split, reason
from eggroll.data.corpus import TOKENS
from eggroll.errors import InputError

PREFIX: Final = "hf:"
NUMBERED: Final = ("count", TOKENS)  # data whose tokens are numbers below --vocabulary, not bytes
HUB: Final = {"tinystories": "roneneldan/TinyStories", "minipile": "JeanKaddour/minipile"}
# What reads a local table, by the end of its name.
TABLES: Final = {".parquet": "parquet", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
HELD_OUT: Final = ("validation", "valid", "val", "dev")  # names of a split for validation
BATCH: Final = 1000  # rows read at a time
OFFLINE: Final = "stdlib, count, a file or a folder"  # data that need no network

Texts = Iterator[tuple[Sequence[Any], Any]]  # rows' texts, and the state that goes on after them


class Source(NamedTuple):
    """A table with a column of text.

    name: as given; path: of a data set on the hub (or a folder of its shape), or of a local file;
    builder: what reads a local file, empty for the hub; config: of the data set; column: of the
    text. Where they are empty, they are found.
    """

    name: str
    path: str
    builder: str = ""
    config: str = ""
    column: str = ""

    @property
    def identity(self) -> str:
        """Tells one version of a local file from another; of the hub, names alone."""
        words = [self.builder, self.path, self.config, self.column]
        if not self.builder:
            return self.path if words[2:] == ["", ""] else ":".join(words[1:])
        facts = os.stat(self.path)
        return ":".join([*words, str(facts.st_size), str(facts.st_mtime_ns)])


def source_of(name: str) -> Source | None:
    """The table that the option `data` names, if it names one.

    Raises:
        InputError: it begins as one and is none.
    """
    if name in HUB:
        return Source(name, HUB[name])
    if name.startswith(PREFIX):
        path, *rest = name.removeprefix(PREFIX).split(":")
        if not path or len(rest) > 2:
            raise InputError(
                f"data {name[:80]!r} is no data set of the hub: hf:NAME, hf:NAME:CONFIG or "
                "hf:NAME:CONFIG:COLUMN is needed, as in hf:roneneldan/TinyStories."
            )
        config, column = ([*rest, "", ""])[:2]
        return Source(name, path, "", config, column)
    path, column = path_and_column(name)
    builder = TABLES.get(os.path.splitext(path)[1].lower(), "")
    if not builder or not os.path.isfile(path):
        return None
    return Source(name, os.path.abspath(path), builder, "", column)


def path_and_column(name: str) -> tuple[str, str]:
    """The path that the option `data` names, and what stands behind a colon after it."""
    path = os.path.expanduser(name)
    if not os.path.exists(path) and ":" in path:
        before, _, column = path.rpartition(":")
        if os.path.isfile(before):
            return before, column
    return path, ""


def absolute(data: str) -> str:
    """The option `data`, made absolute where it is a path."""
    if data in ("stdlib", *NUMBERED, *HUB) or data.startswith(PREFIX):
        return data
    path, column = path_and_column(data)
    return os.path.abspath(path) + f":{column}" * bool(column) if os.path.exists(path) else data


def near(name: str) -> str:
    """A hint at what an unknown name may have been meant to be, or nothing."""
    known = {"stdlib": "stdlib", "count": "count", **{k: k for k in HUB}}
    known |= {path.lower(): name for name, path in HUB.items()}
    if found := difflib.get_close_matches(name.lower(), known, 1, 0.75):
        return f"did you mean {known[found[0]]}? If not, "
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return f"write {PREFIX}{name} for a data set of the Hugging Face hub, or "
    return ""


class Table:
    """A source that is open: its splits, and their texts from wherever reading stopped.

    splits: what `datasets` calls the split for training and, if there is one, for validation.
    """

    def __init__(self, source: Source) -> None:
        try:
            import datasets  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise InputError(
                f"data {source.name!r} needs the package 'datasets': run `pip install datasets`, "
                f"or use data that need no network: {OFFLINE}."
            ) from error
        self.source, self.column = source, source.column
        try:
            self._open(datasets)
        except InputError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _open(self, datasets: Any) -> None:
        source = self.source
        if source.builder:
            files = {"train": source.path}
            self._found = datasets.load_dataset(source.builder, data_files=files, streaming=True)
        else:
            if not os.path.isdir(source.path):
                from huggingface_hub import HfApi

                HfApi().dataset_info(source.path, timeout=10)  # load_dataset would retry for long
            config = source.config
            either = config and not source.column  # hf:NAME:WORD
            if either and config not in datasets.get_dataset_config_names(source.path):
                config, self.column = "", config
            self._found = datasets.load_dataset(source.path, config or None, streaming=True)
        names = list(self._found)
        if "train" not in names:
            raise InputError(
                f"data {source.name!r} has the splits {', '.join(names)[:200]}: one that is called "
                "train is needed."
            )
        self.splits: dict[Split, str] = {"train": "train"}
        if held_out := next((name for name in HELD_OUT if name in names), None):
            self.splits["valid"] = held_out

    def size(self, split: Split) -> int | None:
        """Bytes of a split's rows, where the data set says so."""
        known: Mapping[str, Any] = getattr(self._found["train"].info, "splits", None) or {}
        facts = known.get(self.splits[split])
        return getattr(facts, "num_bytes", None) or None

    def texts(self, split: Split, state: Any = None) -> Texts:
        """Batches of a split's texts, from the beginning or from a state.

        Errors of the reader of this generator are not seen here: every one caught is the source's.
        """
        stream = self._found[self.splits[split]]
        try:
            if state is not None:
                stream.load_state_dict(state)
            for batch in stream.iter(batch_size=BATCH):
                column = self._column(batch)
                yield batch[column], stream.state_dict()
        except InputError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _column(self, batch: Mapping[str, Sequence[Any]]) -> str:
        """The column of the text, which must hold texts."""
        name = self.source.name
        texts = [k for k, values in batch.items() if any(isinstance(v, str) for v in values)]
        if not self.column:
            if "text" not in texts and len(texts) != 1:
                example = f"{name}::{texts[0]}" if name.startswith(PREFIX) else f"{name}:COLUMN"
                raise InputError(
                    f"data {name!r} has {len(texts) or 'no'} columns of text"
                    + (f" ({', '.join(texts)[:200]}): name one, as in {example}." if texts else ".")
                )
            self.column = "text" if "text" in texts else texts[0]
        if self.column not in batch:
            raise InputError(
                f"data {name!r}: there is no column {self.column[:60]!r}, but there are "
                f"{', '.join(batch)[:200]}."
            )
        if wrong := [v for v in batch[self.column] if not isinstance(v, str | None)]:
            raise InputError(
                f"data {name!r}: the column {self.column[:60]!r} holds {wrong[0]!r:.40}, which is "
                f"no text{': name one of ' * bool(texts)}{', '.join(texts)[:200]}."
            )
        return self.column

    def _failure(self, error: Exception) -> InputError:
        source = self.source
        said = " ".join(str(error).split())[:160] or type(error).__name__
        if source.builder:
            what = reason(error) if isinstance(error, OSError) else said
            return InputError(f"data {source.name!r} cannot be read as {source.builder} ({what}).")
        kind = type(error).__name__
        if kind in ("RepositoryNotFoundError", "DatasetNotFoundError", "HFValidationError"):
            return InputError(
                f"data {source.name!r}: the Hugging Face hub has no data set {source.path!r} that "
                "can be read without a password: look for its name there."
            )
        if isinstance(error, ValueError):  # of `datasets`: a configuration that is not there
            return InputError(
                f"data {source.name!r} cannot be read ({said}): look at hf.co/datasets/"
                f"{source.path} for its configurations, and write hf:NAME:CONFIG."
            )
        return InputError(
            f"corpus {source.name!r} is not in the cache and cannot be streamed from the Hugging "
            f"Face hub ({kind}): connect to the network, or use data that need none: {OFFLINE}."
        )
