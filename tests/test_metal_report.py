"""make verify-metal: one report, whatever its steps say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "metal"))
import report


def step(text: str, code: int = 0) -> list[str]:
    return ["-c", f"print({text!r}); raise SystemExit({code})"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_metal_it_says_so(folder: Path, monkeypatch, capsys):
    monkeypatch.setattr(report, "available", lambda: {"metal": "no GPU"})
    monkeypatch.setattr(report, "STEPS", {"probe": step("probed"), "tests": step("never")})
    assert report.main() == 2
    assert "cannot run here (no GPU)" in capsys.readouterr().err
    said = (folder / "metal-report.txt").read_text()
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
    monkeypatch.setattr(report, "STEPS", steps)
    assert report.main() == exit_code
    assert f"signatures of both engines {words}" in (folder / "metal-report.txt").read_text()
    assert ("failed: three" in capsys.readouterr().out) == (code > 0)
