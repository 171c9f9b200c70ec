"""Workers of a sweep: this process or several train the trials of a phase.

Every worker, also one on another machine, asks the study for its next trial. check_stop: raises
Stopped once a signal came; progress: called after updates, and with True after trials.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import optuna
from optuna.trial import TrialState

from eggroll import cli
from eggroll.errors import InputError
from eggroll.sweep.plan import Phase, TooManyTrials
from eggroll.sweep.study import STOPPED, STORAGE_ERRORS, WORKER, as_input_errors

Progress = Callable[[bool], None]


class Stopped(Exception):
    """Ends a trial in which a signal came."""


def run_phase(phase: Phase, stop: cli.Stop, progress: Progress) -> None:
    """Trains what the phase wants, here or in --workers processes, until done or asked to stop.

    Raises:
        InputError: a worker or the storage failed; finished trials stay.
    """

    def check_stop() -> None:
        if stop.asked:
            raise Stopped

    if phase.plan.options.workers == 1:
        run_trials(phase, check_stop, progress)
    else:
        run_processes(phase, stop, progress)
    progress(True)


def run_trials(phase: Phase, check_stop: Callable[[], None], progress: Progress) -> None:
    """Trains trials until the phase wants no more, those of other workers included."""
    study = phase.study()

    def between_updates() -> None:
        check_stop()
        progress(False)

    with contextlib.suppress(Stopped), as_input_errors(phase.plan.storage(), *STORAGE_ERRORS):
        check_stop()
        while phase.wants_more(study):
            run_trial(study, phase, between_updates)
            progress(True)
            check_stop()


def run_trial(study: optuna.Study, phase: Phase, check_stop: Callable[[], None]) -> None:
    """Trains one trial; none if others took it for dead meanwhile, as after this machine slept."""
    begun: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        begun.append(trial.number)
        trial.set_user_attr(WORKER, f"{socket.gethostname()}:{os.getpid()}")
        try:
            return phase.objective(trial, check_stop)
        except Stopped:
            trial.set_user_attr(STOPPED, True)
            raise

    try:
        study.optimize(objective, n_trials=1, catch=(TooManyTrials,))
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None  # came within Optuna, which stumbles over it
        if not isinstance(error, ValueError):  # as it calls the end of a trial that has ended
            raise
        if not begun or study.get_trials()[begun[0]].state != TrialState.FAIL:
            raise


def worker_process(phase: Phase, parent: int) -> None:
    """A process of its own; it ends when told to, and when the one that started it is gone."""

    def main() -> int:
        silence_optuna()
        asked: list[int] = []

        def check_stop() -> None:
            if asked or os.getppid() != parent:
                raise Stopped

        with cli.handling(lambda number, _: asked.append(number), signal.SIGTERM):
            run_trials(phase, check_stop, lambda at_once: None)
        return cli.DONE

    sys.exit(cli.run(main))


def run_processes(phase: Phase, stop: cli.Stop, progress: Progress) -> None:
    """Lets --workers processes train the phase's trials, and waits for them.

    Raises:
        InputError: one of them failed; it has said why.
    """
    context = multiprocessing.get_context("spawn")
    count = phase.plan.options.workers
    team = [context.Process(target=worker_process, args=(phase, os.getpid())) for _ in range(count)]
    with ignored(signal.SIGINT, signal.SIGHUP):  # a terminal sends these to all; we pass one on
        for process in team:
            process.start()
    passed_on = False
    try:
        while any(process.is_alive() for process in team):
            if stop.asked and not passed_on:
                passed_on = True
                for process in team:
                    process.terminate()
            time.sleep(0.1)
            progress(False)
    except BaseException:
        for process in team:
            process.kill()
        raise
    if not stop.asked and (failed := sum(process.exitcode != cli.DONE for process in team)):
        raise InputError(
            f"{failed} of {count} workers ended early: look at what was said above, correct it and "
            "run the same command again; finished trials stay."
        )


@contextlib.contextmanager
def ignored(*signals: signal.Signals) -> Iterator[None]:
    """Processes started meanwhile never see these signals."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def silence_optuna() -> None:
    """Turns off Optuna's log and warnings, which are for programmers."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
