"""Folders in build/ of what tests compile: each is compiled once, until the means change."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"
KEPT_BYTES = 1 << 30  # of a kind: the files used last


@cache
def folder_of(kind: str, means: bytes) -> Path:
    """The folder of a kind of files that are made by these means.

    Files of all means that were not used for longest are removed, as other tests may be running.
    """
    folder = BUILD / kind / hashlib.sha256(means).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    found: list[tuple[float, int, Path]] = []
    for path in folder.parent.rglob("*"):
        with contextlib.suppress(OSError):  # another process removes what it is done with
            if path.is_file():
                found.append((path.stat().st_mtime, path.stat().st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > KEPT_BYTES:
            path.unlink(missing_ok=True)
    return folder


def contents(paths: Iterable[Path]) -> bytes:
    """Names and contents of files, for `folder_of`."""
    return b"".join(path.name.encode() + path.read_bytes() for path in sorted(paths))


def used(path: Path) -> bool:
    """True if a file is there, which is kept as the last one used from now on."""
    try:
        os.utime(path)
    except OSError:
        return path.exists()
    return True


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path in a new folder beside this one; what is written there takes the place of this one.

    So several processes may make the same.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
        made = Path(folder) / path.name
        yield made
        os.replace(made, path)
