"""Shared by the tests of sweeps: tiny options, their studies, and made-up runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from eggroll.training.config import Config
from eggroll.training.run import TrainingRun

TINY = [
    *("--data", "count", "--pop", "32", "--width", "16", "--seq-len", "8", "--table-bits", "16"),
    *("--val-tokens", "512", "--sample-tokens", "8", "--threads", "1"),
]
SEARCH = [*TINY, "--slices", "3", "--pruner", "none", "--confirm", "0"]
QUICK = [*SEARCH, "--budget", "0.1"]
KINDS = {"sqlite": "study.db", "journal": "study.log"}


MadeUp = Callable[[float, Callable[[Config, int], float]], None]


def made_up_runs(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """Updates take the given seconds; validations give `value(config, update)`."""

    def use(seconds: float, value: Callable[[Config, int], float]) -> None:
        def update(run: TrainingRun) -> dict[str, float]:
            run.learner.step += 1
            return {"step": run.step, "loss": 0.0, "seconds": seconds}

        monkeypatch.setattr(TrainingRun, "update", update)
        monkeypatch.setattr(TrainingRun, "validate", lambda run: value(run.config, run.step))

    return use


def study_at(place: Path, name: str = "count") -> optuna.Study:
    storage = place / "study.log"
    if storage.exists():
        backend = optuna.storages.journal.JournalFileBackend(str(storage))
        return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))
    return optuna.load_study(study_name=name, storage=f"sqlite:///{place / 'study.db'}")


def states(study: optuna.Study) -> list[str]:
    return [t.state.name for t in study.get_trials()]


def finished(study: optuna.Study) -> int:
    return sum(state in ("COMPLETE", "PRUNED") for state in states(study))


def start(*words: object, patch: str = "") -> subprocess.Popen[str]:
    """A sweep in a process of its own, with something changed in it before it begins."""
    begin = "import sys\nfrom eggroll.sweep import command, plan"
    code = f"{begin}\n{patch}\nsys.exit(command.main())"
    begin = ["-c", code] if patch else ["-m", "eggroll.sweep"]
    command = [sys.executable, *begin, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
