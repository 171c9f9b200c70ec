"""Options of benchmarks, looked at before any work; programs they start; files they write."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import write_whole

sys.path.append(str(Path(__file__).parents[1]))  # where it is not installed
from experiments.arguments import check_packages, finished

__all__ = [
    "check_names", "check_numbers", "check_own", "check_packages", "finished", "output_of",
    "write_json",
]  # fmt: skip


def check_numbers(
    flag: str, values: Sequence[int], low: int, high: int, *, even: bool = False
) -> None:
    """Raises InputError unless there are values, all of them in this range."""
    numbers = f"{'even ' * even}numbers from {low} to {high}"
    for wrong in (v for v in values if not low <= v <= high or (even and v % 2)):
        raise InputError(f"{flag} has {wrong}: {numbers} are needed.")
    if not values:
        raise InputError(f"{flag} is empty: give one or more {numbers}.")


def check_names(flag: str, values: Sequence[str], known: Collection[str]) -> None:
    """Raises InputError unless there are values, all of them known."""
    needed = " or ".join(map(repr, known))
    for wrong in (v for v in values if v not in known):
        raise InputError(f"{flag} has {wrong!r}: {needed} is needed.")
    if not values:
        raise InputError(f"{flag} is empty: give one or more of {needed}.")


def check_own(words: Sequence[str], *own: str) -> None:
    """Raises InputError where words for eggroll.train have an option that a benchmark sets."""
    for flag in own:
        if flag in [word.partition("=")[0] for word in words]:
            raise InputError(
                f"{flag} is not to be given, as the benchmark trains runs of its own in a "
                "temporary folder: leave it out."
            )


def output_of(command: Sequence[str]) -> str:
    """The output of a program, which an interrupt ends with all that it started.

    Raises:
        InputError: it refused its input; in its words.
    """
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = program.communicate()
    except KeyboardInterrupt:
        program.terminate()
        program.communicate()
        raise
    if program.returncode == cli.REFUSED and (words := errors.splitlines()):
        raise InputError(words[-1].removeprefix("error: "))
    if program.returncode:
        sys.stderr.write(errors)
        raise subprocess.CalledProcessError(program.returncode, command)
    return out


def write_json(path: str, found: object) -> None:
    """Writes a file whole or not at all, where one is asked for."""
    if path:
        write_whole(Path(path), json.dumps(found, indent=1).encode() + b"\n")
