"""Every example and every Python block of the guide runs as it stands, with small sizes."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import eggroll as eg

ROOT = Path(__file__).parents[1]
LONGEST = 40  # lines of an example
PAGE = "eggroll_in_a_page"  # longer, without the package: test_page.py runs and measures it
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
LARGEST = 400_000  # bytes of the notebook, its pictures included

# Example -> (its options, what it prints).
EXAMPLES = {
    "black_box": (
        "--steps 75 --pop 64",
        r"update 75: \d+ bytes for the best member\nsamples 1757, differences 1090, network \d+ ",
    ),
    "cartpole": ("--steps 5 --seed 3 --pop 64", r"mean return \d+\.\d in 100 unseen episodes"),
    "catch": ("--steps 40", r"after \d+ updates the model caught 100%$"),
    "compare_adamw": (
        "--steps 2 --data count",
        r"\nlanguage +\d\.\d{3} +32,768 .*\nfeedback +\d\.\d{3} +32,768 .*\n"
        r"adamw +\d\.\d{3} +32,768 .*\nwritten: runs/compare/compare.png",
    ),
    "continue_run": ("--steps 4", r"stopped at update 2: (?s:.*)the same bits: True"),
    "custom_fitness": (
        "--steps 30 --pop 128",
        r"by accuracy: unseen .*\nby f1 .* F1 0\.[4-9]\d+, found \d+ of 39",
    ),
    "digits": ("--steps 60", r"9\d\.\d\d% right of 397 unseen images"),
    "labels": ("--steps 150", r"9\d\.\d\d% right of 397 unseen images\nwritten: digits.h"),
    "language_model": ("--steps 3", r"\d\.\d{3} bits per byte of a line of code\ndef "),
    "maze": ("--steps 40", r"after \d+ updates the model leaves 100% of the mazes"),
    "native_world": ("--steps 40", r"update 40: (0\.9[5-9]|1\.0)\d+ caught"),
    "pendulum": ("--steps 3 --pop 16", r"mean return -\d+ in 100 unseen episodes"),
    "phases": (
        "--steps 120",
        r"by labels: F1 0\.[01]\d+ of unseen points\nby evolution: F1 0\.[45]\d+ of unseen points",
    ),
    "recurrent": ("--steps 60", r"\d\.\d{3} bits per token; with memory 1\.8 are possible"),
    "sampling": ("--steps 40", r"<LanguageModel: egg, .* 40 updates>\ntemperature 0\.0: '3 4 5 "),
    "thermostat": ("--steps 30", r"minute 120: (19|20)\.\d\d degrees"),
    "sweep_and_train": (
        "--trials 2 --budget-tokens 90000",
        r"best: sigma_shift \d, .*, 10 updates\n(?s:.*)bits per number after 40 updates\n3 4 ",
    ),
    "tune_language_model": (
        "--steps 10 --pop 32",
        r"before: \['.*\]\nafter:  \['.*\] mean reward \d\.\d\d",
    ),
}
# Example -> the package of an optional extra that it needs.
NEEDS = {
    "cartpole": "gymnasium",
    "custom_fitness": "sklearn",
    "digits": "sklearn",
    "tune_language_model": "mlx_lm",
    "labels": "sklearn",
    "pendulum": "gymnasium",
}


def run(path: Path, folder: Path) -> str:
    """The output of a script, run in a folder of its own."""
    environment = os.environ | {"PYTHONWARNINGS": "error::DeprecationWarning:__main__"}
    ended = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs an example as `python NAME.py WORDS` does, in this process, which has its imports."""

    def call(name: str | Path, *words: str) -> tuple[int, str, str]:
        if name in NEEDS:
            pytest.importorskip(NEEDS[str(name)])
        path = name if isinstance(name, Path) else ROOT / "examples" / f"{name}.py"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        shown = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.out, shown.err

    return call


@pytest.mark.filterwarnings("ignore:update .* pairs differed in value")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(example: Call, no_curves: None, no_pictures: None, name: str):
    words, printed = EXAMPLES[name]
    code, out, err = example(name, *words.split())
    assert code == 0, err
    assert re.search(printed, out), out


def test_every_example_is_run_listed_and_short():
    found = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
    assert found.keys() == EXAMPLES.keys() | {PAGE}
    lengths = {name: len(found[name].read_text().splitlines()) for name in EXAMPLES}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
    page = (ROOT / "docs" / "examples.md").read_text()
    listed = re.findall(r"\(\.\./examples/(\w+\.(?:py|ipynb))\)", page)
    assert sorted(listed) == sorted([*(path.name for path in found.values()), NOTEBOOK.name])


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "--"),
        (["--speed", "3"], "error: '--speed' is no option of "),
        (["--NUMBER", "many"], "'many' is given, but a whole number is needed"),
        (["--NUMBER", "0"], " is 0: "),
    ],
)
def test_options_of_an_example_are_checked(example: Call, name: str, words: list[str], said: str):
    number = "trials" if name == "sweep_and_train" else "steps"
    code, out, err = example(name, *(word.replace("NUMBER", number) for word in words))
    helped = words == ["--help"]
    assert code == (0 if helped else 2)
    assert said in (out if helped else err)
    assert len(err.splitlines()) == (0 if helped else 1)


@pytest.mark.parametrize("name", ["custom_fitness", "digits", "labels", "tune_language_model"])
def test_a_package_that_an_example_lacks_is_named(
    example: Call, name: str, monkeypatch: pytest.MonkeyPatch
):
    package = NEEDS[name]
    monkeypatch.delitem(NEEDS, name)
    for module in (package, "sklearn.datasets", "mlx_lm.models"):
        monkeypatch.setitem(sys.modules, module, None)
    said = {"sklearn": "scikit-learn here: pip install 'eggroll-mlx[examples]'",
            "mlx_lm": "mlx-lm here: pip install 'eggroll-mlx[lm]'"}[package]  # fmt: skip
    assert example(name) == (2, "", f"error: no {said}.\n")


def test_the_page_of_examples_runs(example: Call, tmp_path: Path):
    ((_, program),) = blocks(ROOT / "docs" / "examples.md")
    (tmp_path / "own.py").write_text(program)
    code, out, err = example(tmp_path / "own.py", "--steps", "9", "--pop", "64")
    assert code == 0, err
    assert re.fullmatch(r"\d\.\d{3} bits per token after 9 updates\n", out)
    assert "Trains a small network." in example(tmp_path / "own.py", "--help")[1]


def test_a_script_has_typed_parameters_with_defaults():
    for wrong in (lambda steps: None, lambda steps=1: None):
        with pytest.raises(TypeError, match="'steps' of <lambda> needs a type and a default"):
            eg.script(wrong)


def test_the_notebook_runs_and_its_outputs_are_real(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its code cells as one program with small settings; the stored outputs are of a whole run."""
    pytest.importorskip("sklearn")
    assert NOTEBOOK.stat().st_size < LARGEST
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for c in cells for output in c["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 5
    assert not [output for output in outputs if output["output_type"] == "error"]
    (settings,) = (c for c in cells if "parameters" in c["metadata"].get("tags", ()))
    source = ["".join(c["source"]) for c in cells]
    small = re.sub(r'"steps": \d+', '"steps": 4', "".join(settings["source"]))
    assert small != source[0]
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(compile("\n".join([small, *source[1:]]), NOTEBOOK.name, "exec"), {})
    out = capsys.readouterr().out
    assert re.search(r"bits per byte; a (?s:.*)the model catches \d+% of", out), out


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
