"""Inputs made by chance: what a parser raises for them must be what it says it raises.

Every attempt has a seed of its own, so that a finding can be repeated alone.
"""

from __future__ import annotations

import copy
import json
import math
import random
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eggroll.errors import InputError

LONGEST = 800  # characters of a sentence that says what is wrong
SECONDS = 20.0  # that an attempt may take, on a busy machine

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63),
    1 << 64, 10**400, -(10**400), 0.5, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf,
    "", " ", "x", "0", "-1", "1e5", "true", "null", "\0", "\n", "\u00e9", "\ud800", "a\nb\tc",
    "%s{}", "../..", "/dev/null", "x" * 3000, "9" * 5000, "\U0001f95a" * 700, "\u0663", "\u00b2",
    [], {}, [[]], [None], [1] * 60, [True], {"": 0}, {"a": {"b": [1]}}, [-1, 1.5, "x"],
)  # fmt: skip


class Target(NamedTuple):
    """Something that takes inputs; attempt: makes one by chance and puts it in.

    allowed: what may be raised; cost: relative time of an attempt, which decides how many it gets.
    """

    name: str
    attempt: Callable[[random.Random], object]
    allowed: tuple[type[BaseException], ...] = (InputError,)
    cost: float = 1.0


@dataclass
class Outcome:
    """Of many attempts: how many, how many were refused, and what was raised that should not be."""

    tried: int = 0
    refused: int = 0
    findings: dict[str, str] = field(default_factory=dict)  # where -> seed and traceback


class TooSlow(BaseException):
    pass


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TooSlow(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(target: Target, number: int, seed: object, first: int = 0) -> Outcome:
    """So many attempts at a target; attempt i depends on the seed and i alone."""
    outcome = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for i in range(first, first + number):
            outcome.tried += 1
            try:
                with time_limit(SECONDS):
                    target.attempt(random.Random(f"{seed} {target.name} {i}"))
            except target.allowed as error:
                outcome.refused += 1
                if isinstance(error, InputError) and (bad := unfit(str(error))):
                    where = f"{target.name}: {bad}: {str(error)[:100]!r}"
                    outcome.findings.setdefault(where[:160], f"attempt {i}: {str(error)[:2000]!r}")
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)
                ours = [f for f in place if "/eggroll/" in f.filename] or place
                line = f"{ours[-1].filename}:{ours[-1].lineno}"
                where = f"{target.name}: {type(error).__name__} in {line}"
                text = "".join(traceback.format_exception(error))[-3000:]
                outcome.findings.setdefault(where, f"attempt {i}:\n{text}")
    return outcome


def unfit(sentence: str) -> str:
    """Why a sentence is none to show to a user; empty if it is."""
    if len(sentence) > LONGEST:
        return f"{len(sentence)} characters"
    if "\n" in sentence:
        return "several lines"
    return "" if sentence.endswith((".", "?")) else "no end"


def hostile(chance: random.Random, deepest: int = 3000) -> Any:
    """A value that nobody expects; a new one each time."""
    if chance.random() < 0.03:
        return nested(chance.choice([10, 100, deepest]))
    if chance.random() < 0.3:
        return chance.randint(-20, 300) if chance.random() < 0.7 else chance.uniform(-9, 99)
    return copied(chance.choice(HOSTILE))


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def copied(value: Any) -> Any:
    """A copy of its own, but for what is nested too deeply to be copied."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return value


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a JSON value."""
    yield path
    if len(path) > 20:
        return
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutated(value: Any, chance: random.Random) -> Any:
    """A JSON value with one to three places changed."""
    value = copied(value)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        path = chance.choice(list(places(value)))
        if not path:
            if chance.random() < 0.1:
                return hostile(chance)
            continue
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        _change(holder, path[-1], chance)
    return value


def _change(holder: Any, key: Any, chance: random.Random) -> None:
    how = chance.random()
    if how < 0.55:
        holder[key] = hostile(chance)
    elif how < 0.7 and isinstance(holder[key], int):
        holder[key] += chance.choice([-2, -1, 1, 2, 1 << 16, 1 << 40])
    elif how < 0.8:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(chance.randint(0, len(holder)), copied(chance.choice(holder)))
    else:
        holder[chance.choice([str(key) + "x", "", chance.choice(list(holder))])] = holder[key]


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes with some flipped, cut off, doubled, moved, or replaced by something else."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randint(0, len(changed))
        end = min(len(changed), at + chance.choice([1, 2, 8, 100]))
        how = chance.randrange(7)
        if how == 0 and changed:
            changed[at % len(changed)] ^= 1 << chance.randrange(8)
        elif how == 1:
            del changed[at:end]
        elif how == 2:
            del changed[at:]
        elif how == 3:
            changed[at:at] = changed[at:end]
        elif how == 4:
            changed[at:end] = chance.randbytes(end - at)
        elif how == 5:
            changed[at:end] = text_of(hostile(chance)).encode("utf-8", "surrogatepass")
        else:
            changed[at:at] = chance.choice([b"\0", b"\xff", b"\n", b'"', b"[" * 2000, b"1" * 5000])
    return bytes(changed)


def text_of(value: Any) -> str:
    """A value as JSON, or what it is where that has no words for it."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 3000
    except (ValueError, TypeError):
        return str(type(value))
