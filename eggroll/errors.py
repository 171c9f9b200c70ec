"""The one error a user is meant to read."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import UnionType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LONGEST_WORD, LONGEST = 240, 500  # characters of a word and of a sentence


class InputError(Exception):
    """Bad input or environment: one sentence naming the value, the allowed range and the way out.

    Commands print the sentence on stderr and exit with code 2, before any work is done. A value in
    it that is very long loses its middle.
    """

    def __init__(self, sentence: str = "") -> None:
        super().__init__(shortened(sentence))


class EngineError(InputError):
    """The engine asked for fails on this machine, or gives wrong integers; `spare` is right."""

    def __init__(self, sentence: str, spare: str = "") -> None:
        super().__init__(sentence)  # which is all that pickle passes on; spare follows it
        self.spare = spare


# Packages that a slim installation leaves out, and what goes without them.
EXTRAS: Final = {
    "matplotlib": "pictures are drawn",
    "optuna": "sweeps are searched",
    "sqlalchemy": "studies of sweeps are kept",
    "datasets": "data sets and tables are read",
    "tokenizers": "texts are read as tokens other than bytes",
    "shtab": "completion scripts are written",
}


def missing_extra(error: ModuleNotFoundError) -> InputError | None:
    """The sentence for a package that is not installed; None where it is none of EXTRAS."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return InputError(
        f"the package {package}, by which {EXTRAS[package]}, is not installed: run `pip install "
        f"{package}`, or go on without."
    )


def shortened(sentence: str) -> str:
    """A sentence without the middle of words and of a whole that nobody would read."""
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: _ends(word[0], 160, 60), sentence)
    return _ends(words, 310, 180) if len(words) > LONGEST else words


def _ends(text: str, first: int, last: int) -> str:
    return f"{text[:first]} [...] {text[-last:]}"


class EngineWarning(RuntimeWarning):
    """The engine that `auto` took fails on this machine; another goes on with the same bits."""


@contextmanager
def in_python() -> Iterator[None]:
    """Makes what a command line would say of an option into what Python says."""
    try:
        yield
    except InputError as error:
        sentence = re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda m: m[1].replace("-", "_"), str(error))
        error.args = (sentence,)
        raise


def shown(value: object, most: int = 60) -> str:
    """A value as sentences show it: cut where it is long, its type alone if it has no words."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


class NoObjectError(ValueError):
    """JSON that is none of an object."""


class _TwiceError(ValueError):
    """A name that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"has {shown(twice)} twice")
    return found


def object_in(
    text: str | bytes, schema: Mapping[str, type | UnionType] | None = None
) -> dict[str, Any]:
    """The object that JSON has, as of a file or a header, whose values of these names have types.

    schema: names and types, `X | None` for one that may be missing; others may be anything.

    Raises:
        ValueError: it is no JSON, no object, or a value has another type; it says what is wrong as
            the rest of a sentence.
    """
    try:
        found = json.loads(text, object_pairs_hook=_object)
    except _TwiceError:
        raise
    except ValueError as error:  # that of text which is no UTF-8 among them
        raise ValueError(f"is not valid JSON ({error})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(found, dict):
        raise NoObjectError(f"holds {shown(found)} where an object is needed")
    for name, kind in (schema or {}).items():
        value = found.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            words = getattr(kind, "__name__", kind)
            raise ValueError(f"has {shown(value)} as {name!r} where {words} is needed")
    return found


def array_of(name: str, value: Any) -> NDArray[Any]:
    """The value as an array, without a copy where it is one.

    Raises:
        InputError: NumPy makes none of it, as of rows of several lengths or of bfloat16.
    """
    try:
        return np.asarray(value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).split(". ")[0].rstrip(".")
        raise InputError(
            f"{name} is no array ({reason}): give rows of one length, of a type that NumPy has."
        ) from None


def is_whole(value: Any) -> bool:
    """True for a whole number of Python's or NumPy's; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """True for a finite number of Python's or NumPy's that a float holds; no truth value."""
    if not isinstance(value, float | np.floating) and not is_whole(value):
        return False
    return bool(abs(value) <= sys.float_info.max)  # false for NaN


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number of Python's or NumPy's, as Python's.

    Raises:
        InputError: it is none, or out of range.
    """
    if not is_whole(value) or value < low or (high is not None and value > high):
        allowed = f"from {low} on" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} is {shown(value)}: a whole number {allowed} is needed.")
    return int(value)
