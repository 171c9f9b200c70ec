"""What experiments refuse, in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eggroll.cli import command as cli
from experiments.arguments import write_csv
from experiments.digits import run as digits
from experiments.lm import smollm2
from experiments.nnue import commands as nnue
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
        (nnue.main, ["match", "material"], "'material', has nobody to play: give two or more"),
        (nnue.main, ["match", "material", "material", "--seed", "-1"], "--seed is -1: 0 or more"),
        (nnue.main, ["data", "--out", "a", "--opening", "999"], "--opening is 999: few games"),
        (training.main, [*STATES, "--looks", "0"], "0 is too few: give 1 or more."),
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
