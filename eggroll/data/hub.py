"""Two data sets of the Hugging Face hub, streamed once into a memory-mapped cache.

<cache>/<name>/ holds train.bin, valid.bin and meta.json, or is not there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from eggroll.cache import cache_folder
from eggroll.data.corpora import MARK, Split, Text, reason
from eggroll.errors import InputError
from eggroll.runlog import flush_to_disk

HUB: Final = {"tinystories": "roneneldan/TinyStories", "minipile": "JeanKaddour/minipile"}
HUB_SPLITS: Final[dict[Split, str]] = {"train": "train", "valid": "validation"}
CACHE_VERSION: Final = 1


def read_hub(name: str) -> Text:
    """A dataset of `HUB` with its own validation split, streamed once into a memory-mapped cache.

    A cache that is missing, damaged or of another version is written anew. Processes that start
    together wait for the one that writes.

    Raises:
        InputError: no network, no package `datasets`, or the cache cannot be written.
    """
    folder = cache_folder() / name
    try:
        if _cache_fault(folder, name):
            with _locked(folder.with_name(f"{name}.lock")):
                if fault := _cache_fault(folder, name):
                    _write_cache(folder, name, fault)
        meta = json.loads((folder / "meta.json").read_bytes())
        train, valid = (
            np.memmap(folder / f"{split}.bin", np.uint8, "r").view(np.ndarray)
            for split in HUB_SPLITS
        )
    except OSError as error:
        raise InputError(
            f"the cache of {name!r} in {folder} cannot be read or written ({reason(error)}): "
            "make room there, or set EGGROLL_CACHE to another folder."
        ) from error
    return Text(train, valid, meta)


def _cache_fault(folder: Path, name: str) -> str | None:
    """The reason why a cache cannot be used, None if its sizes are right; contents are trusted."""
    if not folder.exists():
        return f"{name!r} is not in the cache {folder}"
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        if (meta["version"], meta["dataset"]) != (CACHE_VERSION, HUB[name]):
            return f"the cache {folder} has another version or origin"
        for split in HUB_SPLITS:
            if (folder / f"{split}.bin").stat().st_size != meta["splits"][split]["bytes"]:
                return f"the cache {folder} is damaged: {split}.bin has the wrong size"
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        return f"the cache {folder} is damaged ({type(error).__name__})"
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a file lock; the kernel frees it when its process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_cache(folder: Path, name: str, fault: str) -> None:
    """Writes a whole cache folder or none; the caller holds the lock."""
    print(f"{fault}; streaming {HUB[name]} into it", file=sys.stderr)
    partial = folder.with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # under the lock, only a killed writer left it
    try:
        partial.mkdir()
        meta: dict[str, Any] = {"version": CACHE_VERSION, "dataset": HUB[name], "splits": {}}
        for split in HUB_SPLITS:
            meta["splits"][split] = _write_split(partial / f"{split}.bin", name, split)
        with open(partial / "meta.json", "w") as file:
            json.dump(meta, file, indent=1)
            _sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(file: IO[Any]) -> None:
    """Sees that a file is on the disk before the rename that makes it count."""
    file.flush()
    flush_to_disk(file.fileno())


def _write_split(path: Path, name: str, split: Split) -> dict[str, Any]:
    """Streams one split into a file, with progress on stderr; returns its facts."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn

    documents, size, digest = 0, 0, hashlib.sha256()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn())
    console = Console(stderr=True)
    with open(path, "wb") as file, Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{name} {split}", total=None)
        for texts in _hub_texts(name, split):
            contents = [text.encode("utf-8", "surrogatepass") for text in texts if text]
            contents = [c for content in contents if (c := content.replace(MARK, b""))]
            block = b"".join(MARK + content for content in contents)
            file.write(block)
            digest.update(block)
            documents, size = documents + len(contents), size + len(block)
            progress.update(task, completed=size)
        _sync(file)
    if not size:
        raise InputError(f"dataset {HUB[name]!r} has no text in its {HUB_SPLITS[split]!r} split.")
    return {"documents": documents, "bytes": size, "sha256": digest.hexdigest()}


def _hub_texts(name: str, split: Split) -> Iterator[Iterable[str | None]]:
    """Batches of the column 'text' of one split, streamed.

    Errors of the reader of this generator are not seen here: every one caught is the source's.
    """
    source = HUB[name]
    try:
        import datasets  # type: ignore[import-untyped, unused-ignore]
        from huggingface_hub import HfApi

        if not os.path.isdir(source):
            HfApi().dataset_info(source, timeout=10)  # one try; load_dataset would retry for long
        stream = datasets.load_dataset(source, split=HUB_SPLITS[split], streaming=True)
        for batch in stream.iter(batch_size=1000):
            yield batch["text"]
    except ImportError as error:
        raise InputError(
            f"corpus {name!r} needs the package 'datasets': run `pip install datasets`, or use "
            "data that need no network: stdlib, count, a file or a folder."
        ) from error
    except Exception as error:
        raise InputError(
            f"corpus {name!r} is not in the cache and cannot be streamed from the Hugging Face "
            f"hub ({type(error).__name__}): connect to the network, or use data that need none: "
            "stdlib, count, a file or a folder."
        ) from error
