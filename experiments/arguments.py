"""Options of experiments."""

from __future__ import annotations

import argparse


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
