"""Files: names of those of a run, written whole or not at all; the cache; signs five to a byte."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, shown

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


def path_of(given: Any) -> Path:
    """A path; an InputError for what is none, or has characters that no file's name has."""
    try:
        if isinstance(given, str | os.PathLike) and b"\0" not in os.fsencode(given):
            return Path(given)
    except (TypeError, UnicodeError):  # one of bytes, a lone surrogate
        pass
    raise InputError(f"{shown(given)} is no path: give a str or a Path.")


def check_place(flag: str, given: str, *, screen: bool = False) -> None:
    """Raises InputError unless an option is left out or names a file in a folder to write to.

    Files of a run are no such place. screen: whether - stands for the screen; else it is no
    file's name.
    """
    path = Path(given)
    is_file = given != "-" and path.parent.is_dir() and (path.is_file() or not path.exists())
    if given and not is_file and not (screen and given == "-"):
        raise InputError(
            f"{flag} {given!r} is no place for a file: give a file in a folder that is there"
            + ", or - for the screen" * screen + "."
        )  # fmt: skip
    if is_file and not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{flag} {given!r} is no place for a file: {str(path.parent)!r} cannot be written to; "
            "grant access there, or give a file in another folder."
        )
    check_of_no_run(path)


def check_apart(places: Mapping[str, str]) -> None:
    """Raises InputError where two options, by their flags, name the same file."""
    seen = dict[str, str]()
    for flag, given in places.items():
        if given and (other := seen.setdefault(os.path.realpath(given), flag)) != flag:
            raise InputError(
                f"{other} and {flag} are both {places[other]!r}: give each a file of its own."
            )


def check_of_no_run(path: Path) -> None:
    """Raises InputError for a file of a run that is there, which nothing else may replace."""
    if path.name in FILES and os.path.lexists(path):
        raise InputError(f"{str(path)!r} is a file of a run: give another name.")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and sees it on the disk before it counts.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file for writing that takes the place of `path` once it is whole and on the disk.

    Raises:
        OSError: it cannot be written; what was there before is intact.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is no regular file")  # a device, whose place it would take
    partial, handle = _new_partial(path)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            flush_to_disk(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _new_partial(path: Path) -> tuple[Path, int]:
    """A new file beside `path`, to which no link led, and its handle, locked while it is written.

    What a killed writer left under its name is removed; if another is writing there, or it is not
    ours to remove, the file has a name of its own.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    usual = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(OSError):
        _remove_stale(usual)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        handle = os.open(usual, flags, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.lstat(usual)):
                return usual, handle
        os.close(handle)  # taken for a leftover before it was locked
    own = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    return own, os.open(own, flags, 0o666)


def _remove_stale(partial: Path) -> None:
    """Removes a leftover, or a link; not a file that is being written.

    Raises:
        OSError: nothing is there, it is being written, or not ours to remove.
    """
    if stat.S_ISLNK(os.lstat(partial).st_mode):
        partial.unlink()
        return
    with open_regular(partial, os.O_NOFOLLOW) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.lstat(partial)):
            partial.unlink()


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """A file open for reading; an OSError for what is none, as a pipe would be waited for.

    flags: more of them for `os.open`.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
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


OUTPUTS = (".png", ".svg", ".pdf", ".html")  # that --out names


def unwritable(path: Path, error: OSError) -> InputError:
    begun = path.name in FILES and os.path.lexists(path.parent / CHECKPOINT)
    again = f"go on with --resume {path.parent}" if begun else "run the command again"
    again += ", or give another --out" * (path.suffix in OUTPUTS)
    return InputError(
        f"{str(path)!r} cannot be written ({error.strerror or error}): make room or grant access "
        f"there and {again}; what was there before is intact."
    )


def make_folder(path: Path) -> Path:
    """The folder, made with those above it where it is missing.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


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
def of_cache(path: Path) -> Iterator[None]:
    """Within, an error of the system names the path of the cache and the way out.

    Raises:
        InputError: it cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{str(path)!r} of the cache cannot be read or written ({error.strerror or error}): "
            "make room there, or set EGGROLL_CACHE to another folder."
        ) from error


def check_own(path: Path, code: bool = False) -> None:
    """Sees that a file or folder of the cache is of this user or of root, before it is believed.

    code: it is executed, so nobody else may write to it either.

    Raises:
        InputError: another user could have put it there.
        OSError: it is not there.
    """
    facts = os.stat(path)
    foreign = facts.st_uid not in (os.geteuid(), 0)
    if foreign or (code and facts.st_mode & stat.S_IWOTH):
        cause = f"belongs to user {facts.st_uid}" if foreign else "can be written by everybody"
        raise InputError(
            f"{str(path)!r} of the cache {cause}, so it is not used: remove it, or set "
            "EGGROLL_CACHE to a folder of your own."
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock; the kernel frees it when its process ends, however it ends.

    Raises:
        OSError: the file cannot be made, or is a link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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


# Small numbers in Rice's code with parameter 4. Of u = 2 v, or -2 v - 1 below zero, it has u // 4
# ones, a zero, and the two last bits of u: three bits for -2 to 1, nine for 12.

MOST_SMALL = 15  # so that no code begins with eight ones


def pack_small(values: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Numbers from -15 to 15, int8 [n], one after another in as few bytes as hold their bits.

    Raises:
        ValueError: one is another.
    """
    wide = values.astype(np.int32)
    if abs(wide).max(initial=0) > MOST_SMALL:
        raise ValueError(f"a number other than -{MOST_SMALL} to {MOST_SMALL} cannot be packed")
    unsigned = np.where(wide < 0, -2 * wide - 1, 2 * wide)
    ends = np.cumsum(unsigned // 4 + 3)
    bits = np.ones(ends[-1] if len(ends) else 0, np.uint8)
    bits[ends - 3], bits[ends - 2], bits[ends - 1] = 0, unsigned >> 1 & 1, unsigned & 1
    return np.packbits(bits)


def unpack_small(data: NDArray[np.uint8], count: int) -> tuple[NDArray[np.int8], int]:
    """The first `count` numbers in packed bytes, int8 [count], and how many bytes they take.

    Raises:
        ValueError: the bytes end before, or `pack_small` does not make them.
    """
    bits = np.unpackbits(data).tolist()
    found, at = [], 0
    try:
        for _ in range(count):
            zero = bits.index(0, at, at + MOST_SMALL // 2 + 1)
            found.append(4 * (zero - at) + 2 * bits[zero + 1] + bits[zero + 2])
            at = zero + 3
    except (ValueError, IndexError):
        raise ValueError(f"these bytes do not hold {count} small numbers") from None
    size = -(-at // 8)
    if any(bits[at : 8 * size]) or 2 * MOST_SMALL + 1 in found:
        raise ValueError("small numbers are packed in another way")
    unsigned = np.array(found, np.int32)
    return np.where(unsigned & 1, -(unsigned + 1) // 2, unsigned // 2).astype(np.int8), size
