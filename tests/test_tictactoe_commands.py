"""`python -m experiments.tictactoe`: runs, reports and what it says of bad input."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.tictactoe import metrics, pictures
from experiments.tictactoe.run import main


def test_a_run_and_its_report(tmp_path: Path, capsys):
    pytest.importorskip("float_kernels", reason="the float kernels are not built")
    folders = [str(tmp_path / str(seed)) for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        assert main(["run", "--smoke", "--seed", str(seed), "--out", folder]) == 0
    assert np.load(Path(folders[0]) / "weights/c_policy_params.npy").shape == (207_114,)
    run = metrics.read(Path(folders[0]))
    assert [line["step"] for line in run.lines] == [1, 2]
    assert run.lines[1]["seconds"] > run.lines[0]["seconds"] > 0
    assert run.lines[1]["games"] == 1024
    shares = [run.looks()[-1][f"random_{end}"] for end in ("win", "draw", "loss")]
    assert sum(shares) == pytest.approx(1, abs=1e-6)
    capsys.readouterr()
    assert main(["report", *folders, "--out", str(tmp_path / "pictures")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("| | native (2) |\n")
    assert f"| against random: won | {pictures.cell(both(folders), '{:.1%}')} |" in printed
    drawn = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    expected = [f"{i:02}_{name}.png" for i, name in enumerate(pictures.PICTURES, 1)]
    assert drawn == [*expected, "comparison.png"]
    assert len(expected) == 10


def both(folders: list[str]) -> list[float]:
    return [metrics.read(Path(folder)).looks()[-1]["random_win"] for folder in folders]


def test_a_smoothed_line_averages_the_last_iterations():
    values = np.arange(50.0)
    expected = [values[max(0, i - 19) : i + 1].mean() for i in range(50)]
    np.testing.assert_allclose(pictures.smooth(values), expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "--out is missing: name the folder for metrics and weights."),
        (["run", "--smoke", "--net", "64"], "--net is '64': PPO has 256 alone"),
        (["run", "--out", "x", "--iterations", "0"], "--iterations is 0: at least 1 is needed."),
        (["run", "--out", "x", "--seed", "-1"], "--seed is -1: seeds are whole numbers from 0."),
        (["report", "nowhere"], "'nowhere' is no metrics file: give folders that"),
        (["bench", "--rounds", "0"], "--rounds is 0: at least 1 is needed."),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], said: str, capsys):
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith(said)
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("method", ["ppo-sequential", "ppo-lockstep"])
def test_a_missing_torch_is_said(method: str, monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["run", "--method", method, "--smoke", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "torch is missing: pip install '.[experiments]' brings it.\n"
    )
