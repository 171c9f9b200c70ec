"""The folder for what can be made again: data sets, compiled worlds, verdicts of trials."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eggroll.errors import InputError


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
