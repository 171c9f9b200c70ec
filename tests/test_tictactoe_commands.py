"""`python -m experiments.tictactoe`: runs, reports and what it says of bad input."""

from __future__ import annotations

import os
import subprocess
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
    assert main(["run", "--smoke", "--out", folders[0]]) == 2
    assert "holds a run already: give another folder" in capsys.readouterr().err
    assert metrics.read(Path(folders[0])) == run
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


def test_the_table_has_speed_ups():
    """Of an iteration, over the slowest, by medians of runs; none where there is one method."""
    look = dict.fromkeys((key for key, _ in pictures.ROWS.values()), 0.5)

    def run(seconds: float, steps: int) -> metrics.Run:
        return metrics.Run({}, [look | {"seconds": seconds, "step": steps}])

    groups = {"slow": [run(60, 20), run(20, 10), run(90, 10)], "fast": [run(5, 20)]}
    table = pictures.final_table(groups)
    assert table[-3:] == [
        "| training, s | 60.0 (20.0 to 90.0) | 5.0 |",
        "| an iteration, ms | 3000.0 (2000.0 to 9000.0) | 250.0 |",
        "| speed-up, of an iteration | 1.0 | 12.0 |",
    ]
    assert "speed-up" not in "".join(pictures.final_table({"slow": groups["slow"]}))


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
    assert told.err.startswith(f"error: {said}")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("method", ["ppo-sequential", "ppo-lockstep"])
def test_a_missing_torch_is_said(method: str, monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["run", "--method", method, "--smoke", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "error: torch is missing: pip install '.[experiments]' brings it.\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--method vine --iterations 3", "--iterations is of PPO, and --method vine"),
        ("--method states --settings document", "--settings is of PPO, and --method states"),
        ("--method states --settings strict", "--settings is of PPO, and --method states"),
        ("--method games --look 5", "--look is of PPO, and --method games"),
        ("--smoke --iterations 3", "--smoke sets --iterations itself"),
        ("--smoke --look 3", "--smoke sets --look itself"),
    ],
)
def test_an_option_that_is_not_read_is_refused(words: str, says: str, tmp_path: Path, capsys):
    assert main(["run", *words.split(), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {says}")
    assert not (tmp_path / "run").exists()


def test_the_report_writes_the_committed_pictures_unless_told_otherwise(
    tmp_path: Path, monkeypatch
):
    given: list[object] = []
    monkeypatch.setattr(pictures, "report", lambda *words: given.extend(words) or [])
    assert main(["report", "a", "b"]) == 0
    folder = Path(metrics.__file__).parent
    assert given == [[Path("a"), Path("b")], folder / "pictures", None, folder]
    assert (folder / "comparison.png").exists()
    assert (folder / "pictures" / "01_training_time.png").exists()
    given.clear()
    assert main(["report", "a", "--out", str(tmp_path)]) == 0
    assert given == [[Path("a")], tmp_path, None, tmp_path]


def test_a_run_fixes_blas_to_one_thread():
    """Before NumPy is loaded, whatever the environment says."""
    words = (
        "import os, runpy, sys\n"
        "sys.argv = ['tictactoe', 'run', '--seed', '-1']\n"
        "try: runpy.run_module('experiments.tictactoe', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 2\n"
        "from threadpoolctl import threadpool_info\n"
        "assert os.environ['OPENBLAS_NUM_THREADS'] == '1'\n"
        "threads = {facts['num_threads'] for facts in threadpool_info()}\n"
        "assert threads == {1}, threads"
    )
    pytest.importorskip("threadpoolctl")
    env = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", words], check=True, env=env, timeout=120)
