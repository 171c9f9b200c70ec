"""The files that grow with every update of a run: its metrics, and some runs' replay log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final, get_args

from eggroll import checkpoint, runlog
from eggroll.anyrun import Run
from eggroll.config import Config
from eggroll.help import CHANGEABLE
from eggroll.options import TYPES
from eggroll.replay_log import SignLog
from eggroll.run import TrainingRun

MAY_CHANGE: Final = {name for name, hint in TYPES.items() if CHANGEABLE in get_args(hint)[1:]}

Log = runlog.Metrics | SignLog


def opened(run: Run, stack: ExitStack) -> list[Log]:
    """The logs of a run with a folder, cut back to its present step; the stack closes them."""
    logs: list[Log] = [stack.enter_context(runlog.Metrics(run.path(runlog.METRICS), run.step))]
    if isinstance(run, TrainingRun) and run.config.estimator_class.replays:
        logs.append(stack.enter_context(_signs(run)))
    return logs


def notes(logs: list[Log]) -> list[str]:
    """Sentences on logs that are not kept."""
    return [
        f"No more signs of pairs are recorded, as {log.lacks}: updates from here on cannot be "
        "replayed."
        for log in logs
        if isinstance(log, SignLog) and log.lacks
    ]


def _signs(run: TrainingRun) -> SignLog:
    return SignLog(
        run.path(runlog.REPLAY), facts(run.config), run.step, run.config.steps,
        lambda: run.learner.fitness, MAY_CHANGE,
    )  # fmt: skip


def facts(config: Config) -> dict[str, Any]:
    """The header of the replay log of a run of eggroll.train with these options."""
    return {
        "kind": checkpoint.FORMAT,
        "pairs": config.pop // 2,
        "config": config.to_dict(),
        "network": config.program().digest(),
    }
