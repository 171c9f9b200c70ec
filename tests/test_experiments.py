"""What experiments refuse, in a sentence."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from house import ROOT

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.lm import command as finetune
from eggroll.training.loop import RunResult
from experiments.arguments import check_packages, finished, write_csv
from experiments.autograd import __main__ as autograd
from experiments.black_box import run as black_box
from experiments.control import run as control
from experiments.count import run as count
from experiments.digits import run as digits
from experiments.estimators import run as estimators
from experiments.lm import memory, smollm2, sort_digits, speed
from experiments.nnue import commands as nnue
from experiments.scaling import findings
from experiments.scaling import run as scaling
from experiments.selfplay import __main__ as selfplay
from experiments.text import methods
from experiments.text import run as text
from experiments.tictactoe.evolution import training

STATES = ("--method", "states", "--out", "runs")


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (smollm2.main, ["convert", "no.gguf", "made"], "'no.gguf' is no file: give the package's"),
        (smollm2.main, ["convert", __file__, "made"], "is no GGUF file that can be read"),
        (smollm2.main, [], "the following arguments are required: work"),
        (training.main, [*STATES, "--set", "pop"], "'pop' is no setting: NAME=VALUE is needed"),
        (training.main, [*STATES, "--set", 'rows="a"'], "rows is 'a': int is needed."),
        (training.main, [*STATES, "--set", "world=1"], "world is 1: str is needed."),
        (training.main, [*STATES, "--set", "width=64"], "setting 'width' is unknown"),
        (digits.main, ["--csv", "missing/a.csv"], "'missing/a.csv' is no place for a file: give"),
        (digits.main, ["--picture", "a.xyz"], "'a.xyz' does not end in .png, .svg, .pdf: give"),
        (nnue.main, ["run", "--data", "a", "--ways", "bogus"], "--ways has 'bogus': choose from"),
        (methods.main, ["run", "--csv", "no/a.csv"], "'no/a.csv' is no place for a file"),
        (methods.main, ["draw", "--out", "a.xyz"], "'a.xyz' does not end in .png, .svg, .pdf"),
        (nnue.main, ["match", "material"], "'material', has nobody to play: give two or more"),
        (nnue.main, ["match", "material", "material", "--seed", "-1"], "--seed is -1: 0 or more"),
        (nnue.main, ["data", "--out", "a", "--opening", "999"], "--opening is 999: few games"),
        (training.main, [*STATES, "--looks", "0"], "0 is too few: give 1 or more."),
        (smollm2.main, ["judge", "none"], "'none' has no checkpoint.safetensors: give the folder"),
        (methods.main, ["pace", "--seconds", "nan"], "--seconds: nan is out of range: give a"),
        (methods.main, ["pace", "--seconds", "-1"], "--seconds: -1.0 is out of range"),
        (methods.main, ["pace", "--turns", "0"], "--turns: 0 is too few"),
        (methods.main, ["pace", "--pace", "no/a.json"], "'no/a.json' is no place for a file"),
        (methods.main, ["run", "--seeds", "0"], "--seeds: 0 is too few"),
        (methods.main, ["run", "--pace", __file__], "is not valid JSON"),
        (methods.main, ["run", "--pace", "no.json"], "no.json is missing: `methods.py pace`"),
        (methods.main, ["run", "--settings", "no.json"], "--settings 'no.json' cannot be read"),
        (scaling.main, ["--seeds", "0"], "--seeds: 0 is too few"),
        (scaling.main, ["--tokens", "-5"], "--tokens: -5 is too few"),
        (scaling.main, ["--populations", "0"], "--populations: 0 is no population: give an even"),
        (findings.main, ["--populations", "0"], "--populations: 0 is no population: give an even"),
        (findings.main, ["--json", "no/a.json"], "'no/a.json' is no place for a file"),
        (count.main, ["--populations", "0"], "--populations: 0 is no population: give an even"),
        (estimators.main, ["--populations", "0"], "--populations: 0 is no population"),
        (estimators.main, ["--ranks", "0"], "--ranks: 0 is out of range: give a whole number"),
        (estimators.main, ["--learnt", "0"], "--learnt: 0 is too few"),
        (estimators.main, ["--seed", "-1"], "--seed: -1 is out of range"),
        (autograd.main, ["bench", "--steps", "nan"], "--steps: invalid positive value: 'nan'"),
        (autograd.main, ["bench", "--json", "no/a.json"], "'no/a.json' is no place for a file"),
        (autograd.main, ["run", "--out", "/proc/x"], "'/proc/x' cannot be written"),
        (autograd.main, ["run", "--out", __file__], "cannot be written (File exists)"),
        (digits.main, ["--learning-rate", "nan"], "--learning-rate: nan is out of range"),
        (black_box.main, ["--learning-rate", "nan"], "--learning-rate: nan is out of range"),
        (black_box.main, ["--threads", "-1"], "--threads: -1 is out of range: give a whole"),
        (black_box.main, ["--sigma-shift", "99"], "--sigma-shift: 99 is out of range"),
        (
            black_box.main,
            ["--csv", "a.png", "--picture", "./a.png"],
            "--csv and --picture are both",
        ),
        (digits.main, ["--csv", "a.png", "--picture", "a.png"], "give each a file of its own."),
        (selfplay.main, ["run", "a", "--workers", "100000"], "from 1 to 1024"),
    ],
)
def test_bad_words_are_refused_before_any_work(
    main: Callable[[], int],
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["experiment", *words])
    try:
        code = cli.run(main)
    except SystemExit as stop:  # of argparse
        code = int(stop.code or 0)
    assert code == cli.REFUSED
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("value", ["64", "1.5", "1"])
def test_settings_of_the_kind_of_a_recipes_are_taken(value: str) -> None:
    name, given = training.setting(f"learning_rate={value}")
    assert training.recipe("states", "64", **{name: given}).learning_rate == float(value)


def test_a_table_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_csv(path, ("name", "value"), [("a, b", 1), ('"', 2.5)])
    assert path.read_bytes() == b'name,value\r\n"a, b",1\r\n"""",2.5\r\n'

    def rows():
        yield ("c", 3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_csv(path, ("name", "value"), rows())
    assert b"2.5" in path.read_bytes()


def test_former_results_and_other_folders_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "looks.csv").write_text("kept")
    assert autograd.main(["run", "--smoke", "--out", str(tmp_path)]) == cli.REFUSED
    assert "holds a run already: give another folder" in capsys.readouterr().err
    assert selfplay.main(["run", str(tmp_path), "--smoke"]) == cli.REFUSED
    assert "holds 'looks.csv' and no run: name a new folder." in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("looks.csv", "kept")]


@pytest.mark.parametrize("value", [[1], "7", 0, True])
def test_updates_of_a_pace_are_whole_numbers(tmp_path: Path, value: object) -> None:
    path = tmp_path / "pace.json"
    path.write_text(json.dumps({"a": value}))
    with pytest.raises(InputError, match="for 'a': updates, 1 or more, are needed"):
        methods.paced(path)


def test_pilots_are_written_whole_beside_those_of_other_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    method = next(iter(methods.METHODS))
    (tmp_path / "methods.json").write_text('{"another": 5}')
    monkeypatch.setattr(methods, "updates_within", lambda *_: 8.9)
    monkeypatch.setattr(sys, "argv", ["methods.py", "pace", "--turns", "1", "--methods", method])
    assert methods.main() == cli.DONE
    assert methods.paced(tmp_path / "methods.json") == {"another": 5, method: 8}
    monkeypatch.setattr(sys, "argv", ["methods.py", "run"])
    assert methods.arguments().pace == Path("methods.json")
    monkeypatch.chdir("/")
    assert methods.arguments().pace == methods.HERE / "methods.json"


def test_rows_of_a_table_are_added_in_the_current_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def given(part: str) -> argparse.Namespace:
        monkeypatch.setattr(sys, "argv", ["methods.py", part])
        return methods.arguments()

    record = methods.HERE / "methods.csv"
    before = record.read_bytes()
    assert [given(part).csv for part in ("draw", "table")] == [record, record]
    assert given("draw").out == Path("methods.svg")
    monkeypatch.setattr(methods, "call", lambda words: (VALIDATED, 1.0))
    given("run")
    assert methods.main() == cli.DONE
    assert record.read_bytes() == before
    assert len(methods.rows_in(tmp_path / "methods.csv")) == 5 * len(methods.METHODS)
    assert [given(part).csv for part in ("draw", "table")] == [Path("methods.csv")] * 2


VALIDATED = "validation: 1.500 bits per byte of text that training never reads\n"


def test_a_run_that_was_interrupted_has_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped = RunResult(None, 3, "", None, "Interrupted after update 3 of 9; go on")
    whole = stopped._replace(resume_hint="")
    assert finished(lambda options: whole, None) is whole

    def asked_at_its_end(options: object) -> RunResult:
        with cli.Stop(""):
            os.kill(os.getpid(), signal.SIGTERM)
        return whole

    with pytest.raises(KeyboardInterrupt):
        finished(asked_at_its_end, None)
    assert "Stopping soon" in capfd.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scaling, "train", lambda config: stopped)
    monkeypatch.setattr(text.training, "train", lambda config: stopped)
    monkeypatch.setattr(text.adamw, "train_twin", lambda options: stopped)
    for main, words in (
        (scaling.main, ["--csv", "a.csv"]),
        (text.main, ["--what", "feedback:steps=100000", "--csv", "a.csv"]),
        (text.main, ["--what", "adamw", "--csv", "a.csv"]),
    ):
        monkeypatch.setattr(sys, "argv", ["experiment", *words])
        assert cli.run(main) == cli.INTERRUPTED
        assert capfd.readouterr() == ("", "Interrupted.\n")
        assert not (tmp_path / "a.csv").exists()


def test_missing_packages_are_said_before_any_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_packages("dev", "numpy")
    monkeypatch.setattr(control, "bench", None)
    monkeypatch.setattr(sys, "argv", ["experiment"])
    for module, said, main in (
        ("sklearn", "scikit-learn is missing: pip install '.[examples]'", digits.main),
        ("mlx_lm", "mlx-lm is missing: pip install '.[lm]'", memory.main),
        ("mlx_lm", "mlx-lm is missing: pip install '.[lm]'", speed.main),
        ("mlx_lm", "mlx-lm is missing: pip install '.[lm]'", sort_digits.main),
        ("stable_baselines3", " is missing: pip install '.[peers]'", control.main),
        ("evosax", " is missing: pip install '.[peers]'", control.main),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert cli.run(main) == cli.REFUSED
        assert said in capsys.readouterr().err


SCRIPTS = {
    "text/exact_head.py": "torch", "lm/memory.py": "mlx_lm", "lm/sort_digits.py": "mlx_lm",
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_no_package(script: str, tmp_path: Path) -> None:
    code = (
        f"import runpy, sys; sys.modules[{SCRIPTS[script]!r}] = None; sys.argv[1:] = ['--help']; "
        f"runpy.run_path({str(ROOT / 'experiments' / script)!r}, run_name='__main__')"
    )
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "usage: " in ended.stdout


def test_a_run_is_judged_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import lm_models

    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"a{i}="}) + "\n" for i in range(8)))
    (tmp_path / "mine.py").write_text("def good(prompt, answer):\n    return len(answer)\n")
    model = lm_models.save(tmp_path / "model", "llama", 32)
    words = [
        *("--model", str(model), "--data", str(data), "--reward", f"{tmp_path / 'mine.py'}:good"),
        *("--pop", "4", "--prompts", "2", "--tokens", "3", "--steps", "1", "--rows", "2"),
        *("--table-bits", "16", "--out", str(tmp_path / "run")),
    ]
    assert finetune.main(words) == cli.DONE
    capsys.readouterr()
    smollm2.judge(str(tmp_path / "run"))
    said = capsys.readouterr().out
    assert said.count(" JSON, ") == 2
    assert said.count("  a") == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "words",
    [
        ["autograd", "run", "--updates", "1000000"],
        ["selfplay", "run", "a", "--workers", "2"],
        ["selfplay", "run", "a"],
        ["scaling.findings", "--populations", "1024", "--repeats", "1000"],
    ],
)
def test_a_signal_ends_with_a_sentence(words: list[str], number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, f"experiments.{words[0]}", *words[1:]]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout
    process.stdout.readline()  # `run` has begun
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (cli.INTERRUPTED, "Interrupted.\n")


@pytest.mark.parametrize(
    "name",
    ["autograd", "black_box", "cartpole", "control", "digits", "nnue", "selfplay", "tictactoe",
     "tictactoe.evolution"],
)  # fmt: skip
def test_an_interrupt_while_modules_are_imported_ends_in_a_word(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORTING, f"experiments.{name}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (cli.INTERRUPTED, "Interrupted.\n")


IMPORTING = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""
WAITING = """
import runpy, sys
from eggroll.cli import command
run = command.run
def begin(main):
    def work():
        print("begun", flush=True)
        return main()
    return run(work)
command.run, name = begin, sys.argv.pop(1)
if name == "experiments.autograd" or name == "experiments.selfplay":
    name += ".__main__"
runpy.run_module(name, run_name="__main__")
"""
