"""The files that grow with a run: its metrics, its statistics, and some runs' replay log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, get_args

from eggroll import checkpoint, runlog
from eggroll.anyrun import Run
from eggroll.config import Config
from eggroll.help import CHANGEABLE
from eggroll.options import TYPES
from eggroll.replay_log import SignLog
from eggroll.run import TrainingRun
from eggroll.statistics.log import StatisticsLog

MAY_CHANGE: Final = {name for name, hint in TYPES.items() if CHANGEABLE in get_args(hint)[1:]}

Log = runlog.Metrics | SignLog


def opened(run: Run, stack: ExitStack, say: Callable[[str], None]) -> list[Log]:
    """The logs of a run with a folder, cut back to its present step; the stack closes them.

    say: is told what goes wrong in the run, a sentence at a time.
    """
    logs: list[Log] = [stack.enter_context(runlog.Metrics(run.path(runlog.METRICS), run.step))]
    if isinstance(run, TrainingRun) and run.config.estimator_class.replays:
        logs.append(stack.enter_context(_signs(run)))
    if isinstance(run, TrainingRun) and _has_statistics(run):
        logs.append(stack.enter_context(_statistics(run, say)))
    return logs


def notes(logs: list[Log]) -> list[str]:
    """Sentences on logs that are not kept."""
    return [
        f"No more signs of pairs are recorded, as {log.lacks}: updates from here on cannot be "
        "replayed."
        for log in logs
        if isinstance(log, SignLog) and log.lacks
    ]


def _has_statistics(run: TrainingRun) -> bool:
    """True for those of an earlier part of a run as well, which are cut back at least."""
    return bool(run.config.statistics_every) or run.path(runlog.STATISTICS).exists()


def _statistics(run: TrainingRun, say: Callable[[str], None]) -> StatisticsLog:
    config = run.config
    streams = run.corpus.streams("train", config.streams, config.seq_len, config.seed)
    return StatisticsLog(
        run.path(runlog.STATISTICS), config, run.learner, streams, lambda: run.observed, say
    )


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
