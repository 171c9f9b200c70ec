"""Help is made of the declarations, and names every option and every command."""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro
from conftest import Command, Ended

from eggroll import __main__, __version__
from eggroll.baseline.backprop import AdamwOptions as Baseline
from eggroll.cli import command as cli
from eggroll.cli import help
from eggroll.training.config import TYPES, Config

COMMANDS = {name: importlib.import_module(path) for name, (path, _) in __main__.COMMANDS.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_of_a_command(
    call: Command, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "100")
    pages = [call(word, main=COMMANDS[name].main) for word in ("--help", "-h")]
    assert pages[0] == pages[1]
    assert (pages[0].code, pages[0].err) == (0, "")
    lines = pages[0].out.splitlines()
    assert lines[0].startswith("usage: ")
    module = importlib.util.find_spec(f"eggroll.{name}")
    start = f"eggroll.{name} " if module else f"eggroll {name} "
    assert lines[0].split(" -m ")[1].startswith(start)
    assert max(map(len, lines)) <= 100
    assert lines.count("examples:") == 1
    assert sum(line.startswith(f"  {lines[0].split()[1]} -m") for line in lines) == 2
    for option in TYPES if name == "train" else ():
        assert re.search(rf"^  {cli.flag(option)}[ ,]", pages[0].out, re.MULTILINE)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_tells_the_version(call: Command, name: str):
    main = COMMANDS[name].main if name else __main__.main
    assert call("--version", main=main) == Ended(0, f"eggroll {__version__}\n", "")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_command_all_are_listed(call: Command, words: list[str]):
    ended = call(*words, main=__main__.main)
    assert ended.code == 0
    for name, (_, does) in __main__.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(does)}$", ended.out, re.MULTILINE)
    assert max(map(len, ended.out.splitlines())) <= 80


def test_help_is_a_command_too(call: Command):
    assert call("help", main=__main__.main) == call(main=__main__.main)
    page = call("help", "replay", main=__main__.main)
    assert page.code == 0
    assert page == call("replay", "--help", main=__main__.main)
    assert call("help", "fly", main=__main__.main).code == 2


@pytest.mark.parametrize("columns", range(60, 100, 3))
def test_no_option_is_torn_at_its_hyphens(monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    about = "Carries errors back (--recipe feedback), and --checkpoint-every so many updates. " * 9
    for line in help.page(Sample, command="train", about=about).splitlines():
        assert not re.search(r"(^|[ (])--$|-$", line), line
        assert not re.match(r" *(recipe|checkpoint|every)\b(?!.*--)", line[:12]), line


@dataclass(frozen=True)
class Base:
    near: Annotated[int, cli.Range(0, 9), help.Group.ENGINE] = 4
    """How near."""
    secret: Annotated[int, tyro.conf.Suppress] = 1
    """Not shown."""


@dataclass(frozen=True)
class Sample(Base):
    """A command with every kind of option."""

    folder: Annotated[str, tyro.conf.arg(metavar="DIR"), tyro.conf.Positional] = ""
    """Where."""
    wide: bool = False
    """Spreads out."""
    kind: Annotated[Literal["a", "b"], help.Group.DATA] = "a"
    """One of two, and so on
    over two lines."""
    share: Annotated[float | None, help.Group.DATA] = None
    """None by itself."""
    maybe: Annotated[Literal["x", "y"] | None, help.Group.DATA] = None
    """One of two or none."""
    many: Annotated[tuple[int, ...], tyro.conf.arg(help="From the note.")] = (1, 2)
    """Not from here."""


@pytest.mark.parametrize("kind", [Config, Baseline])
def test_every_option_of_a_run_has_a_group_and_a_text(kind: type):
    texts = help.option_texts(kind)
    for name, hint in cli.hints_of(kind).items():
        notes = hint.__metadata__
        assert [type(note) for note in notes].count(help.Group) == 1, name
        assert next((n.help for n in notes if getattr(n, "help", "")), texts.get(name)), name


@pytest.mark.parametrize("name", ["bench", "report", "sweep"])
def test_a_package_runs_as_a_command(name: str, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module(f"eggroll.{name}", run_name="__main__")
    assert f"-m eggroll.{name} " in capsys.readouterr().out.splitlines()[0]


def test_help_shows_the_settings_of_the_recipe(call: Command):
    def default(name: str, *words: str) -> str:
        page = call(*words, "--help").out
        return re.search(rf"^  {name} .*?\[([^]]*)\]$", page, re.MULTILINE | re.DOTALL)[1]

    assert (default("--pop"), default("--pop", "--recipe", "language")) == ("10240", "4096")
    assert default("--recipe", "--recipe", "language") == "language"


def test_launch_shows_the_defaults_of_mlx(call: Command):
    page = " ".join(call("--help", main=COMMANDS["launch"].main).out.split())
    assert "--repeat-hosts N Ranks on this machine, or on each host; -n for short. [1]" in page
    assert "First port of the ring, which takes one for every rank. [32323]" in page


def test_a_page_of_help_shows_what_is_declared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "argv", ["/somewhere/eggroll"])
    page = help.page(
        Sample,
        command="sample",
        about="Shows.",
        examples=[("here", "looks")],
        base=Sample(wide=True),
    )
    assert page.splitlines() == [
        "usage: /somewhere/eggroll sample DIR [OPTIONS]",
        "",
        "Shows.",
        "",
        "examples:",
        "  /somewhere/eggroll sample here",
        "      looks",
        "",
        "options:",
        "  DIR                     Where.",
        "  --wide, --no-wide       Spreads out. [--wide]",
        "  --many N N ...          From the note. [1 2]",
        "",
        "data:",
        "  --kind a|b              One of two, and so on over two",
        "                          lines. [a]",
        "  --share X               None by itself.",
        "  --maybe x|y             One of two or none.",
        "",
        "engine:",
        "  --near N                How near. [4]",
        "",
        "help:",
        "  --help                  Show this page.",
        "  --version               Show the version.",
    ]


def test_commands_are_spelled_as_they_can_be_typed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "eggroll"):
        (folder / name).touch(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    assert help.invocation("train") == "env/bin/python -m eggroll.train"
    assert help.invocation("tool.py") == "env/bin/python tool.py"
    monkeypatch.setenv("PATH", str(folder))
    assert help.invocation("train") == "python -m eggroll.train"
    monkeypatch.setattr(sys, "argv", [str(folder / "eggroll")])
    assert help.invocation("train") == "eggroll train"
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "argv", ["./eggroll"])
    assert help.invocation("train") == "./eggroll train"
