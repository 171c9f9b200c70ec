"""The best trial: other seeds confirm it, and table, files and pictures name the same one."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from conftest import Command, Ended
from optuna.trial import TrialState
from sweeps import TINY, MadeUp, made_up_runs, study_at

from eggroll.sweep import command, report
from eggroll.sweep.study import Results
from eggroll.training import pictures
from eggroll.training.config import Config

pytestmark = pytest.mark.usefixtures("no_pictures")

draw = report.draw  # itself, which those tests miss that leave pictures out


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    return made_up_runs(monkeypatch)


def luck(config: Config, step: int) -> float:
    """The search's seed flatters alpha 5; over other seeds alpha 6 is the best of the three."""
    lucky = {4.0: 2.5, 5.0: 2.0, 6.0: 2.25, 9.0: 4.0}
    mean = {4.0: 3.0, 5.0: 2.75, 6.0: 2.5, 9.0: 1.0}
    return lucky[config.alpha] if config.seed == 0 else mean[config.alpha] + config.seed / 16


def search_four(call: Command, folder: Path, *words: object) -> Ended:
    """A sweep over alpha 4 (as given), 5, 6 and 9, then what `words` say."""
    words = (*TINY, "--budget", 1, "--slices", 2, "--pruner", "none", "--out", folder, *words)
    words = (*words, "--search", "alpha=0.5:12")
    assert call(*words, "--confirm", 0, "--trials", 1, main=command.main).code == 0
    for alpha in (5.0, 6.0, 9.0):
        study_at(folder).enqueue_trial({"alpha": alpha}, skip_if_exists=True)
    return call(*words, "--trials", 4, main=command.main)


def test_other_seeds_name_the_best_trial(call: Command, tmp_path: Path, made_up: MadeUp):
    made_up(0.25, luck)
    ended = search_four(call, tmp_path, "--confirm-seeds", 3, "--json", tmp_path / "all.json")
    assert ended.code == 0, ended.err
    lines = [line.split()[:4] for line in ended.out.splitlines()]
    assert ["2", "2.2500", "2.6250", "0.1250"] in lines
    rows = [words for words in lines if words and words[0].isdigit()]
    assert [row[:3] for row in rows] == [
        ["2", "2.2500", "2.6250"],
        ["1", "2.0000", "2.8750"],
        ["0", "2.5000", "3.1250"],
        ["3", "4.0000", "-"],  # not among the best three, however good other seeds are
    ]
    mean = (
        "2.625 bits per token as the mean over 3 other seeds (2.562 to 2.688; 2.250 in the search)"
    )
    assert f"best: trial 2, {mean}\n" in ended.out
    assert "9/9 · trial 0 with seed +3: " in ended.err
    best = json.loads((tmp_path / "best.json").read_text())
    assert (best["alpha"], best["seed"], best["about"]["trial"]) == (6.0, 0, 2)
    assert best["about"]["other_seeds"] == [2.5625, 2.625, 2.6875]
    found = json.loads((tmp_path / "all.json").read_text())
    assert (found["best"], found["confirmed"]) == (2, True)
    runs = [(run["trial"], run["seed_offset"]) for run in found["confirmation"]]
    assert runs == [(number, offset) for number in range(3) for offset in (1, 2, 3)]
    assert all(run["seconds"] == 1.0 and run["updates"] == 4 for run in found["confirmation"])


def test_without_confirmation_the_lowest_wins(call: Command, tmp_path: Path, made_up: MadeUp):
    made_up(0.25, luck)
    ended = search_four(call, tmp_path, "--confirm", 0)
    assert "best: trial 1, 2.000 bits per token with one seed\n" in ended.out
    assert not list(tmp_path.glob("confirm-*"))


def test_more_confirmation_adds_only_what_is_missing(
    call: Command, tmp_path: Path, made_up: MadeUp
):
    made_up(0.25, luck)
    search_four(call, tmp_path, "--confirm", 2, "--confirm-seeds", 1)
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("confirm-*/*")}
    assert len(list(tmp_path.glob("confirm-*"))) == 2
    ended = search_four(call, tmp_path, "--confirm", 4, "--confirm-seeds", 2)
    assert len(list(tmp_path.glob("confirm-*"))) == 8
    assert first == {path: path.stat().st_mtime_ns for path in first}
    assert "best: trial 3, 1.094 bits per token as the mean over 2" in ended.out


def test_an_interrupted_confirmation_goes_on(call: Command, tmp_path: Path, made_up: MadeUp):
    """It ends in its third run, and leaves the search's best until all have been confirmed."""
    runs: list[tuple[float, int]] = []

    def value(config: Config, step: int) -> float:
        if step == 0 and config.seed:
            runs.append((config.alpha, config.seed))
            if len(runs) == 3:
                signal.raise_signal(signal.SIGINT)
        return luck(config, step)

    made_up(0.25, value)
    words = ("--confirm", 2, "--confirm-seeds", 2)
    ended = search_four(call, tmp_path, *words)
    assert ended.code == 130
    assert ended.err.rstrip().endswith("run the same command again to go on.")
    assert "2 confirmation runs" in ended.out
    assert "best: trial 1, 2.000 bits per token with one seed; other seeds have not" in ended.out
    assert json.loads((tmp_path / "best.json").read_text())["alpha"] == 5.0
    ended = search_four(call, tmp_path, *words)
    assert ended.code == 0, ended.err
    assert "confirmation: 2 of 4 runs done" in ended.out
    assert runs == [(5, 1), (6, 1), (5, 2), (6, 2), (5, 2)]  # the broken one once more, at the end
    assert "best: trial 2, 2.594 bits per token as the mean over 2" in ended.out


def test_a_lost_confirmation_run_is_made_again(call: Command, tmp_path: Path, made_up: MadeUp):
    """As after the power failed: its process is gone, and nothing is known but that it began."""
    made_up(0.25, luck)
    search_four(call, tmp_path, "--confirm", 0)
    study = study_at(tmp_path)
    storage = study._storage
    confirmation = optuna.create_study(storage=storage, study_name="count-confirm")
    confirmation.set_user_attr("eggroll", study.user_attrs["eggroll"])
    confirmation.enqueue_trial({}, user_attrs={"trial": 1, "seed_offset": 1})
    lost = confirmation.ask()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lost.set_user_attr("worker", f"{socket.gethostname()}:{gone.pid}")
    ended = search_four(call, tmp_path, "--confirm", 2, "--confirm-seeds", 1)
    assert ended.code == 0, ended.err
    assert "best: trial 2, 2.562 bits per token as the mean over 1" in ended.out
    assert [t.state.name for t in confirmation.trials] == ["FAIL", "COMPLETE", "COMPLETE"]


@pytest.mark.parametrize(
    ("budget", "seconds", "says"),
    [
        ("8 s of updates", (7.5, 8.1, 7.9), ""),
        ("8 s of updates", (4.5, 8.1, 8.0), "trials took 4.5 to 8.1 s of 8 s of updates, so they"),
        ("9,999 member-tokens", (4.5, 8.1, 8.0), ""),  # seconds do not decide there
    ],
)
def test_uneven_seconds_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str, seconds: list[float], says: str
):
    study = optuna.create_study()
    study.set_user_attr("eggroll", {"budget": budget})
    for took in seconds:
        attrs = {"seconds": took, "updates": 5, "config": {"steps": 6, "rule": "master"}}
        study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs=attrs))
    results = Results(study, 0, 1)
    report.write_results(results, tmp_path, str(tmp_path / "all.json"), {}, draw_pictures=False)
    told = capsys.readouterr().out
    assert ("warning: " in told) == bool(says)
    assert says in told
    assert says in json.loads((tmp_path / "all.json").read_text())["warning"]
    assert [f"{took:.1f}" for took in seconds] == re.findall(r"^ *\d .* (\d\.\d) *$", told, re.M)
    assert f"--config {tmp_path / 'best.json'} --steps 60\n" in told
    assert "The learning rate of rule master falls over --steps" in told


def test_pictures_of_equal_values(tmp_path: Path):
    """Nothing is important then, and no axis has a length."""
    study = optuna.create_study(study_name="$equal")
    for _ in range(3):
        ask = study.ask()
        ask.suggest_categorical("rule", ["sign"])
        ask.suggest_int("rank", 2, 2)
        study.tell(ask, 1.0)
    drawn = draw(Results(study, 0, 1), tmp_path, "bits per byte")
    assert {"history.png", "parallel.png", "slice.png"} <= {path.name for path in drawn}


def test_importance_waits_for_trials_and_counts_pruned_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Complete trials alone would say that beta matters, which only they happen to follow."""
    study = optuna.create_study(study_name="s")
    space = {k: optuna.distributions.FloatDistribution(0, 1) for k in ("alpha", "beta")}

    def add(alpha: float, beta: float, value: float, pruned: bool) -> None:
        state = TrialState.PRUNED if pruned else TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=state, params={"alpha": alpha, "beta": beta}, distributions=space,
                value=None if pruned else value, intermediate_values={1: value},
                user_attrs={"updates": 1, "seconds": 1.0, "config": {}},
            )
        )  # fmt: skip

    for i in range(5):
        add(0.1, i / 5, 1 + i / 1000, False)
    for i in range(14):
        add(0.3 + i / 20, (i * 7 % 14) / 14, 3 + i, True)
    shown = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: shown.append((path.stem, figure)))
    draw(Results(study, 0, 1), tmp_path, "bits per byte")
    assert "importance" not in dict(shown)
    assert "importance.png waits for 20 trials" in report.importance_waits(study)
    assert "19 so far" in report.importance_waits(study)
    add(1.0, 0.5, 20, True)
    assert report.importance_waits(study) == ""
    draw(Results(study, 0, 1), tmp_path, "bits per byte")
    figure = dict(shown)["importance"]
    assert "best of 20 trials, 15 of them pruned" in " ".join(figure.get_suptitle().split())
    bars = {label.get_text(): bar.get_width() for label, bar in
            zip(figure.axes[0].get_yticklabels(), figure.axes[0].patches, strict=True)}  # fmt: skip
    assert bars["alpha"] > 2 * bars["beta"]


def test_means_count_once_all_of_the_best_have_them():
    """A trial that came later, into the best two, is not passed over for having none yet."""
    study, other = optuna.create_study(), optuna.create_study()
    for value in (2.0, 2.25, 1.75):
        study.add_trial(optuna.trial.create_trial(value=value))

    def confirm(number: int, value: float | None, offset: int = 1) -> None:
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        attrs = {"trial": number, "seed_offset": offset}
        other.add_trial(optuna.trial.create_trial(state=state, value=value, user_attrs=attrs))

    def order(seeds: int = 1) -> list[int]:
        return [ranked.trial.number for ranked in Results(study, 2, seeds, other).ranking()]

    confirm(0, 2.5)
    confirm(1, 2.375)
    assert order() == [2, 0, 1]
    confirm(2, None)  # it could not be trained with that seed
    assert order() == [1, 0, 2]
    for number, value in ((0, 2.5), (1, None), (2, None)):
        confirm(number, value, 2)
    assert order(2) == [0, 2, 1]  # one seed of two is no mean


def test_runs_that_were_all_refused_confirm_nothing():
    study, other = optuna.create_study(), optuna.create_study()
    for number, value in enumerate((2.0, 2.25)):
        study.add_trial(optuna.trial.create_trial(value=value))
        attrs = {"trial": number, "seed_offset": 1}
        other.add_trial(optuna.trial.create_trial(state=TrialState.PRUNED, user_attrs=attrs))
    results = Results(study, 2, 1, other)
    assert results.ranking()[0].trial.number == 0
    assert report.best_words(results).startswith("2.000 bits per byte with one seed; other seeds")


@pytest.mark.parametrize("confirmed", [False, True])
def test_all_pictures_and_the_table_have_one_best_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confirmed: bool
):
    """Of trials that tie it is the earliest, or the one that other seeds say."""
    study, other = optuna.create_study(), optuna.create_study()
    for alpha in (1.0, 2.0, 3.0, 2.0):
        attrs = {"updates": 5, "seconds": 1.0, "config": {}}
        space = {"alpha": optuna.distributions.FloatDistribution(0, 4)}
        values = {"value": max(alpha, 2.0), "user_attrs": attrs}
        study.add_trial(
            optuna.trial.create_trial(params={"alpha": alpha}, distributions=space, **values)
        )
    for number, value in ((0, 3.0), (1, 2.5), (3, 2.25)):
        attrs = {"trial": number, "seed_offset": 1}
        other.add_trial(optuna.trial.create_trial(value=value, user_attrs=attrs))
    results = Results(study, 3, 1, other if confirmed else None)
    shown = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: shown.append(figure))
    draw(results, tmp_path, "bits per byte")
    words = "best: trial 3, 2.0000 (2.2500 as the mean over 1 other seeds)"
    words = words if confirmed else "best: trial 0, 2.0000"
    history, parallel, slices = shown  # importance waits for more trials
    for figure in (history, parallel, slices):
        (legend,) = figure.legends
        assert words in [text.get_text() for text in legend.get_texts()]
        figure.draw_without_rendering()
        assert figure.bbox.x0 <= legend.get_window_extent().x0
        assert legend.get_window_extent().x1 <= figure.bbox.x1
    (star,) = [c for c in history.axes[0].collections if c.get_label() == words]
    assert star.get_offsets().tolist() == [[3 if confirmed else 0, 2.0]]
    lines = [line for line in parallel.axes[0].get_lines() if list(line.get_xdata()) == [0, 1]]
    assert len(lines) == 4
    assert [line.get_linewidth() == 2 for line in lines] == [False] * 3 + [True]  # on top
    assert list(lines[-1].get_ydata()) == [0, 0.5 if confirmed else 0.25]
    table = report.table(results, results.ranking())
    assert next(iter(table.columns[0].cells)) == ("3" if confirmed else "0")
    best = json.loads(report.best_options(results, results.ranking()[0], {}))
    assert best["about"]["trial"] == (3 if confirmed else 0)
