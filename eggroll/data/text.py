"""Text from this machine: the standard library's sources, a file, a folder.

Every source ends as two byte arrays, train and valid, in which each document is the mark byte 0
followed by its bytes; NUL bytes inside documents are dropped and empty documents skipped.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import stat
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError

Split = Literal["train", "valid"]

MARK: Final = b"\0"
VAL_SHARE: Final = 0.05  # held out for validation where nothing else is asked for
SNIFF: Final = 8192  # a NUL byte in the first bytes of a file makes it binary
PIECE_BYTES: Final = (4096, 16384)  # shortest and longest document cut out of one long file
FAR_MORE: Final = 2  # times the asked share, from which on a warning tells what is held out
FEW_FILES: Final = 20  # a folder of fewer files is cut into pieces, as a single file is
# Folders of the standard library that are no part of the corpus: not source of its own ...
NOT_SOURCE: Final = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
# ... or packaged apart by some distributions, or dropped by a later Python.
NOT_EVERYWHERE: Final = {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo"}
# Sources that describe one machine or installation.
MACHINE_MADE: Final = ("config-", "_sysconfigdata", "sitecustomize", "usercustomize")


class Text(NamedTuple):
    """A text corpus as bytes.

    about: JSON-able facts, with documents, bytes and sha256 of each split under 'splits', and under
    'val_share' the share of documents that was held out, None of data with a validation split of
    their own. warnings: sentences on what was dropped, read wrongly or held out beyond that share.
    """

    train: NDArray[np.uint8]  # [bytes], read-only
    valid: NDArray[np.uint8]
    about: dict[str, Any]
    warnings: tuple[str, ...] = ()


class Document(NamedTuple):
    """The bytes of one document, and the key whose hash decides which split it belongs to."""

    key: bytes
    content: bytes


def read_stdlib(share: float = VAL_SHARE) -> Text:
    """The `.py` sources of the running Python's standard library; the key is a module's path.

    Test suites, installed packages and what distributions package apart are left out, so that
    two installations of one Python version agree as well as possible. share: see `held_out`.

    Raises:
        InputError: the sources are not there.
    """
    root, version = sysconfig.get_path("stdlib"), platform.python_version()
    sources = [
        Document(os.fsencode(path), content.replace(MARK, b""))
        for path, content in _text_files(root, NOT_SOURCE | NOT_EVERYWHERE, ".py")[0]
        if not path.startswith(MACHINE_MADE)
    ]
    if not sources:
        raise InputError(
            f"corpus 'stdlib' needs the .py sources of Python {version}, and there are none in "
            f"{root}: install them or give --data another corpus, a file or a folder."
        )
    return _divide(sources, share, "corpus 'stdlib'", {"python": version})


def read_path(path: str, share: float = VAL_SHARE) -> Text:
    """The text of a file, or of every file below a folder.

    One file is cut into documents of 4 to 16 KiB, each ending at the first blank line past 4 KiB,
    else at the last line end before 16 KiB, else at 16 KiB; the last may be shorter.

    In a folder every file is a document, in the order of relative paths; if there are fewer than
    20, each is cut like a single file. Hidden files and folders, links to folders, special files
    and binary files (a NUL byte in the first 8 KiB) are left out.

    The key of a document is its content. share: see `held_out`.

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
        about |= {"files": len(files), "skipped": skipped}
    else:
        files, skipped = [(path, _read_file(path))], {}
    contents = [content.replace(MARK, b"") for _, content in files]
    odd = oddities(files, skipped)
    if len(contents) < FEW_FILES:
        contents = [document for content in contents for document in _pieces(content)]
    text = _divide([Document(c, c) for c in contents], share, f"data {path!r}", about)
    return text._replace(warnings=(*odd, *surplus_held_out(text, share)))


def oddities(files: list[tuple[str, bytes]], skipped: Mapping[str, int]) -> Iterator[str]:
    """Sentences on what is no plain UTF-8 text in (path, content) of files, and on files left out.

    skipped: how many files were left out, by the reason.
    """
    if left := [f"{count} {why}" for why, count in skipped.items() if count and why != "empty"]:
        yield f"files left out: {', '.join(left)}"
    if nuls := sum(content.count(MARK) for _, content in files):
        where = _some([path for path, content in files if MARK in content])
        yield f"{nuls:,} NUL bytes were dropped from {where}, as from a binary file or UTF-16"
    if other := [path for path, content in files if not _is_utf8(content)]:
        yield f"no UTF-8 in {_some(other)}: its bytes are read as they are"


def _some(paths: Sequence[str]) -> str:
    return repr(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def surplus_held_out(text: Text, share: float) -> Iterator[str]:
    """A sentence where far more than the share is held out, as of a few long documents."""
    held = len(text.valid) / (len(text.valid) + len(text.train))
    if held > FAR_MORE * share:
        yield (
            f"{100 * held:.0f} % of the bytes are held out for validation where --val-share asks "
            f"for {100 * share:g} %, as documents stay whole: give more text, or in more files"
        )


def _read_file(path: str) -> bytes:
    if not os.path.isfile(path):
        raise InputError(f"data {path!r} is neither a file nor a folder: give --data one of them.")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"file {path!r} cannot be read ({error.strerror or error}): make it readable or give "
            "--data another one."
        ) from error
    if not content.strip(MARK):
        raise InputError(f"file {path!r} is empty: give --data a file with text.")
    return content


def _text_files(
    root: str, excluded: Collection[str] = (), suffix: str = ""
) -> tuple[list[tuple[str, bytes]], dict[str, int]]:
    """(relative path, content) of the text files below root, sorted; counts of those skipped."""
    files: list[tuple[str, bytes]] = []
    skipped = {"binary": 0, "unreadable": 0, "empty": 0}

    def unreadable(_: OSError) -> None:
        skipped["unreadable"] += 1

    for folder, names in _folders(root, excluded, unreadable):
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


def _folders(
    root: str, excluded: Collection[str], unreadable: Callable[[OSError], None]
) -> Iterator[tuple[str, list[str]]]:
    """(folder, names of what is no folder) of a tree of any depth, each folder once.

    os.walk calls itself for every level, and mounts may form a circle.
    """
    left, visited = [root], set[tuple[int, int]]()
    while left:
        folder = left.pop()
        try:
            entries = list(os.scandir(folder)) if _add_new(visited, os.stat(folder)) else []
        except OSError as error:
            unreadable(error)
            continue
        yield folder, [entry.name for entry in entries if not _is_folder(entry, True)]
        left += [
            entry.path
            for entry in entries
            if _is_folder(entry, False) and entry.name[0] != "." and entry.name not in excluded
        ]


def _is_folder(entry: os.DirEntry[str], linked: bool) -> bool:
    """True of a folder; linked: or of a link to one."""
    try:
        return entry.is_dir(follow_symlinks=linked)
    except OSError:  # a link to itself
        return False


def _add_new(visited: set[tuple[int, int]], stat: os.stat_result) -> bool:
    """Adds a file or folder to those visited; false if it is there."""
    key = stat.st_dev, stat.st_ino
    new = key not in visited
    visited.add(key)
    return new


def _read_text(path: str) -> bytes | None:
    """The bytes of a text file; None if it is binary or no regular file."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
        return None
    with open(path, "rb") as file:
        head = file.read(SNIFF)
        return None if MARK in head else head + file.read()


def _pieces(content: bytes) -> Iterator[bytes]:
    """Cuts one long text into documents, by the rule of `read_path`."""
    shortest, longest = PIECE_BYTES
    blank = re.compile(rb"\n\r?\n")
    start = 0
    while len(content) - start > shortest:
        low, high = start + shortest, start + longest
        paragraph = blank.search(content, low - 1, high)
        line = content.rfind(b"\n", low, high) + 1 if high < len(content) else 0
        end = paragraph.end() if paragraph else (line or high)
        yield content[start:end]
        start = end
    if start < len(content):
        yield content[start:]


def _divide(documents: list[Document], share: float, name: str, about: dict[str, Any]) -> Text:
    """Splits by document, see `held_out`; at least one goes to each side."""
    mask = held_out((d.key for d in documents), share)
    if not mask.any():
        size = sum(len(d.content) for d in documents)
        raise InputError(
            f"{name} is too small ({size:,} bytes, one distinct document): train and valid need "
            f"one each, so give --data more than {PIECE_BYTES[1]:,} bytes of text."
        )
    sides: dict[Split, list[bytes]] = {"train": [], "valid": []}
    for document, out in zip(documents, mask.tolist(), strict=True):
        sides["valid" if out else "train"].append(document.content)
    joined = {side: MARK + MARK.join(contents) for side, contents in sides.items()}
    splits = {side: _facts(len(sides[side]), joined[side]) for side in sides}
    arrays = {side: np.frombuffer(data, np.uint8) for side, data in joined.items()}
    return Text(arrays["train"], arrays["valid"], about | {"val_share": share, "splits": splits})


def held_out(keys: Iterable[bytes], share: float) -> NDArray[np.bool_]:
    """Marks the documents for validation: of the distinct keys, the share with the lowest MD5.

    share: above 0 and below 1; rounded up to whole keys. The rule knows no order, equal keys stay
    together, and a changed or added document moves at most one other to the other side. Of fewer
    than two distinct keys none is held out.
    """
    # MD5 of the module paths holds out the most typical 5 % of the standard library.
    hashed = (hashlib.md5(key, usedforsecurity=False) for key in keys)
    digests = np.array([int.from_bytes(h.digest()[:8], "big") for h in hashed], np.uint64)
    ranked = np.unique(digests)
    if len(ranked) < 2:
        return np.zeros(len(digests), np.bool_)
    count = min(math.ceil(len(ranked) * as_fraction(share)), len(ranked) - 1)
    mask: NDArray[np.bool_] = digests <= ranked[count - 1]
    return mask


def as_fraction(share: float) -> Fraction:
    """A share exactly as it is written in decimals, so that 0.05 of 140 are 7 and not 8."""
    return Fraction(str(share))


def _facts(documents: int, data: bytes) -> dict[str, Any]:
    """Documents, bytes and digest of a split."""
    return {
        "documents": documents,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
