"""The benchmark measures what it says; nothing here looks at how fast anything is."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from conftest import Command

from eggroll import _extension, bench, networks, performance, plot

TINY = ("--preset", "small", "--seq-len", "2", "--repeats", "2", "--threads", "1")


def test_a_table_and_three_files(call: Command, tmp_path: Path):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "png")}
    ended = call(
        *(*TINY, "--pops", "64", "32", "--json", files["json"], "--csv", files["csv"]),
        *("--picture", files["png"]),
        main=bench.main,
    )
    assert ended.code == 0, ended.err
    assert ended.out.startswith("engine: ")
    found = json.loads(files["json"].read_text())
    rows = found["rows"]
    assert [row["population"] for row in rows] == [32, 64]
    assert found["options"]["preset"] == "small"
    predicted = performance.predictions(bench.PRESETS["small"], seq_len=2)
    assert found["predicted"]["population"] == performance.POPULATION
    assert found["predicted"]["tokens_per_second"] == {
        p.chip.name: round(p.tokens_per_second) for p in predicted
    }
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(2 * row["population"] / row["seconds"])
        assert row["gmacs"] == pytest.approx(row["tokens_per_second"] * 65536 / 1e9)
        assert row["evaluation"] > 0
        assert row["votes"] > 0
        assert row["update"] > 0
        assert row["of_limit"] > 0
    assert rows[0]["speed_up"] == 1
    assert [row["population"] for row in csv.DictReader(files["csv"].open())] == ["32", "64"]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_predictions_are_hollow_and_called_so():
    axes = plot.new_figure(4, 4).subplots()
    predicted = performance.predictions(bench.PRESETS["seed"])
    bench.mark(axes, predicted)
    (line,) = axes.get_lines()
    assert line.get_markerfacecolor() == "none"
    assert line.get_linestyle() == "None"
    rates = [p.tokens_per_second for p in predicted if p.chip.name in performance.SHOWN]
    assert list(line.get_ydata()) == rates
    assert {text.get_text() for text in axes.texts} == set(performance.SHOWN)
    (label,) = axes.get_legend().get_texts()
    assert label.get_text().startswith("predicted, never run")


def test_multiply_adds_of_the_presets():
    """L 12 D^2 + V D: the embedding is a look-up, noise and votes are not counted."""
    for preset in bench.PRESETS.values():
        D, L, V = preset["width"], preset["layers"], preset["vocabulary"]
        assert bench.macs_per_token(networks.egg(V, D, L)) == 12 * L * D * D + V * D


@pytest.mark.parametrize("isa", _extension.load().usable_isas())
def test_every_instruction_set_has_a_limit(isa: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    assert bench.register_loop(1)() > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--pops 7", "--pops has 7"),
        ("--pops 0", "--pops has 0"),
        ("--preset tiny", "'tiny' is given, but one of seed, paper, small, medium is needed"),
        ("--repeats 0", "--repeats is 0"),
        ("--engine cuda", "engine 'cuda'"),
        ("--json missing/out.json", "'missing/out.json' is no place for a file"),
        ("--picture .", "--picture '.' does not end in .png"),
        ("--picture out.xyz", "--picture 'out.xyz' does not end in .png"),
        ("--csv .", "--csv '.' is no place for a file"),
        ("--pops", "--pops"),
    ],
)
def test_bad_input(
    call: Command, words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    ended = call(*words.split(), main=bench.main)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
