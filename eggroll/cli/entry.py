"""Starts a command. Its modules take a while to import, and an interrupt may come meanwhile.

Imports nothing that takes time: modules that are run import this one before all others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
from typing import Any, Final, NoReturn

INTERRUPTED: Final = 130  # as of cli.py


def run(module: str) -> int:
    """Imports a module and runs its `main`; returns the exit code.

    SIGINT and SIGTERM end the process in a word, as nothing has begun; where they are ignored they
    stay so. `main` handles them itself.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _end)
    return start(module)


def start(module: str, *words: list[str]) -> int:
    """Imports a module and runs its `main`, with words if given; a missing extra is a sentence."""
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        from eggroll.cli.command import end_with

        return end_with(error)
    return int(imported.main(*words))


def main() -> int:
    """The command `eggroll`, as it is installed."""
    return run("eggroll.__main__")


def _end(number: int, frame: Any) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
