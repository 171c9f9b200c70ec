"""Where text comes from: the standard library, a file or folder, and two Hugging Face datasets.

Every source ends as two byte arrays, train and valid, in which each document is the mark byte 0
followed by its bytes; NUL bytes inside documents are dropped and empty documents skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.runlog import flush_to_disk

Split = Literal["train", "valid"]

MARK: Final = b"\0"
HUB: Final = {"tinystories": "roneneldan/TinyStories", "minipile": "JeanKaddour/minipile"}
HUB_SPLITS: Final[dict[Split, str]] = {"train": "train", "valid": "validation"}
CACHE_VERSION: Final = 1

SNIFF: Final = 8192  # a NUL byte in the first bytes of a file makes it binary
PIECE: Final = (4096, 16384)  # shortest and longest document cut out of one long file
FEW_FILES: Final = 20  # a folder of fewer files is cut into pieces, as a single file is

# Folders of the standard library that are no part of the corpus: not source of its own ...
NOT_SOURCE: Final = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
# ... or packaged apart by some distributions, or dropped by a later Python.
NOT_EVERYWHERE: Final = {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo"}
# Sources that describe one machine or installation.
MACHINE_MADE: Final = ("config-", "_sysconfigdata", "sitecustomize", "usercustomize")


class Text(NamedTuple):
    """A text corpus as bytes.

    train, valid: uint8 [bytes], read-only; about: JSON-able facts, with documents, bytes and
    sha256 of each split under 'splits'.
    """

    train: NDArray[np.uint8]
    valid: NDArray[np.uint8]
    about: dict[str, Any]


class Document(NamedTuple):
    """The bytes of one document, and the key whose hash decides which split it belongs to."""

    key: bytes
    content: bytes


def read_stdlib() -> Text:
    """The `.py` sources of the running Python's standard library; the key is a module's path.

    Test suites, installed packages and what distributions package apart are left out, so that
    two installations of one Python version agree as well as possible.

    Raises:
        InputError: the sources are not there.
    """
    root, version = sysconfig.get_path("stdlib"), platform.python_version()
    found = [
        Document(os.fsencode(path), content)
        for path, content in _text_files(root, NOT_SOURCE | NOT_EVERYWHERE, ".py")[0]
        if not path.startswith(MACHINE_MADE)
    ]
    if not found:
        raise InputError(
            f"corpus 'stdlib' needs the .py sources of Python {version}, and there are none in "
            f"{root}: install them or give --data another corpus, a file or a folder."
        )
    return _divide(found, "corpus 'stdlib'", {"python": version})


def read_path(path: str) -> Text:
    """The text of a file, or of every file below a folder.

    One file is cut into documents of 4 to 16 KiB, each ending at the first blank line past 4 KiB,
    else at the last line end before 16 KiB, else at 16 KiB; the last may be shorter.

    In a folder every file is a document, in the order of relative paths; if there are fewer than
    20, each is cut like a single file. Hidden files and folders, links to folders, special files
    and binary files (a NUL byte in the first 8 KiB) are left out.

    The key of a document is its content.

    Raises:
        InputError: missing, unreadable, empty or too small.
    """
    about: dict[str, Any] = {"path": os.path.abspath(path)}
    if os.path.isdir(path):
        files, skipped = _text_files(path)
        if not files:
            left = ", ".join(f"{count} {why}" for why, count in skipped.items())
            raise InputError(
                f"folder {path!r} holds no text (left out: {left}; hidden files are not looked "
                "at): give --data a folder with readable text files."
            )
        contents = [content for _, content in files]
        about |= {"files": len(files), "skipped": skipped}
    else:
        contents = [_read_file(path)]
    if len(contents) < FEW_FILES:
        contents = [piece for content in contents for piece in _pieces(content)]
    return _divide([Document(c, c) for c in contents], f"data {path!r}", about)


def _read_file(path: str) -> bytes:
    if not os.path.isfile(path):
        raise InputError(f"data {path!r} is neither a file nor a folder: give --data one of them.")
    try:
        content = Path(path).read_bytes().replace(MARK, b"")
    except OSError as error:
        raise InputError(
            f"file {path!r} cannot be read ({_reason(error)}): make it readable or give --data "
            "another one."
        ) from error
    if not content:
        raise InputError(f"file {path!r} is empty: give --data a file with text.")
    return content


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _text_files(
    root: str, excluded: Collection[str] = (), suffix: str = ""
) -> tuple[list[tuple[str, bytes]], dict[str, int]]:
    """(relative path, content) of the text files below root, sorted; counts of those skipped."""
    files: list[tuple[str, bytes]] = []
    skipped = {"binary": 0, "unreadable": 0, "empty": 0}

    def unreadable(_: OSError) -> None:
        skipped["unreadable"] += 1

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if name[0] != "." and name not in excluded]
        for name in (name for name in names if name[0] != "." and name.endswith(suffix)):
            path = os.path.join(folder, name)
            try:
                content = _read_text(path)
            except OSError as error:
                unreadable(error)
                continue
            if content:
                files.append((Path(path).relative_to(root).as_posix(), content))
            else:
                skipped["binary" if content is None else "empty"] += 1
    return sorted(files), skipped


def _read_text(path: str) -> bytes | None:
    """The bytes of a text file without NULs; None if it is binary or no regular file."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
        return None
    with open(path, "rb") as file:
        head = file.read(SNIFF)
        return None if MARK in head else (head + file.read()).replace(MARK, b"")


def _pieces(content: bytes) -> Iterator[bytes]:
    """Cuts one long text into documents, by the rule of `read_path`."""
    shortest, longest = PIECE
    blank = re.compile(rb"\n\r?\n")
    start = 0
    while len(content) - start > shortest:
        low, high = start + shortest, start + longest
        found = blank.search(content, low - 1, high)
        line = content.rfind(b"\n", low, high) + 1 if high < len(content) else 0
        end = found.end() if found else (line or high)
        yield content[start:end]
        start = end
    if start < len(content):
        yield content[start:]


def _divide(documents: list[Document], what: str, about: dict[str, Any]) -> Text:
    """Splits by document: of the distinct keys, the twentieth with the lowest MD5 is validation.

    The rule knows no order, equal keys stay together, and a changed or added document moves at
    most one other to the other side. At least one document goes to each side.
    """
    # MD5 of the module paths holds out the most typical 5 % of the standard library.
    digests = [hashlib.md5(d.key, usedforsecurity=False).digest() for d in documents]
    ranked = sorted(set(digests))
    if len(ranked) < 2:
        size = sum(len(d.content) for d in documents)
        raise InputError(
            f"{what} is too small ({size:,} bytes, one distinct document): train and valid need "
            f"one each, so give --data more than {PIECE[1]:,} bytes of text."
        )
    held_out = set(ranked[: -(-len(ranked) // 20)])
    sides: dict[Split, list[bytes]] = {"train": [], "valid": []}
    for document, digest in zip(documents, digests, strict=True):
        sides["valid" if digest in held_out else "train"].append(document.content)
    joined = {side: MARK + MARK.join(contents) for side, contents in sides.items()}
    splits = {side: _facts(len(sides[side]), joined[side]) for side in sides}
    arrays = {side: np.frombuffer(data, np.uint8) for side, data in joined.items()}
    return Text(arrays["train"], arrays["valid"], about | {"splits": splits})


def _facts(documents: int, data: bytes) -> dict[str, Any]:
    return {
        "documents": documents,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


# Hugging Face datasets: <cache>/<name>/ holds train.bin, valid.bin and meta.json, or is not there.


def cache_folder() -> Path:
    """$EGGROLL_CACHE, else eggroll/ in $XDG_CACHE_HOME, else ~/.cache/eggroll."""
    if own := os.environ.get("EGGROLL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eggroll"


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
            f"the cache of {name!r} in {folder} cannot be read or written ({_reason(error)}): "
            "make room there, or set EGGROLL_CACHE to another folder."
        ) from error
    return Text(train, valid, meta)


def _cache_fault(folder: Path, name: str) -> str | None:
    """Why a cache cannot be used; None if it is whole. Contents are trusted, sizes are checked."""
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
