"""Workers of a sweep count every trial once and lose none, however they end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from conftest import Command
from optuna.trial import TrialState
from sweeps import KINDS, QUICK, TINY, finished, start, states, study_at

from eggroll.sweep import command
from eggroll.sweep import command as workers
from eggroll.sweep.study import open_study

pytestmark = pytest.mark.usefixtures("no_pictures")


def took_part(study: optuna.Study) -> set[str]:
    return {t.user_attrs["worker"] for t in study.get_trials() if t.state == TrialState.COMPLETE}


def test_two_workers_share_the_trials(tmp_path: Path):
    words = [*TINY, "--budget", 0.3, "--slices", 2, "--pruner", "none", "--search", "alpha"]
    words += ["--confirm", 2]
    with start(*words, "--workers", 2, "--trials", 5, "--out", tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    study = study_at(tmp_path)
    assert finished(study) == 5
    assert len(took_part(study)) == 2
    assert sorted(re.findall(r"^(\d)/5 · trial", err, re.M)) == list("12345")
    assert "best: trial" in out
    assert len(list(tmp_path.glob("trial-*/checkpoint.safetensors"))) == 5
    assert len(list(tmp_path.glob("confirm-*/checkpoint.safetensors"))) == 4
    assert states(study_at(tmp_path, "count-confirm")) == ["COMPLETE"] * 4


def test_two_commands_share_a_study(tmp_path: Path):
    """As two machines would: each with a folder of its own; each waits until both have a trial."""
    (tmp_path / "begun").mkdir()
    patch = f"""
import os, pathlib, time
real, place = plan.updates_within, pathlib.Path({str(tmp_path / "begun")!r})
def both(*words):
    (place / str(os.getpid())).touch()
    while len(list(place.iterdir())) < 2: time.sleep(0.01)
    return real(*words)
plan.updates_within = both
"""
    words = [*QUICK, "--search", "alpha", "--trials", 5]
    words += ["--storage", f"journal:///{tmp_path / 'study.log'}"]
    both = [start(*words, "--out", tmp_path / name, patch=patch) for name in ("one", "two")]
    for process in both:
        with process:
            _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    study = study_at(tmp_path)
    assert finished(study) == 5
    assert len(took_part(study)) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Heartbeat", "ignore::optuna.exceptions.ExperimentalWarning")
def test_no_trial_is_given_twice(tmp_path: Path, kind: str):
    """Optuna on SQLite alone hands one enqueued trial to several that ask at the same time."""

    def opened() -> optuna.Study:
        sampler, pruner = optuna.samplers.RandomSampler(), optuna.pruners.NopPruner()
        return open_study(str(tmp_path / KINDS[kind]), "count", sampler, pruner)

    studies = [opened() for _ in range(4)]
    for number in range(24):
        studies[0].enqueue_trial({"x": number})
    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda i: studies[i % 4].ask().number, range(24)))
    assert sorted(asked) == list(range(24))


def test_an_interrupt_within_optuna_stays_one():
    """Its cleaning up uses what an interrupted call has not returned."""

    class Interrupted:
        def optimize(self, *_: object, **__: object) -> None:
            try:
                raise KeyboardInterrupt("Stopped at once")
            finally:
                raise UnboundLocalError("updated_state")

    with pytest.raises(KeyboardInterrupt, match="Stopped at once"):
        workers.run_trial(Interrupted(), None, lambda: None)  # type: ignore[arg-type]


def wait_for(process: subprocess.Popen[str], line: str) -> str:
    """Reads stderr up to a line with that text."""
    assert process.stderr is not None
    said = ""
    for said in process.stderr:
        if line in said:
            return said
    raise AssertionError(f"ended without {line!r}: {said}")


@pytest.mark.parametrize(
    ("number", "workers", "kind"),
    [(signal.SIGINT, 1, "sqlite"), (signal.SIGTERM, 2, "journal")],
    ids=str,
)
def test_a_signal_keeps_finished_trials(
    call: Command, tmp_path: Path, number: signal.Signals, workers: int, kind: str
):
    words = [*TINY, "--confirm", 0, "--slices", 2, "--pruner", "none", "--search", "alpha"]
    words += ["--budget", 0.3, "--out", tmp_path, "--storage", tmp_path / KINDS[kind]]
    words += ["--workers", workers]
    with start(*words, "--trials", 1000) as process:
        wait_for(process, "2/1000 · ")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.rstrip().endswith("run the same command again to go on.")
    study = study_at(tmp_path)
    done = finished(study)
    assert done >= 2
    assert "RUNNING" not in states(study)
    assert "best: trial" in out
    best = json.loads((tmp_path / "best.json").read_text())["about"]
    assert best["validation"] == study.best_value
    broken = {t.number for t in study.trials if t.state == TrialState.FAIL and t.params}
    assert not list(tmp_path.glob(".probe-*"))
    assert call(*words[:-2], "--trials", done + 2, main=command.main).code == 0
    study = study_at(tmp_path)
    assert finished(study) == done + 2
    again = {t.user_attrs["retry"]: t.params for t in study.trials if "retry" in t.user_attrs}
    assert again == {number: study.trials[number].params for number in broken}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_run_again(call: Command, tmp_path: Path, kind: str):
    words = [*TINY, "--confirm", 0, "--slices", 2, "--pruner", "none", "--search", "alpha"]
    words += ["--out", tmp_path, "--storage", tmp_path / KINDS[kind], "--budget", 0.4]
    with start(*words, "--trials", 1000) as process:
        wait_for(process, "1/1000 · ")
        deadline = time.monotonic() + 30
        while not any(t.params for t in study_at(tmp_path).trials if not t.state.is_finished()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.1)  # lets go of the journal's lock, which others break after 30 s only
        process.kill()
        process.communicate(timeout=30)
    left = [t for t in study_at(tmp_path).trials if t.state == TrialState.RUNNING]
    done = finished(study_at(tmp_path))
    assert call(*words, "--trials", done + 1, main=command.main).code == 0
    study = study_at(tmp_path)
    assert finished(study) == done + 1
    assert "RUNNING" not in states(study)
    assert [t.user_attrs["retry"] for t in study.trials if "retry" in t.user_attrs] == [
        t.number for t in left
    ]


def test_a_worker_that_fails_says_why(tmp_path: Path):
    """The folder of its first trial is taken."""
    for number in range(2):
        taken = tmp_path / f"trial-{number:04d}"
        taken.mkdir()
        (taken / "config.json").write_text("{}")
    with start(*QUICK, "--search", "alpha", "--workers", 2, "--out", tmp_path) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "trial-0000' already holds a run" in err
    assert "workers ended early" in err
    assert "Traceback" not in err
