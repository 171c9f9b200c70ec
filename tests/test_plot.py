"""Pictures hold what they should, for one run and for many."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command

import eggroll as eg
from eggroll import plot
from eggroll.errors import InputError
from eggroll.training import curves, pictures


def made_up(
    folder: Path, *, seed: int = 0, updates: int = 40, shift: float = 0.0, **options
) -> Path:
    """A run's folder with losses that follow a rule: 5 / (1 + step / 10) + shift."""
    folder.mkdir(parents=True)
    config = {"data": "stdlib", "pop": 64, "group_size": 2, "seq_len": 8, "seed": seed}
    about = {"baselines": {"unigram": 4.7, "bigram": 3.5}, "corpus": {"splits": 1}, "chunk": seed}
    (folder / "config.json").write_text(json.dumps(config | options | {"about": about}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, updates + 1):
            loss = 5 / (1 + step / 10) + shift
            row = {"step": step, "loss": loss, "update_rate": 0.5 / step, "seconds": 0.25}
            row["tokens_per_second"] = 1e6 + 1000 * seed
            if step % 10 == 0:
                row["val_loss"] = loss + 0.1
            file.write(json.dumps(row) + "\n")
    return folder


def trained(folder: Path, *, seed: int = 0, updates: int = 20, sign: int = 1, **options) -> Path:
    """The folder of a Trainer whose mean is sign x step / 4, and whose best member is 2 above."""
    folder.mkdir(parents=True)
    config = {"pop": 64, "estimator": "eggroll", "rule": "sign", "sigma_shift": 2, "seed": seed}
    (folder / "config.json").write_text(json.dumps(config | options | {"about": {"parameters": 9}}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, updates + 1):
            row = {"step": step, "fitness": sign * step / 4, "fitness_best": sign * step / 4 + 2}
            row |= {"update_rate": 0.5, "nonzero_ratio": 0.125, "seconds": 0.25}
            file.write(json.dumps(row | {"rows_per_second": 4e6}) + "\n")
    return folder


def text_of(picture: Path) -> str:
    """The words of an SVG, which matplotlib draws as paths and keeps in comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", picture.read_text()))


def test_validations_with_an_expert_are_drawn_beside_those_without(tmp_path: Path):
    run = made_up(tmp_path / "a")
    assert "with counts" not in text_of(pictures.curves(run, tmp_path / "plain.svg"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        if "val_loss" in row:
            row["val_bits_per_byte_with_counts"] = row["val_loss"] - 0.5
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    drawn = text_of(pictures.curves(run, tmp_path / "both.svg"))
    assert "validation: 1.100 at the end" in drawn
    assert "with counts: 0.600 at the end" in drawn


def test_what_was_written_is_said(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "a")
    ended = call(run, main=plot.main)
    assert (ended.code, ended.out, ended.err) == (0, f"written: {run / 'curves.png'}\n", "")
    out = tmp_path / "both.svg"
    other = made_up(tmp_path / "b", width=32)
    assert call(run, other, "--out", out, main=plot.main).out == f"written: {out}\n"


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")]
)
@pytest.mark.parametrize("runs", [1, 2])
def test_the_ending_decides_the_format(
    call: Command, tmp_path: Path, name: str, begins: bytes, runs: int
):
    folders = [made_up(tmp_path / f"run{i}", width=i) for i in range(runs)]
    assert call(*folders, "--out", tmp_path / name, main=plot.main).code == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_titles_and_labels_are_taken_literally(call: Command, tmp_path: Path):
    runs = [made_up(tmp_path / "a"), made_up(tmp_path / "b", width=32)]
    out = tmp_path / "picture.svg"
    words = ["--title", "costs $5 and $6", "--label", "the paper's", "a $x$", "--out", out]
    assert call(*runs, *words, main=plot.main).code == 0
    text = text_of(out)
    for part in ("costs $5 and $6", "the paper's: 1.100", "a $x$: 1.100"):
        assert part in text
    assert call(runs[0], "--title", "one run", "--out", out, main=plot.main).code == 0
    assert "one run" in text_of(out)


@pytest.mark.parametrize(
    ("metric", "unit", "last"),
    [
        ("val_loss", "bits per byte", "1.100"),
        ("loss", "bits per byte", "1.000"),
        ("update_rate", "% of weights per update", "1.250"),
        ("tokens_per_second", "tokens per s", "1M"),
    ],
)
def test_one_metric_of_one_run(call: Command, tmp_path: Path, metric: str, unit: str, last: str):
    out = tmp_path / "picture.svg"
    run = made_up(tmp_path / "a")
    assert call(run, "--metric", metric, "--out", out, main=plot.main).code == 0
    text = text_of(out)
    assert unit in text
    assert f"a: {last}" in text
    assert "tokens of the corpus read" in text
    assert "seconds of updates" in text
    assert ("bigram model counted on the training split: 3.50" in text) == ("loss" in metric)


def test_names_in_a_legend(tmp_path: Path):
    """All of them, the middle of a long one left out."""
    runs = [made_up(tmp_path / name, width=8 + i) for i, name in enumerate(("_a", "x" * 99, "c"))]
    drawn = text_of(pictures.compare(runs, tmp_path / "all.svg"))
    assert "_a: 1.100" in drawn
    assert f"{'x' * 19}\u2026{'x' * 20}: 1.100" in drawn
    assert "x" * 41 not in drawn


def test_runs_of_one_name_are_told_apart(tmp_path: Path):
    runs = [made_up(tmp_path / name, width=8 + i) for i, name in enumerate(("a/s8", "b/s8", "c"))]
    drawn = text_of(pictures.compare(runs, tmp_path / "all.svg"))
    for name in ("a/s8", "b/s8", "c"):
        assert f" {name}: 1.100" in drawn


def test_few_updates_are_points_and_labels_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figures: list[Any] = []
    real = pictures.save
    monkeypatch.setattr(
        pictures, "save", lambda figure, path: figures.append(figure) or real(figure, path)
    )
    pictures.curves(made_up(tmp_path / "one", updates=1))
    pictures.curves(trained(tmp_path / "trained", updates=1))
    pictures.curves(made_up(tmp_path / "many", updates=81))
    for figure, wanted in zip(figures, (True, True, False), strict=True):
        smoothed = [axes.lines[1] for axes in figure.axes]
        assert [line.get_marker() == "o" for line in smoothed] == [wanted] * len(smoothed)
    for figure in (figures[0], figures[2]):
        top, values = figure.axes[0], (3.5, 4.7)
        low, high = top.get_ylim()
        assert low < min(values) - 0.05 * (high - low)
        assert high > max(values) + 0.05 * (high - low)


def test_seeds_are_one_line_and_a_band(call: Command, tmp_path: Path):
    seeds = [
        made_up(tmp_path / f"s{i}", seed=i, shift=i / 2, updates=40 + 10 * i) for i in range(3)
    ]
    other = made_up(tmp_path / "other", width=32)
    out = tmp_path / "picture.svg"
    assert call(*seeds, other, "--out", out, main=plot.main).code == 0
    assert "s0: 1.600, mean of 3 seeds" in text_of(out)  # at update 40, which all have made
    assert "other: 1.100" in text_of(out)
    assert "s1" not in text_of(out)
    words = ("--label", "three", "one", "--out", out)
    assert call(*seeds, other, *words, main=plot.main).code == 0
    assert "three: 1.600, mean of 3 seeds" in text_of(out)
    ended = call(*seeds, other, "--label", "a", "b", "c", "--out", out, main=plot.main)
    assert ended.code == 2
    assert "3 names for 4 folders: give one for each, or 2 for the lines that they" in ended.err
    for i in range(3):
        (tmp_path / f"s{i}").rename(tmp_path / f"wide-{i}")
    folders = (tmp_path / f"wide-{i}" for i in range(3))
    assert call(*folders, "--out", out, main=plot.main).code == 0
    assert "wide: 1.600, mean of 3 seeds" in text_of(out)
    for i in range(3):
        (tmp_path / f"wide-{i}").rename(tmp_path / f"s{i}")
    assert call(*seeds, other, "--no-group-seeds", "--out", out, main=plot.main).code == 0
    for part in ("s0: 1.100", "s1: 1.433", "s2: 1.814", "other: 1.100"):
        assert part in text_of(out)
    assert "seeds" not in text_of(out)


def test_a_series_is_the_mean_of_what_its_runs_share(tmp_path: Path):
    runs = [
        curves.read_run(made_up(tmp_path / f"s{i}", seed=i, shift=i, updates=20 + 10 * i))
        for i in range(3)
    ]
    (series,) = curves.grouped([(run.name, run) for run in runs], "val_loss")
    x, mean, low, high = series.points("val_loss", "tokens")
    assert x.tolist() == [10 * 32 * 8, 20 * 32 * 8]
    alone = np.array([5 / 2 + 0.1, 5 / 3 + 0.1])
    for found, shift in ((mean, 1), (low, 0), (high, 2)):
        assert found == pytest.approx(alone + shift)
    assert series.points("val_loss", "elapsed")[0].tolist() == [2.5, 5.0]


def test_runs_that_share_no_update_stay_apart(tmp_path: Path):
    one, two = (curves.read_run(made_up(tmp_path / f"s{i}", seed=i)) for i in range(2))
    two = replace(two, valid_steps=two.valid_steps + 1)
    series = curves.grouped([("one", one), ("two", two)], "val_loss")
    assert [(s.label, len(s.runs)) for s in series] == [("one", 1), ("two", 1)]


def test_a_seed_counts_once(call: Command, tmp_path: Path):
    """The same run twice, or the same seed on two machines, are no two seeds."""
    run, again = made_up(tmp_path / "a"), made_up(tmp_path / "b")
    out = tmp_path / "picture.svg"
    assert call(run, run, again, "--out", out, main=plot.main).code == 0
    assert "seeds" not in text_of(out)
    assert "b: 1.100" in text_of(out)


def test_other_options_or_data_are_other_runs(tmp_path: Path):
    folders = [
        made_up(tmp_path / "a"), made_up(tmp_path / "b", seed=1), made_up(tmp_path / "c", width=1)
    ]  # fmt: skip
    runs = [curves.read_run(folder) for folder in folders]
    changed = replace(runs[1], about={"corpus": {"splits": 2}})
    named = [(run.name, run) for run in (*runs, changed)]
    assert [len(s.runs) for s in curves.grouped(named, "loss")] == [2, 1, 1]


def test_many_runs_have_colours_of_their_own(call: Command, tmp_path: Path):
    runs = [made_up(tmp_path / f"run{i:02d}", width=i, shift=i / 10) for i in range(24)]
    out = tmp_path / "picture.svg"
    assert call(*runs, "--out", out, main=plot.main).code == 0
    for run in runs:
        assert run.name in text_of(out)
    assert len({pictures._colour(i, 24) for i in range(24)}) == 24
    assert len({pictures._colour(i, 10) for i in range(10)}) == 10


def test_reference_lines_stand_for_one_corpus(call: Command, tmp_path: Path):
    runs = [made_up(tmp_path / "a"), made_up(tmp_path / "b", width=32)]
    out, config = tmp_path / "picture.svg", json.loads((runs[1] / "config.json").read_text())
    assert call(*runs, "--out", out, main=plot.main).code == 0
    assert "bigram" in text_of(out)
    config["about"]["baselines"]["bigram"] = 2.0
    (runs[1] / "config.json").write_text(json.dumps(config))
    assert call(*runs, "--out", out, main=plot.main).code == 0
    assert "bigram" not in text_of(out)


def test_a_run_without_validation_is_left_out_by_a_sentence(call: Command, tmp_path: Path):
    runs = [made_up(tmp_path / "a"), made_up(tmp_path / "b", updates=5)]
    ended = call(*runs, "--out", tmp_path / "picture.png", main=plot.main)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "b' has not been validated yet: leave it out" in ended.err
    assert call(*runs, "--metric", "loss", "--out", tmp_path / "a.png", main=plot.main).code == 0


def test_of_a_sweep_the_validated_trials_are_drawn(tmp_path: Path):
    made_up(tmp_path / "trial-0", updates=5)
    with pytest.raises(InputError, match=r"none of the 1 trials .* has been validated"):
        plot.runs_in(tmp_path)
    trial = made_up(tmp_path / "trial-1")
    assert plot.runs_in(tmp_path) == [trial]


def test_a_finished_run_is_drawn_again(call: Command, tmp_path: Path, finished: Path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "curves.png").unlink()
    assert call(run, main=plot.main).code == 0
    assert (run / "curves.png").exists()


def test_a_trainers_picture_shows_its_health(call: Command, tmp_path: Path):
    out, run = tmp_path / "picture.svg", trained(tmp_path / "catch")
    assert call(run, "--out", out, main=plot.main).out == f"written: {out}\n"
    text = text_of(out)
    for part in (
        "catch: eggroll, population 64, rule sign, sigma_shift 2, seed 0",
        "mean: 5.000 at the end", "best member: 7.000 at the end", "weights that moved",
        "pairs whose members differ in value: below 1 % hardly anything is learnt", "rows per s",
    ):  # fmt: skip
        assert part in text
    assert call(run, main=plot.main).out == f"written: {run / 'curves.png'}\n"


@pytest.mark.parametrize(
    ("metric", "unit", "last"),
    [
        ("", "fitness", "-5.000"),
        ("fitness", "fitness", "-5.000"),
        ("fitness_best", "fitness", "-3.000"),
        ("update_rate", "% of weights per update", "50.000"),
        ("nonzero_ratio", "% of pairs per update", "12.500"),
        ("rows_per_second", "rows per s", "4M"),
    ],
)
def test_one_metric_of_trainers(call: Command, tmp_path: Path, metric: str, unit: str, last: str):
    runs = [trained(tmp_path / f"s{i}", seed=i, sign=-1, updates=20 + i) for i in range(2)]
    other = trained(tmp_path / "other", pop=32, sign=-1)
    words = ["--metric", metric] if metric else []
    out = tmp_path / "picture.svg"
    assert call(*runs, other, *words, "--out", out, main=plot.main).code == 0
    text = text_of(out)
    for part in (unit, f"s0: {last}, mean of 2 seeds", f"other: {last}", "rows of all members"):
        assert part in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"fitness": 5.0', '"fitness": Infinity', "damaged (ValueError: a figure is not finite)"),
        ('"fitness": 5.0', '"fitness": "x"', "are damaged (ValueError: "),
        ('"fitness_best": 7.0', '"best": 7.0', "are damaged (KeyError: 'fitness_best')"),
    ],
)
def test_damaged_figures_are_one_sentence(
    call: Command, tmp_path: Path, old: str, new: str, says: str
):
    run = trained(tmp_path / "run")
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace(old, new))
    ended = call(run, main=plot.main)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert says in ended.err


def test_figures_that_are_lists_are_refused(tmp_path: Path):
    path = trained(tmp_path / "run") / "metrics.jsonl"
    rows = [json.loads(line) | {"seconds": [1.0, 2.0]} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="a figure is a list"):
        curves.read_run(path.parent)


def test_options_that_tokens_are_counted_by_must_be_there(finished: Path, tmp_path: Path):
    run = shutil.copytree(finished, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    del config["seq_len"]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"are damaged \(KeyError: 'seq_len'\)"):
        curves.read_run(run)


@pytest.mark.parametrize(("estimator", "streams"), [("token-credit", 32), ("feedback", 64)])
def test_members_without_noise_read_streams_of_their_own(tmp_path: Path, estimator, streams):
    folder = made_up(tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config |= {"pop": 64, "group_size": 2, "seq_len": 16, "estimator": estimator}
    (folder / "config.json").write_text(json.dumps(config))
    run = curves.read_run(folder)
    assert isinstance(run, curves.LanguageCurves)
    assert run.tokens(np.array([10.0])).tolist() == [10 * streams * 16]


def learns(out: Path, updates: int, **options: Any) -> eg.Trainer:
    """A Trainer after updates by labels, or by errors that are given."""
    net = eg.networks.mlp(8, [16], 4)
    rows = np.random.default_rng(0).integers(-60, 60, (32, 8)).astype(np.int8)
    es = eg.Trainer(net, pop=32, estimator="feedback", rule="adam", out=out, table_bits=16)
    for _ in range(updates):
        es.learn(rows, **(options or {"targets": rows[:, :4].argmax(1)}))
    return es


def test_updates_by_errors_are_drawn(call: Command, tmp_path: Path):
    labels, errors, both = tmp_path / "labels", tmp_path / "errors", tmp_path / "both"
    learns(labels, 5).close()
    learns(errors, 5, errors=np.ones((32, 4), np.int8)).close()
    learns(both, 3).close()
    with eg.Trainer.load(both, estimator="eggroll", rule="master") as es:
        for _ in range(2):
            es.ask()(np.ones((32, 8), np.int8))
            es.tell(np.arange(32))
    out = tmp_path / "picture.svg"
    for folder, shown, hidden in (
        (labels, ["training loss", "labels: feedback, rule adam"], ["fitness", "pairs", "members"]),
        (errors, ["errors at the outputs", "mean size, of 127"], ["fitness", "training loss"]),
        (both, ["training loss", "fitness", "pairs whose members differ", "population 32"], []),
    ):
        assert call(folder, "--out", out, main=plot.main).code == 0
        text = text_of(out)
        assert all(part in text for part in shown), folder.name
        assert not any(part in text for part in hidden), folder.name
    run = curves.read_run(both)
    assert [run.curve(name)[0].tolist() for name in ("loss", "error", "fitness")] == [
        [1, 2, 3], [1, 2, 3], [4, 5],
    ]  # fmt: skip
    assert run.rows(run.steps).tolist() == [32, 64, 96, 128, 160]
    assert call(labels, both, "--metric", "loss", "--out", out, main=plot.main).code == 0
    assert call(labels, errors, "--metric", "error", "--out", out, main=plot.main).code == 0
    ended = call(labels, errors, "--out", out, main=plot.main)
    assert (ended.code, f"the run in '{errors}' has no loss" in ended.err) == (2, True)


def test_rows_are_counted_by_their_rate(tmp_path: Path):
    run = curves.read_run(trained(tmp_path / "run"))
    assert isinstance(run, curves.TrainerCurves)
    assert run.rows(np.array([1.0, 20.0])).tolist() == [1e6, 20e6]


@pytest.mark.parametrize(
    ("runs", "metric", "says"),
    [
        ("tl", "", "'l1' is a run of a language model and 't0' one of eggroll.Trainer: plot them"),
        ("lt", "update_rate", "'t1' is a run of eggroll.Trainer and 'l0' one of a language model"),
        ("t", "val_loss", "--metric is val_loss: 't0' is a run of eggroll.Trainer, which has fit"),
        ("ll", "fitness", "--metric is fitness: 'l0' is a run of a language model, which has val_"),
    ],
)
def test_figures_that_do_not_compare(
    call: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: str,
    metric: str,
    says: str,
):
    monkeypatch.chdir(tmp_path)
    kinds = {"t": trained, "l": made_up}
    folders = [kinds[kind](Path(f"{kind}{i}")) for i, kind in enumerate(runs)]
    words = ["--metric", metric] if metric else []
    ended = call(*folders, *words, main=plot.main)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert says in ended.err


def test_one_run_has_one_label(call: Command, tmp_path: Path):
    ended = call(made_up(tmp_path / "a"), "--label", "a", "b", main=plot.main)
    assert (ended.code, "2 names for 1 folder" in ended.err) == (2, True)


def test_names_of_folders_are_paths(tmp_path: Path):
    run = str(made_up(tmp_path / "run"))
    assert plot.curves(run) == tmp_path / "run" / "curves.png"
    assert plot.compare([run, run], f"{run}/two.svg").read_bytes()


def test_a_picture_that_cannot_be_written_goes_elsewhere(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "run")
    (run / "checkpoint.safetensors").touch()
    (run / "curves.png").mkdir()
    ended = call(run, main=plot.main)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ", or give another --out; what was" in ended.err


@pytest.mark.parametrize("name", ["run", "a long name of a run " * 6, "x" * 150])
def test_titles_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    run = made_up(tmp_path / name, layers=4, width=256, recipe="language", rank=1)
    shown = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: shown.append(figure))
    pictures.curves(run)
    pictures.compare([run, run], tmp_path / "b.png", title=name, labels=["a", "b"])
    for figure in shown:
        figure.draw_without_rendering()
        (title,) = figure.texts
        extent = title.get_window_extent()
        assert extent.x0 >= figure.bbox.x0
        assert extent.x1 <= figure.bbox.x1
        assert extent.y1 <= figure.bbox.y1
        assert min(axes.get_window_extent().y1 for axes in figure.axes[:1]) <= extent.y0
        assert "".join(name.split()) in "".join(title.get_text().split())
