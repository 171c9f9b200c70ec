"""One trial of a sweep: a run that has a budget of seconds.

A trial has `budget` seconds of updates; set-up and validation are not counted. First its speed is
probed in a run that is thrown away. Budget times speed is the number of its --steps, so a schedule
over the run ends with the budget, and the same options train the same bits again. Then the real
run is validated after equal slices of the budget, and stops with its last update, with the budget,
or where the pruner finds it behind what other trials had reached after as many seconds.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import optuna

from eggroll import runlog
from eggroll.config import Config
from eggroll.run import TrainingRun, open_run

PROBE: Final = 0.05  # of the budget, in a run of its own
MOST: Final = 10**9  # steps of a run whose length is not known yet


def open_quietly(options: Config, stack: ExitStack) -> TrainingRun:
    with contextlib.redirect_stdout(io.StringIO()):  # what a run tells once is told by the sweep
        return open_run(options, stack)


def updates_within(budget: float, options: Config, folder: Path, look: Callable[[], None]) -> int:
    """Updates that the budget has time for, by the median of a few in a run that is thrown away."""
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=folder) as place, ExitStack() as stack:
        run = open_quietly(replace(options, out=place, steps=MOST), stack)
        run.update()  # not timed, as it wakes threads and fills the noise table
        seconds: list[float] = []
        while sum(seconds) < PROBE * budget:
            look()
            seconds.append(run.update()["seconds"])
    return min(int(budget / statistics.median(seconds)), MOST)


def train_trial(
    trial: optuna.Trial, options: Config, budget: float, slices: int, look: Callable[[], None]
) -> float:
    """Trains in `options.out`; returns the last validation in bits per token.

    Raises:
        TrialPruned: others had reached more after as many seconds.
        Stopped: `look` says so.
    """
    with ExitStack() as stack:
        run = open_quietly(options, stack)
        metrics = stack.enter_context(runlog.Metrics(run.path(runlog.METRICS), 0))
        value, spent, done = run.validate(), 0.0, 0
        while done < slices:
            look()
            row = run.update()
            spent += row["seconds"]
            now = min(int(spent / budget * slices), slices)
            now = slices if run.step == options.steps else now
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
