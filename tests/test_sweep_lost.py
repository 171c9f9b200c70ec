"""What killed sweeps leave, and studies that are damaged or not what they should be."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from conftest import Command
from optuna.trial import TrialState, create_trial
from sweeps import KINDS, QUICK, MadeUp, made_up_runs, states, study_at

from eggroll.sweep import command
from eggroll.sweep.study import TRIES, fail_lost_trials, retry_failed

pytestmark = pytest.mark.usefixtures("no_pictures")
optuna.logging.set_verbosity(optuna.logging.ERROR)
RANGE = optuna.distributions.FloatDistribution(0.5, 8)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    return made_up_runs(monkeypatch)


def failed(study: optuna.Study, **attrs: object) -> None:
    trial = create_trial(
        state=TrialState.FAIL, params={"alpha": 1.5}, distributions={"alpha": RANGE},
        user_attrs=attrs,
    )  # fmt: skip
    study.add_trial(trial)


def lose(study: optuna.Study) -> None:
    """Begins the trial that waits first, and fails it as one whose process is gone."""
    trial = study.ask({"alpha": RANGE})
    study.tell(trial, state=TrialState.FAIL)


def test_a_lost_trial_is_tried_again_once_for_each_loss():
    study = optuna.create_study()
    failed(study)
    for _ in range(3):  # as three workers that come one after the other
        retry_failed(study)
    assert states(study) == ["FAIL", "WAITING"]
    assert study.trials[1].user_attrs == {"retry": 0}


def test_options_that_are_lost_again_and_again_are_given_up():
    study = optuna.create_study()
    failed(study)
    for _ in range(10):
        retry_failed(study)
        if "WAITING" not in states(study):
            break
        lose(study)
    assert states(study) == ["FAIL"] * TRIES


def test_what_a_signal_stopped_is_never_given_up():
    study = optuna.create_study()
    failed(study, stopped=True)
    for _ in range(2 * TRIES):
        retry_failed(study)
        trial = study.ask({"alpha": RANGE})
        trial.set_user_attr("stopped", True)
        study.tell(trial, state=TrialState.FAIL)
    retry_failed(study)
    assert states(study) == ["FAIL"] * (2 * TRIES + 1) + ["WAITING"]


@pytest.mark.parametrize("retry", [-1, 99, "x", True, 1])
def test_a_link_to_nowhere_ends_the_count(retry: object):
    study = optuna.create_study()
    failed(study)
    failed(study, retry=retry)
    retry_failed(study)
    assert "WAITING" in states(study)


@pytest.mark.parametrize("worker", ["", "x", f"{socket.gethostname()}:abc", 7, "a:9" * 99])
def test_a_worker_that_is_none_is_left_to_heartbeats(worker: object):
    study = optuna.create_study()
    study.ask().set_user_attr("worker", worker)
    fail_lost_trials(study)
    assert states(study) == ["RUNNING"]


@pytest.mark.parametrize("comes", [True, False])
def test_a_trial_waits_for_its_workers_name(comes: bool, monkeypatch: pytest.MonkeyPatch):
    """A process that was killed before it had told it would be counted as at work for ever."""
    study, waited = optuna.create_study(), []
    trial = study.ask()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if comes:
            trial.set_user_attr("worker", f"{socket.gethostname()}:{os.getpid()}")

    monkeypatch.setattr(time, "sleep", sleep)
    fail_lost_trials(study)
    assert states(study) == ["RUNNING" if comes else "FAIL"]
    fail_lost_trials(study)
    assert len(waited) == 1


def test_short_runs_of_killed_processes_are_removed(call: Command, tmp_path: Path, made_up):
    made_up(0.001, lambda config, step: 1.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = f".probe-{socket.gethostname()}"
    for name in (f"{here}-{gone.pid}-abc", f"{here}-{os.getpid()}-abc", ".probe-else-where-7-abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    assert call(*QUICK, "--trials", 1, "--out", tmp_path, main=command.main).code == 0
    left = {path.name for path in tmp_path.glob(".probe*")}
    assert left == {f"{here}-{os.getpid()}-abc", ".probe-else-where-7-abc"}


def sentence(ended) -> str:
    assert ended.code == 2, ended
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert len(ended.err) <= 510
    return ended.err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data", [b"", b"\0" * 999, b"[1, 2\n", b"true\n7\n", b'{"op_code": "x"}\n']
)
def test_a_damaged_study_is_refused(call: Command, tmp_path: Path, made_up, kind: str, data: bytes):
    made_up(0.001, lambda config, step: 1.0)
    place = tmp_path / KINDS[kind]
    place.write_bytes(data)
    words = ["--trials", 1, "--out", tmp_path / "sweep", "--storage", place]
    ended = call(*QUICK, *words, main=command.main)
    if data:
        assert "cannot be used" in sentence(ended)
    else:
        assert ended.code == 0  # an empty file is one that is new


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep of two trials."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eggroll.sweep.report.draw", lambda results, folder, unit: [])
        made_up_runs(patch)(0.01, lambda config, step: 1.0)
        assert command.main([*QUICK, "--trials", "2", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("known", [True, {}, "more"])
def test_other_settings_are_refused(call: Command, tmp_path: Path, swept: Path, known: object):
    shutil.copy(swept / "study.db", tmp_path)
    study = study_at(tmp_path)
    more = study.user_attrs["eggroll"] | {"later": 7}
    study.set_user_attr("eggroll", more if known == "more" else known)
    said = sentence(call(*QUICK, "--trials", 2, "--out", tmp_path, main=command.main))
    assert "was begun with" in said
    assert known != "more" or "later 7, not None" in said


@pytest.mark.parametrize("asked", [99, "x", [1]])
def test_a_confirmation_of_nothing(call: Command, tmp_path: Path, swept: Path, asked: object):
    shutil.copy(swept / "study.db", tmp_path)
    study = study_at(tmp_path)
    confirmation = optuna.create_study(storage=study._storage, study_name="count-confirm")
    confirmation.set_user_attr("eggroll", study.user_attrs["eggroll"])
    confirmation.enqueue_trial({}, user_attrs={"trial": asked, "seed_offset": 1})
    ended = call(*QUICK, "--trials", 2, "--out", tmp_path, "--confirm", 1, main=command.main)
    assert "asks for a run that cannot be" in sentence(ended)
