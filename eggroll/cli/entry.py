"""Starts a command. Its modules take a while to import, and an interrupt may come meanwhile.

Imports nothing that takes time: modules that are run import this one before all others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
from typing import Any, Final, NoReturn

REFUSED: Final = 2
INTERRUPTED: Final = 130
LEAST_SPACE: Final = 160 << 20  # bytes of address space in which the libraries can be loaded
TIGHT_SPACE: Final = 1 << 30  # in which OpenBLAS has room for one thread's buffers
FEW_TASKS: Final = 1000  # of a user, from which on a limit may keep threads from being started
NO_THREADS: Final = ("can't start new thread", "Resource temporarily unavailable")


def run(module: str) -> int:
    """Imports a module and runs its `main`; returns the exit code.

    SIGINT and SIGTERM end the process in a word, as nothing has begun; where they are ignored they
    stay so. `main` handles them itself.
    """
    space, tasks = limit("RLIMIT_AS"), limit("RLIMIT_NPROC")
    if space is not None and space < LEAST_SPACE:
        return _refused(
            f"`ulimit -v` lets this process take {space >> 20} MiB: {LEAST_SPACE >> 20} at least "
            "are needed to start"
        )
    if (space or TIGHT_SPACE) < TIGHT_SPACE or (tasks is not None and tasks <= FEW_TASKS):
        # OpenBLAS ends the process where it does not get all threads that it would start.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _end)
    try:
        return start(module)
    except (ImportError, MemoryError, RuntimeError) as error:
        if sentence := limit_reached(error):
            return _refused(sentence)
        raise


def limit_reached(error: BaseException) -> str:
    """The sentence for an error that a limit of the shell's caused; empty for any other."""
    if isinstance(error, RuntimeError) and any(words in str(error) for words in NO_THREADS):
        return (
            "the system starts no more threads for this user: end other processes, or raise "
            "`ulimit -u`"
        )
    space = limit("RLIMIT_AS")
    if space is not None and not isinstance(error, ModuleNotFoundError):
        return f"memory ran out, as `ulimit -v` lets this process take {space >> 20} MiB: raise it"
    return ""


def limit(name: str) -> int | None:
    """A limit of this process, None where there is none."""
    try:
        import resource

        soft, _ = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _refused(sentence: str) -> int:
    with contextlib.suppress(OSError):
        os.write(2, f"error: {sentence}.\n".encode())
    return REFUSED


def start(module: str, *words: list[str]) -> int:
    """Imports a module and runs its `main`, with words if given; a missing extra is a sentence."""
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return int(importlib.import_module("eggroll.cli.command").end_with(error))
    return int(imported.main(*words))


def main() -> int:
    """The command `eggroll`, as it is installed."""
    return run("eggroll.__main__")


def _end(number: int, frame: Any) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
