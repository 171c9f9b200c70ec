"""Every example and every Python block of the guide runs as it stands, with small sizes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 40  # lines of an example

# Example -> (its arguments, what it prints).
EXAMPLES = {
    "black_box": (("60", "0", "64"), r"samples 1757, differences 1090, network \d+ bytes"),
    "cartpole": (("5", "3", "64"), r"mean return \d+\.\d after \d updates"),
    "catch": (("40",), r"caught 100%"),
    "digits": (("60",), r"9\d\.\d\d% right"),
    "language_model": (("3",), r"update 3: \d\.\d{3} bits per byte\n.*\ndef "),
    "native_world": (("40",), r"update 40: (0\.9[5-9]|1\.0)\d+ caught"),
    "recurrent": (("60",), r"\d\.\d{3} bits per token; with memory 1\.8 are possible"),
    "sampling": (("40",), r"<LanguageModel: egg, .* 40 updates>\ntemperature 0\.0: '3 4 5 "),
}
ELSEWHERE = {"native_world"}  # run by test_native_build.py, as it needs a compiler
# Example -> the package of an optional extra that it needs.
NEEDS = {"cartpole": "gymnasium", "digits": "sklearn"}


def run(path: Path, folder: Path, *words: str) -> str:
    """The output of a script, run in a folder of its own."""
    command = [sys.executable, str(path), *words]
    environment = os.environ | {"PYTHONWARNINGS": "error::DeprecationWarning:__main__"}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path):
    words, printed = EXAMPLES[name]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    out = run(ROOT / "examples" / f"{name}.py", tmp_path, *words)
    assert re.search(printed, out), out


def test_every_example_is_run_and_short():
    found = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
    assert found.keys() == EXAMPLES.keys() | ELSEWHERE
    lengths = {name: len(path.read_text().splitlines()) for name, path in found.items()}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with its line."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start(1)), found[1])
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]


def test_the_guide_runs_and_prints_what_it_says(tmp_path: Path):
    """Its blocks are one program, each at its lines of the page; comments say what is printed."""
    page = (ROOT / "docs" / "python.md").read_text()
    found = list(re.finditer(r"^```python\n(.*?)^```", page, re.M | re.S))
    lines = [""] * page.count("\n")
    for block in found:
        start = page.count("\n", 0, block.start(1))
        lines[start : start + block[1].count("\n")] = block[1].splitlines()
    said = [line.removeprefix("# prints ") for line in lines if line.startswith("# prints ")]
    assert len(found) >= 5
    assert len(said) >= 5
    script = tmp_path / "python.py"
    script.write_text("\n".join(lines))
    assert run(script, tmp_path).splitlines() == said


def test_the_readmes_program_learns(tmp_path: Path):
    (_, program), *_ = (b for b in blocks(ROOT / "README.md") if "eg.Trainer(" in b[1])
    script = tmp_path / "readme.py"
    script.write_text(program)
    assert float(run(script, tmp_path)) > 0.95
