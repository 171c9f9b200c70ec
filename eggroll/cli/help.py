"""The text of `--help`: usage, examples, and the declared options in groups.

An option's group, metavar, default and help are read from its declaration in a dataclass.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import tyro

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CHANGEABLE = "changeable"  # marks options a resumed run may change: no past update depends on them
COLUMN, NARROWEST, WIDEST = 26, 60, 100  # where help begins; widths of the page
INNER = ("verify", "finetune", "export")  # commands of packages, without a module of their name
SAME_FOR_ALL = {"--help": "Show this page.", "--version": "Show the version."}


class Group(Enum):
    """A heading under which `--help` lists the options that are declared with it, in this order."""

    OPTIONS = "options"  # declared without a group
    SWEEP = "sweep"
    RUN = "run"
    DATA = "data"
    NETWORK = "network"
    EVOLUTION = "evolution strategy"
    GRADIENTS = "gradients"
    ENGINE = "engine"
    OUTPUT = "validation and samples"
    RANKS = "several processes (mlx.launch)"


def hints_of(kind: type) -> Mapping[str, Any]:
    """An option's name -> its declared type and notes."""
    return _hints(kind)


@functools.cache  # as this takes longer than to look at all options
def _hints(kind: type) -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(kind, include_extras=True))


def invocation(command: str) -> str:
    """The words that start a command of this package, as whoever runs this process would type them.

    command: a command of eggroll, or the path of a script.
    """
    if Path(sys.argv[0]).name == "eggroll":
        return f"{_typed(sys.argv[0])} {command}"
    if not command.endswith(".py"):
        command = f"-m eggroll{' ' if command in INNER else '.'}{command}"
    return f"{_typed(sys.executable)} {command}"


def _typed(program: str) -> str:
    """A program's name if the shell finds that very one by it, else the shorter path to it."""
    names = (Path(program).name, "python", "python3")
    for name in names if "python" in Path(program).name else names[:1]:
        if shutil.which(name) == program:
            return name
    inside = os.path.relpath(program)
    if inside.startswith(".."):
        return program
    return inside if os.sep in inside else os.path.join(".", inside)


def page(
    kind: type[DataclassInstance],
    *,
    command: str,
    about: str,
    examples: Sequence[tuple[str, str]] = (),
    base: DataclassInstance | None = None,
) -> str:
    """The text that `--help` prints; `base` holds defaults that differ from the declared ones.

    examples: (words after the command, what they do).
    """
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    start, texts = invocation(command), option_texts(kind)
    hints = hints_of(kind)
    groups: dict[Group, list[str]] = {}
    places = ""
    for field in fields(kind):
        notes = get_args(hints[field.name])[1:] if _is_annotated(hints[field.name]) else ()
        if tyro.conf.Suppress in notes:
            continue
        group = next((note for note in notes if isinstance(note, Group)), Group.OPTIONS)
        name = _heading(field, hints[field.name])
        if tyro.conf.Positional in notes:
            places += f" {name}"
        default = _default(field, field.default if base is None else getattr(base, field.name))
        groups.setdefault(group, []).append(
            _entry(name, (_note(notes, "help") or texts.get(field.name, "")) + default, width)
        )
    lines = [f"usage: {start}{places} [OPTIONS]", "", *wrapped(about, width, "")]
    lines += ["", _bold("examples")] * bool(examples)
    lines += [f"  {start} {words}\n      {does}" for words, does in examples]
    for group in (group for group in Group if group in groups):
        lines += ["", _bold(group.value), *groups[group]]
    lines += ["", _bold("help"), *(_entry(*pair, width) for pair in SAME_FOR_ALL.items())]
    return "\n".join(lines)


def option_texts(kind: type) -> dict[str, str]:
    """The string that stands below each option in its class, those of base classes included."""
    texts: dict[str, str] = {}
    for owner in reversed([c for c in kind.__mro__ if "__dataclass_fields__" in vars(c)]):
        try:
            source = inspect.getsource(owner)
        except (OSError, TypeError):  # made by a program, as scripts.py does
            continue
        (tree,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(tree, ast.ClassDef)
        for this, below in zip(tree.body, tree.body[1:], strict=False):
            if not isinstance(this, ast.AnnAssign) or not isinstance(this.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                texts[this.target.id] = " ".join(str(below.value.value).split())
    return texts


def _is_annotated(hint: Any) -> bool:
    return hasattr(hint, "__metadata__")


def _heading(field: Field[Any], hint: Any) -> str:
    """An option's flag and metavar: `--pop N`, `--clt, --no-clt`; of a place, its metavar alone."""
    kind, *notes = get_args(hint) if _is_annotated(hint) else (hint,)
    flag = "--" + field.name.replace("_", "-")
    metavar = _note(notes, "metavar")
    if tyro.conf.Positional in notes:
        return metavar or field.name.upper()
    if kind is bool:
        return f"{flag}, --no-{flag[2:]}"
    return f"{flag} {metavar or metavar_of(kind)}"


def _note(notes: Sequence[Any], name: str) -> str:
    """The help or the metavar that `tyro.conf.arg` declares; empty if it is not there."""
    return next((found for note in notes if (found := getattr(note, name, None))), "")


def metavar_of(kind: Any) -> str:
    """The word that stands for a value: N, X, one of the choices, or TEXT."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        one = metavar_of(get_args(kind)[0])
        return f"{one} {one} ..."
    if type(None) in get_args(kind):
        return metavar_of(get_args(kind)[0])
    return {int: "N", float: "X", str: "TEXT"}[kind]


def _default(field: Field[Any], value: Any) -> str:
    """The default in brackets; nothing for an empty one."""
    if value is MISSING or value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        flag = field.name.replace("_", "-")
        return f" [--{flag}]" if value else f" [--no-{flag}]"
    return f" [{' '.join(map(str, value)) if isinstance(value, tuple) else value}]"


def _entry(name: str, text: str, width: int) -> str:
    """An option's lines: its help begins beside the name, or below a long one."""
    indent = " " * COLUMN
    body = wrapped(text, width, indent) or [indent]
    if len(name) + 4 > COLUMN:
        return "\n".join([*wrapped(name, width, "  "), *body])
    return "\n".join([f"  {name}".ljust(COLUMN) + body[0][COLUMN:], *body[1:]])


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most that width, cut at spaces alone so that no name is torn."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _bold(text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return f"{text}:" if plain else f"\x1b[1m{text}:\x1b[0m"
