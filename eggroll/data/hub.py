"""Tables of text, of the Hugging Face hub or local, streamed once into a memory-mapped cache.

Rows are read by the package `datasets`, those of local Parquet and Arrow files by columns.py;
nothing comes from the network but what the option `data` names. <cache>/<key>/ holds train.bin,
valid.bin and meta.json, or is not there. <key>-val-<share>/ is a table of which another share is
held out than usual; data with a validation split of their own have none. An interrupted cache lies
in <cache>/.<key>.partial and goes on there.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.data.columns import BATCH, ColumnFile, is_text
from eggroll.data.text import MARK, VAL_SHARE, Split, Text, held_out
from eggroll.errors import InputError, object_in
from eggroll.files import (
    cache_folder,
    check_own,
    filling,
    flush_to_disk,
    locked,
    of_cache,
    write_whole,
)

PREFIX: Final = "hf:"
HUB: Final = {"tinystories": "roneneldan/TinyStories", "minipile": "JeanKaddour/minipile"}
TOKENS: Final = "tokens"  # the option `data` of a run on arrays of the caller's
NUMBERED: Final = ("count", TOKENS)  # data whose tokens are numbers below --vocabulary, not bytes
# Suffix of a local table -> its reader in `datasets`.
TABLES: Final = {".parquet": "parquet", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
ARROW_TABLES: Final = ("parquet", "arrow")  # read here, as `datasets` does what their metadata say
HELD_OUT_NAMES: Final = ("validation", "valid", "val", "dev")  # names of a split for validation
OFFLINE: Final = "stdlib, count, a file or a folder"  # data that need no network
SPLITS: Final[tuple[Split, Split]] = ("train", "valid")
CACHE_VERSION: Final = 1
PROGRESS_FILE: Final = "progress-2.json"
NOTE_SECONDS: Final = 2.0  # from one note of how far a stream has come to the next
READ_BLOCK: Final = 1 << 22  # bytes of a split read at a time, to count its documents
Texts = Iterator[tuple[Sequence[Any], Any]]  # rows' texts, and the state to go on after them


class HubSource(NamedTuple):
    """A table with a column of text."""

    name: str  # the option `data`
    path: str  # of a data set on the hub (or a folder of its shape), or of a local file
    builder: str = ""  # reader of a local file in `datasets`; empty for the hub
    config: str = ""  # of the data set; empty for its only or default one
    column: str = ""  # of the text; empty where the rows are to tell

    @property
    def identity(self) -> str:
        """Tells one version of a local file from another; of the hub, names alone."""
        words = [self.builder, self.path, self.config, self.column]
        if not self.builder:
            return self.path if words[2:] == ["", ""] else ":".join(words[1:])
        facts = os.stat(self.path)
        return ":".join([*words, str(facts.st_size), str(facts.st_mtime_ns)])


def read_table(source: HubSource, share: float = VAL_SHARE) -> Text:
    """The texts of a table with a validation split, streamed once into a memory-mapped cache.

    A data set's own validation split is taken where it has one, else a share of its documents, as
    of a folder of files. A cache that is missing, damaged or of another version is written anew,
    from where an interrupted writer came to. Processes that start together wait for the one that
    writes.

    Raises:
        InputError: no network, no package `datasets`, no column of text, or the cache cannot be
            written.
    """
    base = cache_folder() / key_of(source)
    with of_cache(base):
        folder, fault = _find_cache(base, source, share)
        if fault:
            with locked(base.with_name(f"{base.name}.lock")):
                folder, fault = _find_cache(base, source, share)
                if fault:
                    folder = CacheWriter(base, source, share).write(fault)
        check_own(folder)
        for name in ("meta.json", *(f"{split}.bin" for split in SPLITS)):
            check_own(folder / name)
        meta = object_in((folder / "meta.json").read_bytes())
        train, valid = (
            np.memmap(folder / f"{split}.bin", np.uint8, "r").view(np.ndarray) for split in SPLITS
        )
        return Text(train, valid, meta)


# Names: the option `data`, and the sources that it names.


def source_of(name: str) -> HubSource | None:
    """The table that the option `data` names, if it names one.

    Raises:
        InputError: it begins as one and is none.
    """
    if name in HUB:
        return HubSource(name, HUB[name])
    if name.startswith(PREFIX):
        path, *rest = name.removeprefix(PREFIX).split(":")
        if not path or len(rest) > 2:
            raise InputError(
                f"data {name[:80]!r} is no data set of the hub: hf:NAME, hf:NAME:CONFIG or "
                "hf:NAME:CONFIG:COLUMN is needed, as in hf:roneneldan/TinyStories."
            )
        config, column = ([*rest, "", ""])[:2]
        return HubSource(name, path, "", config, column)
    path, column = path_and_column(name)
    builder = TABLES.get(os.path.splitext(path)[1].lower(), "")
    if not builder or not os.path.isfile(path):
        return None
    path = os.path.abspath(path)
    if "::" in path and builder not in ARROW_TABLES:
        raise InputError(
            f"data {name[:80]!r} has '::' in its path, which stands for a file inside another in "
            "`datasets`: rename it."
        )
    return HubSource(name, path, builder, "", column)


def path_and_column(name: str) -> tuple[str, str]:
    """The path that the option `data` names, and what stands behind a colon after it."""
    path = os.path.expanduser(name)
    if not os.path.exists(path):
        for colon in reversed([*re.finditer(":", path)]):  # a column's name may have some, too
            if os.path.isfile(before := path[: colon.start()]):
                return before, path[colon.end() :]
    return path, ""


def absolute(data: str) -> str:
    """The option `data`, made absolute where it is a path."""
    if data in ("stdlib", *NUMBERED, *HUB) or data.startswith(PREFIX):
        return data
    path, column = path_and_column(data)
    return os.path.abspath(path) + f":{column}" * bool(column) if os.path.exists(path) else data


def similar_name(name: str) -> str:
    """A hint at what an unknown name may have been meant to be, or nothing."""
    names = {"stdlib": "stdlib", "count": "count", **{k: k for k in HUB}}
    names |= {path.lower(): name for name, path in HUB.items()}
    if matches := difflib.get_close_matches(name.lower(), names, 1, 0.75):
        return f"did you mean {names[matches[0]]}? If not, "
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return f"write {PREFIX}{name} for a data set of the Hugging Face hub, or "
    return ""


# The cache.


def key_of(source: HubSource) -> str:
    """The name of a source's folder in the cache."""
    if source.name in HUB:
        return source.name
    words = ":".join((source.path, source.config, source.column))
    digest = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", Path(source.path).name).strip("-")[:40].lower()
    return f"{readable}-{digest}"


def _folder_of(base: Path, share: float) -> Path:
    """The folder of a table of which this share is held out."""
    return base if share == VAL_SHARE else base.with_name(f"{base.name}-val-{share}")


def _find_cache(base: Path, source: HubSource, share: float) -> tuple[Path, str | None]:
    """The folder to read, and the reason why it cannot be, if there is one."""
    if share != VAL_SHARE and _cache_fault(base, source) is None:
        meta = object_in((base / "meta.json").read_bytes())
        if meta.get("val_share", VAL_SHARE) is None:  # a split of its own
            return base, None
    folder = _folder_of(base, share)
    return folder, _cache_fault(folder, source)


def _cache_fault(folder: Path, source: HubSource) -> str | None:
    """The reason why a cache cannot be used, None if its sizes are right; contents are trusted."""
    if not folder.exists():
        return f"{source.name!r} is not in the cache {folder}"
    try:
        meta = object_in((folder / "meta.json").read_bytes())
        if (meta["version"], meta["dataset"]) != (CACHE_VERSION, source.identity):
            return f"the cache {folder} has another version or origin"
        for split in SPLITS:
            if (folder / f"{split}.bin").stat().st_size != meta["splits"][split]["bytes"]:
                return f"the cache {folder} is damaged: {split}.bin has the wrong size"
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        return f"the cache {folder} is damaged ({type(error).__name__})"
    return None


class CacheWriter:
    """Writes a whole cache folder or none; its caller holds the lock."""

    def __init__(self, base: Path, source: HubSource, share: float) -> None:
        self.base, self.source, self.share = base, source, share
        self.partial = base.with_name(f".{base.name}.partial")
        self.identity = source.identity

    def write(self, fault: str) -> Path:
        """Returns the folder that was written."""
        name = self.source.path if self.source.name in HUB else self.source.name
        progress = self._read_progress()
        print(f"{fault}; {'going on with' if progress else 'streaming'} {name}", file=sys.stderr)
        table = Table(self.source)
        if self.partial.is_symlink():
            self.partial.unlink()
        self.partial.mkdir(exist_ok=True)
        check_own(self.partial)
        for split in table.splits:
            self._stream(table, split, progress)
        meta: dict[str, Any] = {"version": CACHE_VERSION, "dataset": self.identity}
        folder, meta["val_share"] = self.base, None
        if "valid" not in table.splits:
            folder, meta["val_share"] = _folder_of(self.base, self.share), self.share
            _hold_out(self.partial, self.source, self.share)
        meta["splits"] = {split: _facts(self.partial / f"{split}.bin") for split in SPLITS}
        self._check(meta["splits"])
        (self.partial / PROGRESS_FILE).unlink()
        with open(self.partial / "meta.json", "w") as file:
            json.dump(meta, file, indent=1)
            _sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(self.partial, folder)
        return folder

    def _read_progress(self) -> dict[str, Any]:
        """An interrupted writer's notes, by split; without them its files are removed."""
        try:
            progress = object_in((self.partial / PROGRESS_FILE).read_bytes(), {"splits": dict})
            if progress["version"] == CACHE_VERSION and progress["dataset"] == self.identity:
                splits: dict[str, Any] = progress["splits"]
                sizes = {s: (self.partial / f"{s}.bin").stat().st_size for s in splits}
                if all(sizes[split] >= note["bytes"] for split, note in splits.items()):
                    return splits
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        shutil.rmtree(self.partial, ignore_errors=True)
        return {}

    def _stream(self, table: Table, split: Split, progress: dict[str, Any]) -> None:
        """Streams one split into a file, with progress on stderr."""
        note = progress.get(split, {"bytes": 0, "state": None, "done": False})
        if note["done"]:
            return
        path, size = self.partial / f"{split}.bin", int(note["bytes"])
        title = f"{self.source.name} {split}"
        with (
            open(path, "r+b" if size else "wb") as file,
            filling(title, table.size(split)) as show,
        ):
            file.truncate(size)
            file.seek(size)
            written, empty = time.monotonic(), 0
            for texts, state in table.texts(split, note["state"]):
                block = _block(texts)
                empty += sum(not text for text in texts)
                file.write(block)
                size += len(block)
                show(size)
                if time.monotonic() - written > NOTE_SECONDS:
                    progress[split] = {"bytes": size, "state": state, "done": False}
                    self._write_progress(file, progress)
                    written = time.monotonic()
            progress[split] = {"bytes": size, "state": None, "done": True}
            self._write_progress(file, progress)
        if empty:
            left = f"{empty:,} rows of the {split} split have no text"
            print(f"{self.source.name}: {left}", file=sys.stderr)

    def _write_progress(self, file: IO[bytes], progress: dict[str, Any]) -> None:
        """Notes how far the streams have come, once the file is on the disk."""
        _sync(file)
        content = {"version": CACHE_VERSION, "dataset": self.identity, "splits": progress}
        write_whole(self.partial / PROGRESS_FILE, json.dumps(content).encode())

    def _check(self, splits: dict[str, Any]) -> None:
        """Raises InputError for a split without documents."""
        for split, facts in splits.items():
            if not facts["documents"]:
                shutil.rmtree(self.partial, ignore_errors=True)
                raise InputError(f"data {self.source.name!r} has no text in its {split} split.")


def _of_words(batch: Mapping[str, Sequence[Any]]) -> list[str]:
    """The columns of some rows that hold any text."""
    return [k for k, values in batch.items() if any(isinstance(v, str) for v in values)]


def _block(texts: Any) -> bytes:
    """Documents, each a mark and the bytes of a text; empty ones are skipped."""
    contents = [text.encode("utf-8", "surrogatepass") for text in texts if text]
    contents = [c for content in contents if (c := content.replace(MARK, b""))]
    return b"".join(MARK + content for content in contents)


def _sync(file: IO[Any]) -> None:
    """Sees that a file is on the disk before what makes it count."""
    file.flush()
    flush_to_disk(file.fileno())


def _facts(path: Path) -> dict[str, Any]:
    """Documents, bytes and digest of a split's file."""
    documents, digest, size = 0, hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(READ_BLOCK):
            documents, size = documents + block.count(MARK), size + len(block)
            digest.update(block)
    return {"documents": documents, "bytes": size, "sha256": digest.hexdigest()}


def _hold_out(partial: Path, source: HubSource, share: float) -> None:
    """Divides train.bin, by the contents of its documents; see `held_out`.

    Raises:
        InputError: there are fewer than two.
    """
    path, original = partial / "train.bin", partial / "all.bin"
    os.replace(path, original)
    data: NDArray[np.uint8] = (
        np.memmap(original, np.uint8, "r") if original.stat().st_size else np.zeros(0, np.uint8)
    )
    offsets = range(0, len(data), 1 << 26)  # the mask of all at once may not fit into memory
    marks = [np.flatnonzero(data[i : i + (1 << 26)] == MARK[0]) + i for i in offsets]
    starts = np.concatenate([np.zeros(0, np.intp), *marks])
    ends = np.append(starts[1:], len(data))[: len(starts)]  # none of an empty table
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    mask = held_out((data[a + 1 : b].tobytes() for a, b in spans), share)
    if not mask.any():
        shutil.rmtree(partial, ignore_errors=True)
        raise InputError(
            f"data {source.name!r} has {min(len(spans), 1)} distinct documents: two are needed, "
            "one of them for validation; give more rows."
        )
    with open(path, "wb") as train, open(partial / "valid.bin", "wb") as valid:
        for (a, b), is_held in zip(spans, mask.tolist(), strict=True):
            (valid if is_held else train).write(data[a:b].tobytes())
        _sync(train)
        _sync(valid)
    del data
    original.unlink()


# Rows, by the package `datasets`.


class Table:
    """A source that is open: its splits, and their texts from wherever reading stopped.

    The split for validation is left out of `splits` where there is none. Features other than text,
    as of images, are never decoded: their values are addresses, which nobody here asked for.
    """

    def __init__(self, source: HubSource) -> None:
        self.source, self.column = source, source.column
        self.splits: dict[Split, str] = {"train": "train"}  # names of them in `datasets`
        self._file: ColumnFile | None = None
        self._texts: list[str] = []  # columns that hold any
        try:
            self._open()
        except InputError:
            raise
        except ImportError as error:
            raise InputError(
                f"data {source.name!r} needs the package 'datasets': run `pip install datasets`, "
                f"or use data that need no network: {OFFLINE}."
            ) from error
        except Exception as error:
            raise self._failure(error) from error

    def _open(self) -> None:
        source = self.source
        if source.builder in ARROW_TABLES:
            self._file = ColumnFile(source.path, source.builder)
            types = self._file.schema()
            self._texts = [name for name, kind in types.items() if is_text(kind)]
            self._choose_column(types, self._texts)
            if not is_text(types[self.column]):
                raise self._no_text(f"values of type {types[self.column]}")
            return
        import datasets  # type: ignore[import-untyped, unused-ignore]

        if source.builder == "csv":
            rows = self._load_file(datasets)["train"].iter(batch_size=BATCH)
            head: dict[str, Any] = next(rows, {})
            options: dict[str, Any] = {}
            if head:  # every value as it stands, also "NA" and 007
                self._choose_column(head, _of_words(head))
                kinds = datasets.Features({self.column: datasets.Value("string")})
                options = {"features": kinds, "keep_default_na": False}
            self._dataset = self._load_file(datasets, **options)
        elif source.builder:
            self._dataset = self._load_file(datasets)
        else:
            self._dataset = self._load_hub(datasets)
        names = list(self._dataset)
        if "train" not in names:
            raise InputError(
                f"data {source.name!r} has the splits {', '.join(names)[:200]}: one that is called "
                "train is needed."
            )
        if held_out := next((name for name in HELD_OUT_NAMES if name in names), None):
            self.splits["valid"] = held_out

    def _load_file(self, datasets: Any, **options: Any) -> Any:
        source, files = self.source, {"train": glob.escape(self.source.path)}
        return datasets.load_dataset(source.builder, data_files=files, streaming=True, **options)

    def _load_hub(self, datasets: Any) -> Any:
        """A data set of the hub, or a folder of its shape."""
        path, config = self.source.path, self.source.config
        if not os.path.isdir(path):
            from huggingface_hub import HfApi

            HfApi().dataset_info(path, timeout=10)  # load_dataset would retry for long
        ambiguous = config and not self.source.column  # hf:NAME:WORD
        if ambiguous and config not in datasets.get_dataset_config_names(path):
            config, self.column = "", config
        return datasets.load_dataset(path, config or None, streaming=True)

    def size(self, split: Split) -> int | None:
        """Bytes of a split's rows, where the data set says so."""
        if self._file:
            return None
        splits: Mapping[str, Any] = getattr(self._dataset["train"].info, "splits", None) or {}
        facts = splits.get(self.splits[split])
        return getattr(facts, "num_bytes", None) or None

    def texts(self, split: Split, state: Any = None) -> Texts:
        """Batches of a split's texts, from the beginning or from a state.

        Errors of the reader of this generator are not seen here: every one caught is the source's.
        """
        try:
            if self._file:
                for texts, row in self._file.texts(self.column, state or 0):
                    self._check_texts(texts)
                    yield texts, row
                return
            stream = self._undecoded(split)
            if state is not None:
                stream.load_state_dict(state)
            for batch in stream.iter(batch_size=BATCH):
                texts = self._column(batch)
                yield texts, stream.state_dict()
        except InputError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _undecoded(self, split: Split) -> Any:
        """A split as a stream of the column of the text alone, of which nothing is decoded."""
        stream = self._dataset[self.splits[split]]
        if not stream.features:  # nothing says that anything is to be decoded
            return stream
        kinds = {name: getattr(kind, "dtype", "") for name, kind in stream.features.items()}
        self._texts = [name for name, kind in kinds.items() if kind in ("string", "large_string")]
        self._choose_column(kinds, self._texts)
        return stream.decode(False).select_columns([self.column])

    def _column(self, batch: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
        """The column of the text in some rows, which must hold texts."""
        if not self._texts:
            self._texts = _of_words(batch)
        self._choose_column(batch, self._texts)
        self._check_texts(batch[self.column])
        return batch[self.column]

    def _choose_column(self, columns: Collection[str], texts: Sequence[str]) -> None:
        """Finds the column of the text among those that hold any, or the one that was named."""
        name = self.source.name
        if not (self.column or texts):
            raise InputError(
                f"data {name!r} has no columns of text ({', '.join(columns)[:200] or 'none at all'}"
                "): give a table that has one; dates do not count as text."
            )
        if not self.column:
            if "text" not in texts and len(texts) != 1:
                example = f"{name}::{texts[0]}" if name.startswith(PREFIX) else f"{name}:COLUMN"
                raise InputError(
                    f"data {name!r} has {len(texts)} columns of text ({', '.join(texts)[:200]}): "
                    f"name one, as in {example}."
                )
            self.column = "text" if "text" in texts else texts[0]
        if self.column not in columns:
            raise InputError(
                f"data {name!r}: there is no column {self.column[:60]!r}, but there are "
                f"{', '.join(columns)[:200]}."
            )

    def _check_texts(self, values: Sequence[Any]) -> None:
        """Raises InputError for a value that is no text."""
        if wrong := [v for v in values if not isinstance(v, str | None)]:
            raise self._no_text(f"{wrong[0]!s:.40}")

    def _no_text(self, what: str) -> InputError:
        others = f": name one of {', '.join(self._texts)[:200]}" if self._texts else ""
        return InputError(
            f"data {self.source.name!r}: the column {self.column[:60]!r} holds {what}, which is "
            f"no text{others}."
        )

    def _failure(self, error: Exception) -> InputError:
        """The sentence for an error of `datasets`."""
        source = self.source
        message = " ".join(str(error).split())[:160] or type(error).__name__
        if source.builder:
            cause = getattr(error, "strerror", None) or message
            return InputError(
                f"data {source.name!r} cannot be read as {source.builder} ({cause}): "
                f"give a file of rows in UTF-8, or one of plain text, whose name ends in .txt."
            )
        kind = type(error).__name__
        if kind in ("RepositoryNotFoundError", "DatasetNotFoundError", "HFValidationError"):
            return InputError(
                f"data {source.name!r}: the Hugging Face hub has no data set {source.path!r} that "
                "can be read without a password: look for its name there."
            )
        if isinstance(error, ValueError):  # of `datasets`: a configuration that is not there
            return InputError(
                f"data {source.name!r} cannot be read ({message}): look at hf.co/datasets/"
                f"{source.path} for its configurations, and write hf:NAME:CONFIG."
            )
        return InputError(
            f"corpus {source.name!r} is not in the cache and cannot be streamed from the Hugging "
            f"Face hub ({kind}): connect to the network, or use data that need none: {OFFLINE}."
        )
