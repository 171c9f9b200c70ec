"""make verify-metal and make verify-cuda: one report, whatever its steps say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu import report


def step(text: str, code: int = 0) -> report.Step:
    return report.Step(["-c", f"print({text!r}); raise SystemExit({code})"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("engine", ["metal", "cuda"])
def test_without_its_gpu_it_says_so(folder: Path, monkeypatch, capsys, engine: str):
    monkeypatch.setattr(report, "available", lambda: {engine: "no GPU"})
    steps = {"probe": step("probed"), "tests": step("never")}
    monkeypatch.setattr(report, "steps", lambda engine: steps)
    assert report.main(engine) == 2
    assert "cannot run here (no GPU)" in capsys.readouterr().err
    said = (folder / f"{engine}-report.txt").read_text()
    assert "probed" in said
    assert "never" not in said


@pytest.mark.parametrize(
    ("other", "code", "exit_code", "words"),
    [("a", 0, 0, "agree"), ("b", 0, 1, "DIFFER"), ("a", 3, 1, "agree")],
)
def test_it_compares_signatures_and_names_failures(
    folder: Path, monkeypatch, capsys, other: str, code: int, exit_code: int, words: str
):
    monkeypatch.setattr(report, "available", lambda: {"metal": ""})
    steps = {
        "one": step("signature: a"), "two": step(f"signature: {other}"), "three": step("", code),
    }  # fmt: skip
    monkeypatch.setattr(report, "steps", lambda engine: steps)
    assert report.main() == exit_code
    assert f"signatures of both engines {words}" in (folder / "metal-report.txt").read_text()
    assert ("failed: three" in capsys.readouterr().out) == (code > 0)


@pytest.mark.parametrize("engine", ["metal", "cuda"])
def test_its_steps_name_what_is_there(engine: str):
    root, todo = Path(__file__).parents[2], report.steps(engine)
    tests = [word for step in todo.values() for word in step.words if word.startswith("tests/")]
    assert len(tests) == 5
    assert all((root / test).is_file() for test in tests)
    assert sum(bool(step.env) for step in todo.values()) == len(report.VARIANTS[engine])


def test_environments_of_steps_reach_them(folder: Path, monkeypatch):
    told = report.Step(["-c", "import os; print('signature:', os.environ['SAID'])"], {"SAID": "x"})
    monkeypatch.setattr(report, "available", lambda: {"cuda": ""})
    monkeypatch.setattr(report, "steps", lambda engine: {"one": told})
    assert report.main("cuda") == 0
    assert "signature: x" in (folder / "cuda-report.txt").read_text()
