"""Whole sweeps of real runs: what they leave, who may join them, how they go on."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest
from conftest import Command
from sweeps import QUICK, SEARCH, finished, states, study_at

from eggroll import plot
from eggroll.sweep import command, plan, report
from eggroll.sweep import report as pictures
from eggroll.sweep.study import Ranked, Results
from eggroll.training import checkpoint, curves

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep over both rules."""
    folder = tmp_path_factory.mktemp("swept")
    words = ["--trials", "5", "--out", str(folder), "--json", str(folder / "all.json")]
    words += ["--search", "alpha", "learning_rate", "rule", "sigma_shift"]
    assert command.main([*QUICK, *words]) == 0
    return folder


def test_a_sweep_leaves_what_it_promises(swept: Path):
    study = study_at(swept)
    assert states(study) == ["COMPLETE"] * 5
    assert {path.name for path in swept.iterdir() if path.is_file()} == {
        *("study.db", "best.json", "all.json"),
        *(f"{name}.png" for name in pictures.PICTURES if name != "importance"),  # of 20 trials
    }
    first = study.trials[0].params  # the options as given
    assert first == {"rule": "sign", "sigma_shift": 4, "alpha": 4.0}
    for t in study.trials:
        assert ("alpha" in t.params) == (t.params["rule"] == "sign")
        assert ("learning_rate" in t.params) == (t.params["rule"] != "sign")
        assert list(t.intermediate_values) == [1, 2, 3]
        assert t.value == t.intermediate_values[3]
        run = curves.read_run(swept / f"trial-{t.number:04d}")
        assert run.valid[-1] == t.value
        assert len(run.steps) == t.user_attrs["updates"] <= run.config["steps"]
        assert all(run.config[name] == value for name, value in t.params.items())
    found = json.loads((swept / "all.json").read_text())
    assert [t["validation"] for t in found["trials"]] == [t.value for t in study.trials]
    assert found["best"] == study.best_trial.number
    assert found["unit"] == "bits per token"


def test_a_sweep_is_plotted_by_its_trials(call: Command, swept: Path, tmp_path: Path):
    out = tmp_path / "trials.svg"
    ended = call(swept, "--out", out, main=plot.main)
    assert (ended.code, ended.err) == (0, "")
    words = " ".join(re.findall(r"<!-- (.*?) -->", out.read_text()))
    assert all(f"trial-{number:04d}: " in words for number in range(5))
    ended = call(swept, main=plot.main)
    assert ended.out == f"written: {swept / 'compare.png'}\n"
    (swept / "compare.png").unlink()
    (tmp_path / "empty" / "trial-0000").mkdir(parents=True)
    ended = call(tmp_path / "empty", main=plot.main)
    assert ended.code == 2
    assert "none of the 1 trials of the sweep" in ended.err


def test_the_address_that_the_docs_give_optuna_dashboard_has_the_study(swept: Path):
    page = (Path(__file__).parents[1] / "docs" / "running.md").read_text()
    (address,) = re.findall(r"`optuna-dashboard (sqlite:///sweeps/\S+)`", page)
    here = address.replace("sweeps/stdlib", str(swept))
    (name,) = optuna.get_all_study_names(here)
    assert len(optuna.load_study(study_name=name, storage=here).trials) == 5


@pytest.mark.parametrize("name", ["random", "qmc", "cmaes", "gp"])
def test_other_samplers_search_or_name_their_packages(call: Command, tmp_path: Path, name: str):
    words = [*QUICK, "--trials", 3, "--search", "alpha", "--out", tmp_path, "--startup", 1]
    ended = call(*words, "--sampler", name, main=command.main)
    missing = [p for p in plan.SAMPLER_PACKAGES.get(name, ()) if find_spec(p) is None]
    if missing:
        assert ended.code == 2
        assert f"--sampler {name} needs {' and '.join(missing)}" in ended.err
        assert not (tmp_path / "study.db").exists()
    else:
        assert ended.code == 0, ended.err
        assert len(study_at(tmp_path).trials) == 3
    kinds = {"random": "RandomSampler", "qmc": "QMCSampler", "cmaes": "CmaEsSampler"}
    if not missing and name in kinds:
        given = plan.options_from([*map(str, words), "--sampler", name])
        assert type(plan.sampler(given)).__name__ == kinds[name]


def test_the_best_options_are_for_train(
    call: Command, tmp_path: Path, swept: Path, no_curves: None
):
    about = json.loads((swept / "best.json").read_text())["about"]
    best = study_at(swept).best_trial
    assert (about["trial"], about["validation"]) == (best.number, best.value)
    assert call("--config", swept / "best.json", "--steps", 2, "--out", tmp_path / "run").signature
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {name: written[name] for name in best.params} == best.params


def test_results_of_another_study_are_not_written_over(call: Command, tmp_path: Path, swept: Path):
    before = {path.name: path.read_bytes() for path in swept.iterdir() if path.is_file()}
    ended = call(*SEARCH, "--study", "other", "--out", swept, main=command.main)
    assert ended.code == 2
    study = study_at(swept).study_name
    assert f"is of study {study!r} and would be written over by study 'other'" in ended.err
    assert {path.name: path.read_bytes() for path in swept.iterdir() if path.is_file()} == before
    (tmp_path / "best.json").write_text("{}")
    ended = call(*SEARCH, "--out", tmp_path, main=command.main)
    assert ended.code == 2
    assert "is no result of a sweep" in ended.err


def test_options_of_a_trial_train_the_same_bits(
    call: Command, tmp_path: Path, swept: Path, no_curves: None
):
    study = study_at(swept)
    first = study.trials[0]
    assert first.params["rule"] == "sign"  # whose bits do not depend on --steps
    kept = checkpoint.load(swept / "trial-0000" / "checkpoint.safetensors")
    (tmp_path / "first.json").write_bytes(
        report.best_options(Results(study, 0, 1), Ranked(first), {})
    )
    ended = call("--config", tmp_path / "first.json", "--steps", kept.step, "--out", tmp_path / "a")
    assert ended.signature == checkpoint.signature(kept.weights)
    assert kept.step == first.user_attrs["updates"]


def test_a_budget_of_tokens_gives_the_same_bits_again(
    call: Command, tmp_path: Path, no_curves: None
):
    """In another sweep, and with the best options as they are written, on two threads."""
    words = ["--budget-tokens", 32 * 8 * 12, "--rule", "master", "--search", "learning_rate"]
    words += ["--trials", 1, "--pop", 32, "--seq-len", 8]
    found = []
    for name in ("a", "b"):
        assert call(*SEARCH, *words, "--out", tmp_path / name, main=command.main).code == 0
        (made,) = study_at(tmp_path / name).trials
        kept = checkpoint.load(tmp_path / name / "trial-0000" / "checkpoint.safetensors")
        found.append((made.value, made.user_attrs["updates"], checkpoint.signature(kept.weights)))
    assert found[0] == found[1]
    assert found[0][1] == 12
    best = ("--config", tmp_path / "a" / "best.json", "--out", tmp_path / "run", "--threads", 2)
    assert call(*best).signature == found[0][2]


def test_a_rerun_goes_on_to_the_total(call: Command, tmp_path: Path):
    words = [*QUICK, "--out", tmp_path, "--search", "alpha", "--study", "mine"]
    assert call(*words, "--trials", 2, main=command.main).code == 0
    before = [t.value for t in study_at(tmp_path, "mine").trials]
    ended = call(*words, "--trials", 3, main=command.main)
    assert ended.code == 0
    assert "trials: 2 of 3 done" in ended.out
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("3/3 · trial 2: ")
    after = [t.value for t in study_at(tmp_path, "mine").trials]
    assert (len(after), after[:2]) == (3, before)
    again = call(*words, "--trials", 3, main=command.main)
    assert (again.code, again.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--budget", 2], "begun with budget '0.1 s of updates', not '2 s of updates'"),
        (["--seed", 1], "begun with seed 0, not 1"),
        (["--val-tokens", 1024], "begun with val_tokens 512, not 1024"),
        (["--search", "alpha=1:2"], "begun with search"),
    ],
)
def test_other_options_do_not_join(call: Command, swept: Path, words: list[object], says: str):
    same = ["--search", "alpha", "learning_rate", "rule", "sigma_shift"]
    ended = call(*QUICK, "--out", swept, *same, *words, "--trials", 9, main=command.main)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert finished(study_at(swept)) == 5


def test_other_text_does_not_join(call: Command, tmp_path: Path, text: Path):
    data = tmp_path / "words.txt"
    data.write_bytes(text.read_bytes())
    words = [*QUICK, "--data", data, "--out", tmp_path / "sweep", "--search", "group_size=6"]
    assert call(*words, "--trials", 1, main=command.main).code == 2  # no such groups, but a study
    with data.open("a") as file:
        file.write("one more line\n" * 50)
    ended = call(*words, "--trials", 2, main=command.main)
    assert ended.code == 2
    assert "study 'words' was begun with text" in ended.err
    assert "give the same options, or another --study and --out." in ended.err


def test_other_threads_may_join(call: Command, swept: Path):
    words = [*QUICK, "--out", swept, "--threads", 2, "--trials", 5]
    words += ["--search", "sigma_shift", "rule", "learning_rate", "alpha"]
    assert call(*words, main=command.main).code == 0


def test_a_foreign_study_is_left_alone(call: Command, tmp_path: Path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    foreign = optuna.create_study(storage=storage, study_name="count")
    foreign.tell(foreign.ask(), 1.0)
    ended = call(*QUICK, "--out", tmp_path, main=command.main)
    assert ended.code == 2
    assert "study 'count' was begun with" in ended.err
    assert states(foreign) == ["COMPLETE"]
