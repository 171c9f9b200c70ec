"""Sweeps that are killed and interrupted over and over: finished trials stay, and all get done."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import optuna
from ended import Broken

from eggroll.files import CHECKPOINT
from faults.commands import DONE, INTERRUPTED, TINY, Child, some, state_of

WORDS = [
    *TINY[: TINY.index("--steps")], "--search", "alpha", "--pruner", "none", "--confirm", "0",
    "--slices", "2", "--budget-tokens", str(32 * 8 * 40),
]  # fmt: skip
KINDS = {"sqlite": "study.db", "journal": "study.log"}
SIGNALS = {
    "SIGKILL": ([signal.SIGKILL], {-signal.SIGKILL}),
    "SIGTERM": ([signal.SIGTERM], {INTERRUPTED, -signal.SIGTERM}),
    "SIGINT twice": ([signal.SIGINT] * 2, {INTERRUPTED, -signal.SIGINT}),
    "SIGSTOP, SIGCONT and SIGKILL": (
        [signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL],
        {-signal.SIGKILL},
    ),
}


class Sweep:
    """One sweep under attack; finished: trial -> its value, which may never change again."""

    def __init__(self, folder: Path, kind: str, workers: int, chance: random.Random) -> None:
        self.folder, self.kind, self.chance = folder, kind, chance
        self.counts: Counter[str] = Counter()
        self.finished: dict[int, float | None] = {}
        storage = folder.parent / KINDS[kind]
        self.words = [*WORDS, "--out", folder, "--storage", storage, "--workers", workers]

    def study(self) -> optuna.Study | None:
        place = self.folder.parent / KINDS[self.kind]
        if not place.exists():
            return None
        storage: optuna.storages.BaseStorage | str = f"sqlite:///{place}"
        if self.kind == "journal":
            backend = optuna.storages.journal.JournalFileBackend(str(place))
            storage = optuna.storages.JournalStorage(backend)
        try:
            return optuna.load_study(study_name="count", storage=storage)
        except (KeyError, AssertionError):  # killed before it was made, or its tables were
            return None

    def attack(self, name: str) -> None:
        signals, codes = SIGNALS[name]
        child = Child(*self.words, "--trials", 10**6, module="eggroll.sweep")
        if self.chance.random() < 0.8:
            wanted = len(self.finished) + int(some(self.chance, 1, 4))
            pattern = "trial-*/" + CHECKPOINT
            child.wait_for(lambda: len(list(self.folder.glob(pattern))) >= wanted)
        time.sleep(self.chance.uniform(0, 0.3))
        for number in signals:
            child.send(number)
            time.sleep(self.chance.uniform(0, 0.02))
        ended = child.ended()
        if ended.code not in codes:
            raise Broken(f"sweep, {name}: {ended}")
        self.counts[name] += 1
        self._look()

    def _look(self) -> None:
        study = self.study()
        if study is None:
            if self.finished:
                raise Broken(f"{self.folder}: the study is lost")
            return
        self.counts["studies read"] += 1
        trials = study.get_trials(deepcopy=False)
        for number, value in self.finished.items():
            if trials[number].value != value or not trials[number].state.is_finished():
                raise Broken(f"{self.folder}: trial {number} was {value}: {trials[number]}")
        done = [t for t in trials if t.state == optuna.trial.TrialState.COMPLETE]
        self.finished = {t.number: t.value for t in done}
        for trial in done:
            state_of(self.folder / f"trial-{trial.number:04d}" / CHECKPOINT)
            self.counts["checkpoints of trials verified"] += 1

    def end(self) -> None:
        """Lets it finish, with a trial more than there are."""
        wanted = len(self.finished) + 1
        ended = Child(*self.words, "--trials", wanted, module="eggroll.sweep").ended()
        if ended.code != DONE:
            raise Broken(f"sweep that should finish: {ended}")
        self._look()
        if len(self.finished) < wanted:
            raise Broken(f"{self.folder}: {len(self.finished)} of {wanted} trials")
        left = [p.name for p in self.folder.iterdir() if p.name.startswith(".")]
        if left:
            raise Broken(f"{self.folder}: {left} are left")
        study = self.study()
        assert study
        if any(t.state == optuna.trial.TrialState.RUNNING for t in study.get_trials()):
            raise Broken(f"{self.folder}: a trial runs for ever")
        self.counts["sweeps finished"] += 1


def attacked(turn: int, seed: int, number: int) -> Counter[str]:
    """A sweep that is attacked so many times and then finishes; returns counts."""
    chance = random.Random(f"sweep {seed} {turn}")
    place = Path(tempfile.mkdtemp(prefix="eggroll-swept-"))
    kind, workers = list(KINDS)[turn % 2], 1 + turn % 4 // 2
    sweep = Sweep(place / "sweep", kind, workers, chance)
    for _ in range(number):
        sweep.attack(chance.choice(list(SIGNALS)))
    sweep.end()
    shutil.rmtree(place)
    return sweep.counts
