"""The memory that this process may take, and what it says where a limit on it ends the process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from eggroll import _extension
from eggroll.errors import InputError

GIB = 1 << 30


def address_space() -> int | None:
    """Bytes of the limit on this process's address space (`ulimit -v`), or None."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def memory() -> tuple[int, str]:
    """Bytes that a run may take, and the words for whose they are."""
    page = os.sysconf("SC_PAGE_SIZE")
    present, limit = page * os.sysconf("SC_PHYS_PAGES"), address_space()
    if limit is None:
        return present, "this machine has"
    return min(present, max(0, limit - _taken(page))), "the limit of `ulimit -v` leaves"


def _taken(page: int) -> int:
    """Bytes of address space that this process has by now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * page
    except (OSError, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """Under a limit, makes a crash for want of memory a sentence and exit code 2.

    MLX writes to the null pointer where malloc has nothing left, and other libraries abort or
    exit: none of that is an exception that could be caught.
    """
    limit = address_space()
    if limit is None:
        yield
        return
    try:
        native = _extension.load()
    except InputError:
        yield
        return
    said = (
        f"memory ran out, or so it seems: `ulimit -v` lets this process take {limit / GIB:.2f} "
        "GiB; raise that limit, or try a smaller --pop, --width or --chunk"
    )
    native.last_words(f"error: {said}.\n")
    try:
        yield
    except (ImportError, SystemError) as error:
        raise InputError(f"{said} ({type(error).__name__}: {error!s:.100}).") from error
    finally:
        native.last_words("")
