"""One trial of a sweep: clock and validation are made up, so that what happens is known."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from conftest import Command
from optuna.trial import TrialState
from sweeps import QUICK, TINY, MadeUp, made_up_runs, states, study_at

from eggroll.sweep import command, plan
from eggroll.sweep import plan as options
from eggroll.sweep import plan as trial
from eggroll.sweep.plan import Budget
from eggroll.training import checkpoint
from eggroll.training.config import Config

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    return made_up_runs(monkeypatch)


def config(folder: Path, **other: object) -> Config:
    values = {"pop": 32, "width": 16, "seq_len": 8, "table_bits": 16, "val_tokens": 512}
    return Config(data="count", out=str(folder), **values | other)  # type: ignore[arg-type]


def test_a_slice_shows_what_was_reached_in_its_seconds(tmp_path: Path, made_up: MadeUp):
    """Updates of 0.35 s in a budget of 1 s: each ends some slices, and counts in the last."""
    made_up(0.35, lambda config, step: 8.0 - step)
    study = optuna.create_study()
    ask = study.ask()
    value = trial.train_trial(ask, config(tmp_path / "run", steps=9), Budget(1.0), 10, lambda: None)
    study.tell(ask, value)
    reported = study.trials[0].intermediate_values
    assert reported == dict(enumerate([8, 8, 7, 7, 7, 7, 6, 6, 6, 5], 1))
    assert value == 5
    assert study.trials[0].user_attrs == {"updates": 3, "seconds": 1.05}


def test_the_last_update_ends_all_slices(tmp_path: Path, made_up: MadeUp):
    made_up(0.1, lambda config, step: 8.0 - step)
    study = optuna.create_study()
    ask = study.ask()
    trial.train_trial(ask, config(tmp_path / "run", steps=2), Budget(1.0), 4, lambda: None)
    study.tell(ask, 0)
    assert study.trials[0].intermediate_values == {1: 8.0, 2: 8.0, 3: 8.0, 4: 6.0}


def test_the_budget_times_the_speed_is_the_number_of_updates(tmp_path: Path, made_up: MadeUp):
    made_up(0.25, lambda config, step: 1.0)
    assert trial.updates_within(10, config(tmp_path), tmp_path, lambda: None) == 40
    assert trial.updates_within(0.2, config(tmp_path), tmp_path, lambda: None) == 0
    assert not list(tmp_path.iterdir())


def test_tokens_end_a_trial_however_long_it_takes(tmp_path: Path, made_up: MadeUp):
    """1,700 tokens of 32 members that read 8 at a time are 6 updates; slices are shares of them."""
    values = []
    for seconds in (0.001, 9.0):
        made_up(seconds, lambda config, step: 8.0 - step)
        budget, study = Budget(tokens=1700), optuna.create_study()
        ask, folder = study.ask(), tmp_path / str(seconds)
        steps = budget.steps(config(folder), tmp_path, lambda: None)
        values.append(trial.train_trial(ask, config(folder, steps=steps), budget, 4, lambda: None))
        study.tell(ask, values[-1])
        assert study.trials[0].intermediate_values == {1: 6, 2: 5, 3: 3, 4: 2}
        assert study.trials[0].user_attrs == {"updates": 6, "seconds": 6 * seconds}
    assert values == [2, 2]
    assert Budget(tokens=255).steps(config(tmp_path), tmp_path, lambda: None) == 0


def test_a_hopeless_trial_is_pruned(call: Command, tmp_path: Path, made_up: MadeUp):
    made_up(0.125, lambda config, step: 1.0 if config.alpha < 6 else 9.0)
    words = [*TINY, "--budget", 1, "--slices", 8, "--startup", 1, "--out", tmp_path]
    words += ["--search", "alpha=0.5:12"]
    assert call(*words, "--trials", 1, main=command.main).code == 0
    study_at(tmp_path).enqueue_trial({"alpha": 9.0})
    study_at(tmp_path).enqueue_trial({"alpha": 5.0})
    ended = call(*words, "--trials", 3, main=command.main)
    assert ended.code == 0, ended.err
    good, bad, fair = study_at(tmp_path).trials
    assert [t.params["alpha"] for t in (good, bad, fair)] == [4, 9, 5]
    assert [t.state.name for t in (good, bad, fair)] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert (good.last_step, bad.last_step, fair.last_step) == (8, 1, 8)
    assert "trial 1: pruned at 9.000 after 1 of 8 slices" in ended.err
    assert checkpoint.load(tmp_path / "trial-0001" / "checkpoint.safetensors").step == 1


@pytest.mark.parametrize(
    ("axis", "says"), [("group_size=6", "--group-size is 6"), ("seq_len=8192", "too small")]
)
def test_an_impossible_combination_is_pruned(
    call: Command, tmp_path: Path, text: Path, axis: str, says: str
):
    words = [*QUICK, "--data", text, "--study", "count", "--trials", 2]
    ended = call(*words, "--out", tmp_path, "--search", axis, main=command.main)
    assert ended.code == 2, "no trial could make an update"
    assert "error: none of the 2 trials could make an update (trial 1: " in ended.err
    assert states(study_at(tmp_path)) == ["PRUNED", "PRUNED"]
    assert ended.err.count(": not possible (") == 2
    assert says in ended.err
    assert "no trial has finished" in ended.out
    assert not (tmp_path / "best.json").exists()


def test_an_update_longer_than_the_budget_is_not_possible(
    call: Command, tmp_path: Path, made_up: MadeUp
):
    made_up(2.0, lambda config, step: 1.0)
    words = [*QUICK, "--trials", 1, "--out", tmp_path, "--search", "alpha"]
    ended = call(*words, main=command.main)
    assert "one update takes more than the budget" in ended.err
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("error: none of the 1 trials could make an update")
    assert states(study_at(tmp_path)) == ["PRUNED"]


def test_a_trial_that_was_taken_for_dead_is_left_alone(
    call: Command, tmp_path: Path, made_up: MadeUp
):
    """As after a machine slept so long that others found no sign of life."""

    def value(config: Config, step: int) -> float:
        if config.alpha == 4 and step == 1:
            study = study_at(tmp_path)
            if study.trials[0].state == TrialState.RUNNING:
                study.tell(0, state=TrialState.FAIL)
        return 1.0

    made_up(0.125, value)
    words = [*TINY, "--budget", 1, "--slices", 8, "--trials", 2, "--out", tmp_path]
    ended = call(*words, "--search", "alpha", main=command.main)
    assert ended.code == 0, ended.err
    assert states(study_at(tmp_path)) == ["FAIL", "COMPLETE", "COMPLETE"]


def test_a_trial_beyond_the_total_is_given_back(tmp_path: Path):
    """Of workers that ask at the same time, those with the lowest numbers may go on."""
    given = options.options_from([*QUICK, "--trials", "1", "--out", str(tmp_path)])
    phase = plan.Search(plan.make_plan(given))
    study = optuna.create_study()
    study.ask()
    with pytest.raises(plan.TooManyTrials):
        phase.objective(study.ask(), lambda: None)
