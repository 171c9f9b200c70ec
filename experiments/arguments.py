"""Options of experiments, and the tables that they write."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eggroll.errors import InputError
from eggroll.files import check_place, write_whole
from eggroll.training.pictures import FORMATS


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too few: give 1 or more.")
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
