"""Completion knows what help lists, and works in the shells that are installed here."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from conftest import Command

from eggroll import __main__, completion

ASK = """
source "$1"; shift
complete -p eggroll >/dev/null
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
$(complete -p eggroll | sed 's/.*-F \\([^ ]*\\).*/\\1/') eggroll
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    made = {shell: folder / f"eggroll.{shell}" for shell in completion.SHELLS}
    for shell, path in made.items():
        path.write_text(completion.script(shell, __main__.COMMANDS))
    return made


def completed(scripts: dict[str, Path], *words: str) -> set[str]:
    """What bash offers in place of the last word."""
    argv = ["bash", "--norc", "-c", ASK, "bash", scripts["bash"], "eggroll", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_every_command_is_there(scripts: dict[str, Path]):
    for module, _ in __main__.COMMANDS.values():
        assert is_dataclass(importlib.import_module(module).main.options)
    assert completed(scripts, "") == __main__.COMMANDS.keys()


def test_every_option_that_help_lists_is_completed(scripts: dict[str, Path], call: Command):
    for name in __main__.COMMANDS:
        page = call(name, "--help", main=__main__.main).out
        heads = re.findall(r"^  (--\S+?)(?:, (--\S+))?(?: .*)?$", page, re.MULTILINE)
        flags = {flag for pair in heads for flag in pair if flag}
        assert completed(scripts, name, "--") == flags, name


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["train", "--gates", ""], {"clip", "table"}),
        (["train", "--engine", "c"], {"cpu", "cuda"}),
        (["adamw", "--track", "t"], {"tensorboard", "trackio"}),
        (["sweep", "--pruner", "m"], {"median"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_choices_are_completed(words: list[str], offered: set[str], scripts: dict[str, Path]):
    assert completed(scripts, *words) == offered


def test_files_and_folders_are_completed(
    scripts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "runs.txt").touch()
    assert completed(scripts, "train", "--data", "r") == {"run", "runs.txt"}
    assert completed(scripts, "train", "--resume", "r") == {"run"}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_command_prints_what_its_shell_reads(
    shell: str, scripts: dict[str, Path], call: Command
):
    ended = call("completion", shell, main=__main__.main)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == scripts[shell].read_text() + "\n"
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    argv = [shell, "-n", scripts[shell]]
    assert subprocess.run(argv, capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize("words", [[], ["csh"]])
def test_other_shells_are_refused(call: Command, words: list[str]):
    ended = call("completion", *words, main=__main__.main)
    assert (ended.code, ended.out) == (2, "")
    assert "one of bash, zsh, fish is needed, as in `" in ended.err
