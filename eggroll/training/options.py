"""Options from JSON and from the command line, and which of them a resumed run may change."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from eggroll.cli import command as cli
from eggroll.cli.command import flag
from eggroll.cli.help import CHANGEABLE, hints_of
from eggroll.errors import InputError, shown
from eggroll.files import open_regular
from eggroll.training.config import INVOCATION, RECIPES, Common, Config, DeclaredConfig

TYPES = hints_of(Config)
LONGEST_FILE = 1 << 24  # bytes of options
Kind = TypeVar("Kind", bound=Common)
# Options of runs that began under older versions.
RENAMED = {"sample_bytes": "sample_tokens", "slab": "block_tokens"}
# (option, value) that runs of older versions may have -> what took its place.
GONE = {("rule", "rows"): "whitened"}


def check_resumed(old: Kind, new: Kind) -> None:
    """Looks whether a run with the options `old` can go on with `new`.

    Raises:
        InputError: an option differs that the weights depend on.
    """
    where = getattr(new, "resume", "")
    declared = DeclaredConfig in (type(old), type(new))
    if declared and old.program().digest() != new.program().digest():
        raise InputError(
            f"the network is another one than that of the run in {where!r}: give the program that "
            "it began with, or start a new run."
        )
    for name, hint in hints_of(type(old)).items():
        before, now = getattr(old, name), getattr(new, name, None)
        if name not in INVOCATION and CHANGEABLE not in get_args(hint)[1:] and before != now:
            raise InputError(
                f"{flag(name)} is {now}, but the run in {where!r} has {before}: leave "
                f"{flag(name)} out to go on with it, or start a new run without --resume."
            )


def from_dict(values: Mapping[str, Any], source: str) -> Config:
    """A Config from JSON values; see `options_of`."""
    return options_of(DeclaredConfig if "declaration" in values else Config, values, source)


def options_of(kind_of_run: type[Kind], values: Mapping[str, Any], source: str) -> Kind:
    """Options from JSON values; what is missing takes its default, `about` is no option.

    Raises:
        InputError: an unknown option or a value of another type.
    """
    hints = hints_of(kind_of_run)
    names = [name for name in hints if name not in ("resume", "config")]
    options: dict[str, Any] = {}
    for word, value in values.items():
        name = RENAMED.get(word, word)
        if name == "about":
            continue
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}."
            raise InputError(f"{source} has the unknown option {name!r}: {hint}")
        if isinstance(value, str) and (instead := GONE.get((name, value))):
            raise InputError(
                f"{source} is of an older version and has the {name} {value}, which is no more: "
                f"train anew with {flag(name)} {instead}, which took its place."
            )
        kind = get_args(hints[name])[0] if get_origin(hints[name]) is Annotated else hints[name]
        options[name] = _typed(kind, value, f"{source}: option {name!r}")
    return kind_of_run(**options)


def _typed(kind: Any, value: Any, what: str) -> Any:
    """The value if it is of that type; int passes for float and a list for a tuple of int."""
    if get_origin(kind) is Literal:
        right, needed = value in get_args(kind), f"one of {', '.join(get_args(kind))}"
    elif get_origin(kind) is tuple:
        right = isinstance(value, list) and all(type(v) is int for v in value)
        needed, value = "a list of whole numbers", tuple(value) if right else value
    elif kind is float:
        right, needed = type(value) in (int, float), "a number"
        value = float(value) if right and abs(value) < 2**1023 else value
    elif kind is str:
        right, needed = isinstance(value, str) and _names_files(value), "a text"
    else:
        right, needed = type(value) is kind, {int: "a whole number", bool: "true or false"}[kind]
    if not right:
        try:
            text = json.dumps(value, default=repr)[:60]
        except (RecursionError, ValueError):
            text = shown(value)
        raise InputError(f"{what} is {text}, but {needed} is needed.")
    return value


def _names_files(text: str) -> bool:
    """True unless no file can have that name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False


def read(path: str) -> Config:
    """The options in a JSON file; see `options_in`."""
    return options_in(Config, path)


def options_in(kind_of_run: type[Kind], path: str) -> Kind:
    """The options in a JSON file.

    Raises:
        InputError: the file is missing, unreadable, no JSON object, or holds what is no option.
    """
    try:
        with open_regular(Path(path)) as file:
            data = file.read(LONGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"--config {path!r} cannot be read ({reason}): give the path of a JSON file."
        ) from error
    try:
        if len(data) > LONGEST_FILE:
            raise ValueError(f"it has more than {LONGEST_FILE:,} bytes")
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--config {path!r} is not valid JSON ({error}): correct it, or take the config.json "
            "of a run."
        ) from error
    if not isinstance(values, dict):
        raise InputError(
            f"--config {path!r} holds {json.dumps(values)[:60]}, but an object like "
            '{"width": 64} is needed.'
        )
    return options_of(kind_of_run, values, f"--config {path!r}")


def from_command_line(
    kind: type[Kind],
    argv: Sequence[str],
    *,
    command: str,
    about: str,
    examples: Sequence[tuple[str, str]] = (),
    resumed: Callable[[str], Kind] | None = None,
) -> Kind:
    """The command line over one of --config FILE, --recipe NAME and the run in --resume DIR.

    resumed: DIR -> the options of the run there.

    Raises:
        InputError: an option, the file or the checkpoint is no good.
    """
    recipe, file, folder = (cli.word_of(argv, f"--{n}") for n in ("recipe", "config", "resume"))
    recipe = recipe if recipe in RECIPES and issubclass(kind, Config) else ""
    named = [f"--{n} {v!r}" for n, v in (("config", file), ("resume", folder)) if v]
    if recipe and named:
        raise InputError(
            f"--recipe {recipe} and {named[0]} are both given, and each brings settings of its "
            "own: leave one of them out."
        )
    if len(named) > 1:
        raise InputError(
            f"{named[0]} and {named[1]} are both given: a resumed run keeps its own options, so "
            "leave one of them out."
        )
    base: Kind | None = None
    if recipe:
        base = kind(recipe=recipe)  # type: ignore[call-arg]
    elif file:
        base = options_in(kind, file)
    elif folder and resumed:
        base = resumed(folder)
    kind = kind if base is None else type(base)  # of a declared program, if the run has one
    return cli.parse(kind, argv, command=command, about=about, examples=examples, base=base)
