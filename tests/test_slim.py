"""A slim installation, and one beside another package of the same name: each one sentence."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import try_wheel
from conftest import TINY, Command

from eggroll import files, probe
from eggroll.errors import EXTRAS, InputError
from eggroll.training import verify

ROOT = Path(__file__).parents[1]
# Refuses to import what a slim installation lacks, whatever is installed here.
WITHOUT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Finder())
sys.argv = ["eggroll", *{words!r}]
from eggroll.cli import entry
sys.exit(entry.main())
"""


def slim(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(missing=sorted(EXTRAS), words=[str(word) for word in words])
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_a_slim_installation_trains_samples_resumes_and_verifies(tmp_path: Path, call: Command):
    whole = call(*TINY, "--out", tmp_path / "whole").signature
    ended = slim(tmp_path, "train", *TINY, "--out", "run")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == f"signature: {whole}"
    assert "no curves.png: the package matplotlib, by which pictures are drawn" in ended.stderr
    assert not (tmp_path / "run" / "curves.png").exists()
    for words in (
        ("generate", "run", "--prompt", "3 4 5"),
        ("train", "--resume", "run", "--steps", 8),
        ("verify", "run"),
        ("replay", "run"),
        ("probe",),
    ):
        ended = slim(tmp_path, *words)
        assert ended.returncode == 0, (words, ended.stderr)


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("plot", "run"), "matplotlib"),
        (("bench", "--quick", "--picture", "x.png"), "matplotlib"),
        (("sweep", "--data", "count"), "optuna"),
        (("train", "--data", "tinystories"), "datasets"),
        (("train", "--vocabulary", "512"), "tokenizers"),
        (("completion", "bash"), "shtab"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, finished: Path, words, package: str):
    (tmp_path / "run").symlink_to(finished)
    ended = slim(tmp_path, *words)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""  # before any work
    (line,) = ended.stderr.splitlines()[-1:]
    assert line.startswith("error: ")
    assert package in line
    assert f"pip install {package}" in line


def test_every_extra_is_a_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {word.partition(">")[0] for word in project["dependencies"]}
    assert EXTRAS.keys() - {"sqlalchemy"} <= names  # which comes with optuna


def test_the_documented_set_is_that_of_the_project():
    """The command in docs/running.md asks for what pyproject.toml does, and test-wheel tries it."""
    page = (ROOT / "docs" / "running.md").read_text()
    (line,) = re.findall(r'^pip install ("mlx.*)$', page, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split("[>=[]", word)[0]: word for word in reversed(project["dependencies"])}
    needed = [asked[name].partition(";")[0].strip() for name in try_wheel.SLIM]
    assert re.findall(r'"([^"]+)"', line) == needed
    assert asked.keys() == {*try_wheel.SLIM} | EXTRAS.keys() - {"sqlalchemy"}


def test_another_package_of_the_name_is_refused(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
):
    about = tmp_path / "eggroll_es-1.2.dist-info"
    about.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    (about / "RECORD").write_text("eggroll_es/__init__.py,,\n")
    files.check_alone()
    assert call(main=verify.main).err.startswith("error: no folder is given")
    (about / "RECORD").write_text("eggroll/__init__.py,sha256=x,7\neggroll_es-1.2.dist-info/A,,\n")
    with pytest.raises(InputError, match="has a package named eggroll too"):
        files.check_alone()
    ended = call("--help", main=probe.main)
    assert ended.code == 2
    assert "the distribution eggroll_es 1.2 in" in ended.err
    assert "pip uninstall eggroll-es" in ended.err
    about.rename(tmp_path / "eggroll_mlx-9.dist-info")  # an older one of ours
    files.check_alone()
