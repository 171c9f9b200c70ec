"""Documentation that runs: blocks of Python, commands, links, and pages that can be found."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from test_examples import blocks

import eggroll as eg
from eggroll import __main__
from eggroll.cli import command as cli

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
# Page -> the test that runs its blocks, which need a compiler, a folder of their own or checks.
ELSEWHERE = {
    "python.md": "test_examples.py",
    "examples.md": "test_examples.py",
    "native.md": "test_native_build.py",
    "running.md": "test_trainer_log.py",
    "float_kernels.md": "test_float_kernels.py",
}
RUN = [page for page in PAGES if page.name not in ELSEWHERE and blocks(page)]
TYPED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LINKED = [
    *TYPED,
    ROOT / "CHANGELOG.md",
    *ROOT.glob("records/**/*.md"),
    *ROOT.glob("experiments/*/*.md"),
]
COMMANDS = {name: importlib.import_module(path) for name, (path, _) in __main__.COMMANDS.items()}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
# Options in the documentation of programs other than eggroll's commands.
OTHERS = {
    *("--help", "--version", "--hosts", "--over", "--backend", "--output-hostfile", "--hostfile"),
    *("--adapter-path", "--cwd", "--python", "--checkpoint", "--logdir", "--project"),
}


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They are one program, each at its lines of the page; comments say what is printed."""
    monkeypatch.chdir(tmp_path)
    names, out = {"__name__": page.stem}, io.StringIO()
    for line, program in blocks(page):
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * line + program, str(page), "exec"), names)
    said = re.findall(r"^# prints (.*)$", "".join(p for _, p in blocks(page)), re.M)
    assert not said or out.getvalue().splitlines() == said


def test_blocks_are_run_somewhere():
    assert {"index.md", "estimators.md", "extend.md"} <= {page.name for page in RUN}
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text()
        assert blocks(ROOT / "docs" / page)


def test_the_readme_has_one_block_and_a_test_runs_it():
    (only,) = (program for _, program in blocks(ROOT / "README.md"))
    assert "eg.Trainer(" in only, "test_examples.py runs the block of README with a Trainer"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command that a page shows in a block: where, and its words."""
    for page in TYPED:
        for kind, block in FENCE.findall(page.read_text()):
            lines = block.replace("\\\n", " ").splitlines() if kind in ("", "sh", "console") else []
            for line in lines:
                with contextlib.suppress(ValueError):  # no command line
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    if words and words[0] in ("eggroll", "python", "make"):
                        yield f"{page.name}: {line.strip()}", words


SHOWN = list(commands())


def own(words: list[str]) -> tuple[str, list[str]] | None:
    """The command of eggroll in these words and its arguments; None for another program."""
    if words[0] == "eggroll":
        return words[1], words[2:]
    if words[1:2] == ["-m"] and words[2].startswith("eggroll."):
        return words[2].removeprefix("eggroll."), words[3:]
    return None


@pytest.fixture
def parsing_only(monkeypatch: pytest.MonkeyPatch):
    """Commands end once their options are read."""

    def only(command: cli.Command[Any], argv: list[str]) -> int:
        def work() -> int:
            command._read(argv)
            return cli.DONE

        return cli.run(work)

    monkeypatch.setattr(cli.Command, "__call__", only)


def taken(words: list[str]) -> list[str]:
    """Words without the options that read a file at once, and without an ellipsis."""
    kept = [word for word in words if word != "..."]
    for option in ("--resume", "--config"):
        while option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    return kept


@pytest.mark.usefixtures("parsing_only")
def test_commands_of_the_pages_have_the_options_they_are_shown_with(call: Command):
    assert len(SHOWN) > 40
    for place, words in SHOWN:
        found = own(words)
        while found and found[0] == "launch":
            found = own(found[1][found[1].index("--") + 1 :]) if "--" in found[1] else None
        if found:
            name, arguments = found
            if name == "COMMAND":
                continue
            ended = call(*taken(arguments), main=COMMANDS[name].main)
            assert ended.code == 0, (place, ended.err)


def test_other_programs_of_the_pages_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for place, words in SHOWN:
        if words[0] == "make":
            named = [word for word in words[1:] if "=" not in word]
            assert set(named) <= targets, place
        elif words[0] == "python" and words[1] == "-m" and not own(words):
            assert words[2].split(".")[0] in ("experiments", "gpu", "mlx", "pip", "http"), place
            assert "experiments" not in words[2] or importlib.util.find_spec(words[2]), place
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists() or words[1].startswith("tests/"), place


def options_of_script(span: str) -> set[str]:
    """The options that a script of the repository declares, if the span is a call of one."""
    script = re.match(r"`python (\S+\.py)\b", span)
    text = (ROOT / script[1]).read_text() if script else ""
    return set(re.findall(r"[\"'](--[a-z][a-z-]+)[\"']", text))


def test_options_named_in_the_text_exist():
    known: set[str] = set(OTHERS)
    for command in COMMANDS.values():
        for field in fields(command.main.options):
            known.update((cli.flag(field.name), cli.flag(f"no_{field.name}")))
    named = {
        (page.name, option)
        for page in PAGES
        for span in re.findall(r"`[^`\n]+`", page.read_text())
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)
        if option not in options_of_script(span)
    }
    assert len(named) > 40
    assert {pair for pair in named if pair[1] not in known} == set()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give a page's headings."""
    text = FENCE.sub("", page.read_text())
    heads = [re.sub(r"[`*]|\]\([^)]*\)", "", head) for head in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_the_map_of_the_readme_has_every_package():
    table = (ROOT / "README.md").read_text().partition("## Map\n")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in (ROOT / "eggroll").glob("*/__init__.py")}
    assert set(re.findall(r"`(\w+)/`", table)) == packages | {"eggroll"}


def test_links_lead_somewhere():
    found = []
    for page in LINKED:
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
            path, _, anchor = target.partition("#")
            if ":" in path:
                continue
            to = (page.parent / path).resolve() if path else page
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
                found.append(f"{page.relative_to(ROOT)}: {target}")
    assert found == []


def test_the_navigation_has_every_page():
    listed = re.findall(r"^ +- .*: (\w[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == [page.name for page in PAGES]


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == eg.__version__
