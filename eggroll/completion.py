"""Completion of commands, options and their values in a shell: `eggroll completion bash`."""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.completion"))

import argparse
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import tyro

from eggroll.cli import command as cli
from eggroll.cli import help
from eggroll.errors import InputError

ABOUT = (
    "Prints a script that completes commands, options and their values in a shell, made from the "
    "options that this version has."
)
EXAMPLES = (
    ("bash > ~/.local/share/bash-completion/completions/eggroll", "for every bash from now on"),
    ("fish > ~/.config/fish/completions/eggroll.fish", "for fish; docs/running.md has zsh"),
)
SHELLS: Final = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class CompletionOptions:
    """Options of eggroll.completion."""

    shell: Annotated[str, tyro.conf.arg(metavar="|".join(SHELLS)), tyro.conf.Positional] = ""
    """The shell that reads the script."""


def script(shell: str, commands: Mapping[str, tuple[str, str]]) -> str:
    """The script for a shell. commands: name -> the module with its `main`, and what it does.

    Options, choices and kinds of files come from the declarations that --help is made of.
    """
    import shtab

    parser = argparse.ArgumentParser("eggroll")
    parser.add_argument("--version", action="store_true", help=help.SAME_FOR_ALL["--version"])
    parsers = parser.add_subparsers()
    for name, (module, does) in commands.items():
        command = parsers.add_parser(name, help=does)
        command.add_argument("--version", action="store_true", help=help.SAME_FOR_ALL["--version"])
        add_options(command, importlib.import_module(module).main.options)
    text: str = shtab.complete(parser, shell=shell)
    return text


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Adds what --help lists of a dataclass to a parser that only completion reads."""
    texts, hints = help.option_texts(kind), help.hints_of(kind)
    for field in fields(kind):
        hint = hints[field.name]
        notes = getattr(hint, "__metadata__", ())
        declared = get_args(hint)[0] if notes else hint
        if tyro.conf.Suppress in notes:
            continue
        help_text = next(
            (n.help for n in notes if getattr(n, "help", "")), texts.get(field.name, "")
        )
        first_sentence = re.split(r"(?<=[^.])[.;:](?:\s|$)", help_text)[0].replace("%", "%%")
        add_option(parser, field, declared, notes, first_sentence)


def add_option(
    parser: argparse.ArgumentParser,
    field: Field[Any],
    kind: Any,
    notes: Sequence[Any],
    help_text: str,
) -> None:
    """Adds one option, with its choices, or with the files that it may name."""
    flag = cli.flag(field.name)
    if kind is bool:
        parser.add_argument(flag, action="store_true", help=help_text)
        parser.add_argument(f"--no-{flag[2:]}", action="store_true", help=f"not {flag}")
        return
    literals = [t for t in (kind, *get_args(kind)) if get_origin(t) is Literal]
    metavar = next((n.metavar for n in notes if getattr(n, "metavar", None)), "")
    words = list(get_args(literals[0])) if literals else metavar.split("|")
    choices = words if all(re.fullmatch(r"[a-z][a-z0-9-]*", str(word)) for word in words) else None
    place = tyro.conf.Positional in notes
    repetition: dict[str, Any] = {"nargs": "*"} if get_origin(kind) is tuple else {}
    argument: Any = parser.add_argument(
        field.name if place else flag, help=help_text, choices=choices, **repetition
    )
    if files := "file" if "FILE" in metavar else "directory" if "DIR" in metavar else "":
        import shtab

        argument.complete = shtab.FILE if files == "file" else shtab.DIRECTORY


@cli.command(CompletionOptions, name="completion", about=ABOUT, examples=EXAMPLES)
def main(options: CompletionOptions) -> None:
    """Command line of eggroll.completion."""
    if options.shell not in SHELLS:
        raise InputError(
            f"the shell is {options.shell[:60]!r}: one of {', '.join(SHELLS)} is needed, as in "
            f"`{help.invocation('completion')} bash`."
        )
    from eggroll.__main__ import COMMANDS

    print(script(options.shell, COMMANDS))
