"""One trial of a sweep: a training run that ends with its budget.

A budget is in tokens, which fixes the number of updates (--steps), or in seconds of updates; set-up
and validation are not counted. For seconds, a short run that is thrown away measures the speed, and
speed times seconds gives --steps, so that schedules over the run end with the budget. The run is
validated after equal slices of the budget. It stops with its last update, with its seconds, or
where the pruner finds it behind what other trials had reached at the same slice.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import optuna

from eggroll import runlog
from eggroll.config import Config
from eggroll.run import TrainingRun, open_run
from eggroll.sweep.study import alive

PROBES: Final = ".probe-"  # names of folders of short runs begin with it
PROBE: Final = 0.05  # of the seconds, in a run of its own
MOST_TIMED: Final = 10**5  # updates of that run, should the clock stand still
MOST_STEPS: Final = 10**9  # steps of a run whose length is not known yet


class Budget(NamedTuple):
    """The budget of every trial: seconds of updates or, if not 0, tokens over all members."""

    seconds: float = 0.0
    tokens: int = 0

    def __str__(self) -> str:
        if self.tokens:
            return f"{self.tokens:,} member-tokens"
        return f"{self.seconds:g} s of updates"

    def steps(self, options: Config, folder: Path, check_stop: Callable[[], None]) -> int:
        """Updates that the budget allows, 0 if not even one; `folder` takes the short run."""
        if self.tokens:
            return min(self.tokens // (options.pop * options.seq_len), MOST_STEPS)
        return updates_within(self.seconds, options, folder, check_stop)

    def slices_done(self, slices: int, step: int, steps: int, seconds: float) -> int:
        """Whole slices of the budget that `step` of `steps` updates have used, in `seconds`."""
        if step == steps:
            return slices
        done = step * slices // steps if self.tokens else int(seconds / self.seconds * slices)
        return min(done, slices)


def open_quietly(options: Config, stack: ExitStack) -> TrainingRun:
    with contextlib.redirect_stdout(io.StringIO()):  # the sweep has said it once for all runs
        return open_run(options, stack)


def updates_within(
    seconds: float, options: Config, folder: Path, check_stop: Callable[[], None]
) -> int:
    """Updates that fit into `seconds`, by the median of a few in a run that is thrown away."""
    mine = f"{PROBES}{socket.gethostname()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=mine, dir=folder) as place, ExitStack() as stack:
        run = open_quietly(replace(options, out=place, steps=MOST_STEPS), stack)
        run.update()  # not timed, as it wakes threads and fills the noise table
        times: list[float] = []
        while sum(times) < PROBE * seconds and len(times) < MOST_TIMED:
            check_stop()
            times.append(run.update()["seconds"])
    usual = statistics.median(times)
    return min(int(seconds / usual), MOST_STEPS) if usual > 0 else 0


def remove_lost_probes(folder: Path) -> None:
    """Removes the short runs of processes of this machine that were killed in the middle of one."""
    for place in folder.glob(f"{PROBES}*"):
        host, _, pid = place.name.rpartition("-")[0].rpartition("-")
        if host == f"{PROBES}{socket.gethostname()}" and not alive(pid):
            shutil.rmtree(place, ignore_errors=True)


def train_trial(
    trial: optuna.Trial,
    options: Config,
    budget: Budget,
    slices: int,
    check_stop: Callable[[], None],
) -> float:
    """Trains in `options.out`; returns the last validation in bits per token.

    check_stop: called before every update; what it raises ends the trial.

    Raises:
        TrialPruned: others had reached more at the same slice of the budget.
    """
    with ExitStack() as stack:
        run = open_quietly(options, stack)
        metrics = stack.enter_context(runlog.Metrics(run.path(runlog.METRICS), 0))
        value, spent, done = run.validate(), 0.0, 0
        while done < slices:
            check_stop()
            row = run.update()
            spent += row["seconds"]
            now = budget.slices_done(slices, run.step, options.steps, spent)
            row |= run.validation() if now > done else {}
            metrics.append(row)
            for part in range(done + 1, now + 1):  # an update across several counts in the last
                value = run.val_loss if part == now and run.val_loss is not None else value
                trial.report(value, part)
            behind = done < now < slices and trial.should_prune()
            done = slices if behind else now
        metrics.sync()
        run.save()
        trial.set_user_attr("updates", run.step)
        trial.set_user_attr("seconds", round(spent, 3))
    if behind:
        raise optuna.TrialPruned
    return value
