"""Files: names of those of a run, written whole or not at all; the cache; signs five to a byte."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError

CHECKPOINT, CONFIG, METRICS = "checkpoint.safetensors", "config.json", "metrics.jsonl"
CURVES, SAMPLES, REPLAY = "curves.png", "samples.txt", "replay.bin"
STATISTICS, CHAIN = "statistics.jsonl", "chain.bin"
FILES = (CHECKPOINT, CONFIG, METRICS, CURVES, SAMPLES, REPLAY, STATISTICS, CHAIN)
ANCHORS = "anchors"  # the folder of earlier checkpoints

DISTRIBUTION: Final = "eggroll_mlx"
VERSION: Final = version(DISTRIBUTION)
Row = dict[str, Any]


def check_alone() -> None:
    """Raises InputError where another distribution has a package `eggroll` in this environment.

    pip puts the files of both into one folder, and either would run with files of the other.
    """
    for place in map(Path, sys.path):
        for about in place.glob("*eggroll*.dist-info") if place.is_dir() else ():
            name, _, other = about.name.removesuffix(".dist-info").partition("-")
            with contextlib.suppress(OSError):
                files = (about / "RECORD").read_text(errors="replace")
                if name != DISTRIBUTION and re.search("^eggroll/", files, re.MULTILINE):
                    raise InputError(
                        f"the distribution {name} {other} in {str(place)!r} has a package named "
                        "eggroll too, and their files mix: run `pip uninstall "
                        f"{name.replace('_', '-')}` and install eggroll-mlx again, or give each an "
                        "environment of its own."
                    )


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and sees it on the disk before it counts.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                flush_to_disk(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def open_regular(path: Path) -> BinaryIO:
    """A file open for reading; an OSError for what is none, as a pipe would be waited for.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def flush_to_disk(handle: int) -> None:
    """fsync, and on macOS, whose fsync stops at the drive's cache, what goes beyond."""
    os.fsync(handle)
    if full := getattr(fcntl, "F_FULLFSYNC", None):
        with contextlib.suppress(OSError):  # not every file system knows it
            fcntl.fcntl(handle, full)


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        flush_to_disk(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> InputError:
    begun = os.path.lexists(path.parent / CHECKPOINT)
    again = f"go on with --resume {path.parent}" if begun else "run the command again"
    return InputError(
        f"{str(path)!r} cannot be written ({error.strerror or error}): make room or grant access "
        f"there and {again}; what was there before is intact."
    )


# The cache: data sets, compiled worlds, verdicts of trials, all of which can be made again.


def cache_folder() -> Path:
    """$EGGROLL_CACHE, else eggroll/ in $XDG_CACHE_HOME, else ~/.cache/eggroll.

    Raises:
        InputError: there is no home either, as for a user without a name in a container.
    """
    if own := os.environ.get("EGGROLL_CACHE"):
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eggroll"
    except RuntimeError:
        raise InputError(
            "this user has no home folder for a cache: set EGGROLL_CACHE to a folder."
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock; the kernel frees it when its process ends, however it ends.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def filling(what: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Progress on stderr while a file of the cache is made: gives a function to be told bytes.

    size: of all, None where it is not known.
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn())
    hidden = not console.is_terminal  # where rich would draw no bar, but an empty line at its end
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=size)
        yield lambda done: progress.update(task, completed=done)


# Signs of pairs, five to a byte.

DIGITS = 5  # to a byte: 3^5 = 243 of its 256 values
_PLACES = 3 ** np.arange(DIGITS, dtype=np.int32)


def packed_size(count: int) -> int:
    """Bytes that `count` signs take."""
    return -(-count // DIGITS)


def pack(signs: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Signs -1, 0 and 1, int8 [n], as bytes uint8 [ceil(n / 5)]; the first has the lowest digit.

    Raises:
        ValueError: one is none of the three.
    """
    if abs(signs.astype(np.int16)).max(initial=0) > 1:
        raise ValueError("a sign other than -1, 0 and 1 cannot be packed")
    digits = np.ones((packed_size(len(signs)), DIGITS), np.int32)
    digits.reshape(-1)[: len(signs)] = signs + np.int32(1)
    return (digits @ _PLACES).astype(np.uint8)


def unpack(data: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """The first `count` signs in packed bytes, int8 [count].

    Raises:
        ValueError: another number of bytes, or bytes that `pack` does not make.
    """
    if len(data) != packed_size(count):
        raise ValueError(f"{count} signs take {packed_size(count)} bytes, not {len(data)}")
    if (data >= 3**DIGITS).any():
        raise ValueError(f"a byte of packed signs is {data.max()}: below {3**DIGITS} is needed")
    digits = data[:, None] // _PLACES % 3 - 1
    rest = digits.reshape(-1)[count:]
    if rest.any():
        raise ValueError("signs beyond the last are packed as well")
    return digits.reshape(-1)[:count].astype(np.int8)
