"""Runs that are killed, stopped and resumed over and over, until they end as if undisturbed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

from ended import Broken, Ended

from eggroll.files import CHECKPOINT, METRICS
from faults.cases import Case
from faults.commands import (
    DONE,
    INTERRUPTED,
    REFUSED,
    Child,
    State,
    check_metrics,
    lines_of,
    partials,
    preloaded,
    some,
    state_of,
)

# The fault, and the ways in which the command may end by it; done it may be in any case.
KILL, OPERATION = "SIGKILL", "SIGKILL at a file operation"
TERM, TWICE, PAUSE = "SIGTERM", "SIGINT twice", "SIGSTOP, SIGCONT and SIGKILL"
ENDS = {
    KILL: {-signal.SIGKILL},
    OPERATION: {-signal.SIGKILL},
    PAUSE: {-signal.SIGKILL},
    TERM: {INTERRUPTED},
    TWICE: {INTERRUPTED},
}


class Chain:
    """One run under attack in its folder.

    counts: of starts, faults, ends, checkpoints looked at and resumes that went on exactly.
    """

    def __init__(self, case: Case, folder: Path, chance: random.Random) -> None:
        self.case, self.folder, self.chance = case, folder, chance
        self.counts: Counter[str] = Counter()
        self.last: State | None = None
        self.before = 0

    def attack(self, fault: str) -> bool:
        """Starts or resumes the run and breaks it; True once the run has made all its updates."""
        self.counts["starts"] += 1
        child = self._start(fault)
        if fault != OPERATION:
            self._strike(child, fault)
        ended = child.ended()
        if ended.code == DONE:
            self.counts["ended before the fault"] += 1
        elif ended.code in ENDS[fault]:
            self.counts[fault] += 1
        elif self._too_early(ended, fault):
            self.counts[f"{fault} before Python had set a handler"] += 1
        else:
            raise Broken(f"{fault}: {ended} of {child.words}")
        self._look(ended)
        return ended.code == DONE

    def _start(self, fault: str) -> Child:
        words = ["--resume", self.folder] if self.last else [*self.case.words, "--out", self.folder]
        # Most often between checkpoints a few updates apart, as each costs several operations.
        words += ["--checkpoint-every", self.chance.choice([1, 1, 2, 3, 7])]
        env, self.before = {}, self._metrics()
        if fault == OPERATION:
            what = self.chance.choice(["kill", "after", "half"])
            number = int(some(self.chance, 1, 300))
            env = preloaded(f"{number} {what} {self.folder}")
        return Child(*words, module=self.case.module, env=env)

    def _metrics(self) -> int:
        """Which file metrics.jsonl is: a start replaces it, and lines before that are old ones."""
        path = self.folder / METRICS
        return path.stat().st_ino if path.exists() else 0

    def _strike(self, child: Child, fault: str) -> None:
        """Sends the signals at a moment drawn by chance: after so many updates, or so soon."""
        if self.chance.random() < 0.15:
            time.sleep(self.chance.uniform(0, 1.5))
        else:
            wanted = (self.last.step if self.last else 0) + int(some(self.chance, 1, 60))
            child.wait_for(
                lambda: self._metrics() != self.before and lines_of(self.folder) >= wanted
            )
            time.sleep(self.chance.uniform(0, 0.004))
        signals = {
            KILL: [signal.SIGKILL],
            TERM: [signal.SIGTERM],
            TWICE: [signal.SIGINT, signal.SIGINT],
            PAUSE: [signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL],
        }
        for number in signals[fault]:
            child.send(number)
            if number != signal.SIGKILL:
                time.sleep(self.chance.uniform(0, 0.05 if fault == PAUSE else 0.003))

    def _too_early(self, ended: Ended, fault: str) -> bool:
        """True of a signal that came while Python itself was starting, which nothing can catch."""
        number = {TERM: signal.SIGTERM, TWICE: signal.SIGINT}.get(fault)
        return number is not None and ended.code == -number

    def _look(self, ended: Ended) -> None:
        path = self.folder / CHECKPOINT
        before = self.last
        if path.exists():
            self.counts["checkpoints verified"] += 1
            self.last = state_of(path)  # raises if it is damaged
            if not self.case.expects(self.last):
                raise Broken(f"{self.folder}: update {self.last.step} is another than undisturbed")
            check_metrics(self.folder, self.last.step)
        elif before:
            raise Broken(f"{self.folder}: the checkpoint of update {before.step} is lost")
        if before and self.last:
            if self.last.step < before.step:
                raise Broken(f"{self.folder}: from update {before.step} back to {self.last.step}")
            self.counts["exact resumes"] += self.last.step > before.step
        if ended.code == DONE and ended.signature != self.case.signature:
            raise Broken(f"{self.folder}: signature {ended.signature}")
        if ended.code == DONE and partials(self.folder):
            raise Broken(f"{self.folder}: {partials(self.folder)} are left")


def refused_without_checkpoint(chain: Chain) -> None:
    """What was killed before its first checkpoint begins again under the same command."""
    if chain.last is None and chain.folder.exists():
        ended = Child("--resume", chain.folder, module=chain.case.module).ended()
        if ended.code != REFUSED or "holds no checkpoint" not in ended.err:
            raise Broken(f"resumed without a checkpoint: {ended}")
