"""Options of experiments, and the tables that they write."""

from __future__ import annotations

import argparse
import csv
import io
import math
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import check_place, write_whole
from eggroll.training.pictures import FORMATS

if TYPE_CHECKING:
    from eggroll.training.loop import RunResult


MODULES = {"scikit-learn": "sklearn"}  # of packages that are named otherwise


def experiment(work: Callable[..., int | None]) -> Callable[..., int]:
    """Makes a function the command of an experiment, which ends as all commands do."""

    @wraps(work)
    def main(*given: Any) -> int:
        return cli.run(lambda: work(*given) or cli.DONE)

    return main


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too few: give 1 or more.")
    return value


def whole(low: int, high: int = 1 << 30) -> Callable[[str], int]:
    """The type of an option that takes whole numbers of a range."""

    def number(text: str) -> int:
        if not low <= (value := int(text)) <= high:
            raise argparse.ArgumentTypeError(
                f"{value} is out of range: give a whole number from {low} to {high}."
            )
        return value

    return number


def population(text: str) -> int:
    """Members, which come in pairs."""
    value = int(text)
    if value % 2 or not 2 <= value <= 1 << 24:
        raise argparse.ArgumentTypeError(
            f"{value} is no population: give an even number from 2 to {1 << 24}."
        )
    return value


def above_0(text: str) -> float:
    """A number above 0, as of seconds or of a learning rate."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is out of range: give a number above 0.")
    return value


def only_help(about: str) -> None:
    """Reads the command line of a module that takes no option but --help."""
    argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()


def new_file(text: str) -> Path:
    """A place for a file of results, looked at before any run."""
    try:
        check_place("the file", text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def new_picture(text: str) -> Path:
    """The same for a picture, whose name says its format."""
    if Path(text).suffix not in FORMATS:
        raise argparse.ArgumentTypeError(
            f"{text!r} does not end in {', '.join(FORMATS)}: give it one of these."
        )
    return new_file(text)


def check_no_run(folder: Path, name: str) -> None:
    """Raises InputError for a folder that has the file of a run already, which would replace it."""
    if (folder / name).exists():
        raise InputError(f"--out {str(folder)!r} holds a run already: give another folder.")


def check_packages(extra: str, *names: str) -> None:
    """Raises InputError unless these packages are there; extra: of this project, has them."""
    for name in names:
        if find_spec(MODULES.get(name, name.replace("-", "_"))) is None:
            raise InputError(f"{name} is missing: pip install '.[{extra}]' brings it.")


def finished(train: Callable[[Any], RunResult], options: Any) -> RunResult:
    """The end of a training run of these options.

    Raises:
        KeyboardInterrupt: a signal asked it to stop, perhaps while it said its last words.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno())  # told of signals whoever handles them
        try:
            result = train(options)
        finally:
            signal.set_wakeup_fd(before)
        with suppress(BlockingIOError):
            if {*ours.recv(1 << 12)} & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
                raise KeyboardInterrupt
    if result.resume_hint:
        raise KeyboardInterrupt
    return result


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
