"""The command that searches for good options, every trial a real run on an equal budget."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Final

import optuna
from optuna.trial import TrialState

from eggroll.cli import command as cli
from eggroll.errors import InputError, in_python
from eggroll.ranks import refuse
from eggroll.sweep import report
from eggroll.sweep.plan import (
    Confirmation,
    Plan,
    Search,
    SearchPhase,
    SweepOptions,
    TooManyTrials,
    make_plan,
    options_from,
    remove_lost_probes,
)
from eggroll.sweep.study import (
    BEST,
    FINISHED,
    REFUSED,
    STOPPED,
    STORAGE_ERRORS,
    Results,
    as_input_errors,
    finished,
    name_worker,
)
from eggroll.training.config import Config, read
from eggroll.training.folder import new_folder

Progress = Callable[[bool], None]
AGAIN: Final = "run the same command again to go on."
INTERRUPTED: Final = f"Interrupted, and every finished trial is kept; {AGAIN}"


def search(options: SweepOptions) -> Config:
    """Makes or goes on with a study, as the command does; returns the best trial's options.

    They are those of `best.json` in the folder, and train that trial once more.

    Raises:
        InputError: bad input or environment, or no trial has finished; finished trials stay.
        KeyboardInterrupt: by Ctrl-C or SIGTERM.
    """
    with in_python():
        if not sweep(options):
            raise KeyboardInterrupt(INTERRUPTED)
        best = options.folder() / BEST
        if not best.exists():
            raise InputError("no trial has finished its budget: give more trials or budget.")
        return read(str(best))


def sweep(options: SweepOptions) -> bool:
    """Makes or goes on with a study, writes its results; returns whether it has all its trials.

    Raises:
        InputError: bad input or environment; finished trials stay.
    """
    silence_optuna()
    plan = make_plan(options)
    if not options.storage:
        new_folder(str(plan.folder), "")
    study = Search(plan).prepared_study()
    new_folder(str(plan.folder), "")
    remove_lost_probes(plan.folder)
    print_header(plan, finished(study))
    results = Results(study, options.confirm, options.confirm_seeds)
    with cli.Stop(f"finished trials stay; {AGAIN}") as stop:
        with report.Board(study, options.trials, options.slices) as board:
            run_phase(Search(plan), stop, board.update)
        if options.confirm:
            results = confirm(plan, results, stop)
        interrupted = stop.asked
    engine_options = {name: getattr(options, name) for name in ("engine", "chunk", "threads")}
    report.write_results(
        results, plan.folder, options.json, engine_options, draw_pictures=not interrupted
    )
    if not interrupted:
        check_trained(study, options)
    return not interrupted


def check_trained(study: optuna.Study, options: SweepOptions) -> None:
    """Raises InputError where a sweep is done and none of its trials could make an update."""
    trials = study.get_trials(deepcopy=False, states=FINISHED)
    reasons = [trial.user_attrs.get(REFUSED) for trial in trials]
    if reasons and all(reasons):
        way = "a larger --budget-tokens" if options.budget_tokens else "a larger --budget"
        raise InputError(
            f"none of the {len(reasons)} trials could make an update (trial {trials[-1].number}: "
            f"{str(reasons[-1]).rstrip('.')}): give {way}, a smaller network or another --search, "
            "and --study for a new one."
        )


def confirm(plan: Plan, results: Results, stop: cli.Stop) -> Results:
    """Trains the best trials again on other seeds, unless asked to stop; returns both studies."""
    phase, options = Confirmation(plan), plan.options
    study = phase.prepared_study()
    if not stop.asked:
        phase.queue_best(results.study, study)
        total = phase.total(study)
        if phase.wants_more(study):
            print(f"confirmation: {finished(study)} of {total} runs done, each of the best trials "
                  f"on {options.confirm_seeds} other seeds", flush=True)  # fmt: skip
        with report.Board(study, total, options.slices) as board:
            run_phase(phase, stop, board.update)
    return results._replace(confirmation=study)


def print_header(plan: Plan, done: int) -> None:
    options = plan.options
    print(f"engine: {plan.engine}")
    search = ", ".join(map(str, plan.axes))
    print(f"study: {options.name()} in {report.relative(plan.folder)}; search: {search}")
    print(
        f"trials: {done} of {options.trials} done; {options.trial_budget()} each; "
        f"workers: {options.workers}, threads each: {plan.base.threads}"
    )
    sys.stdout.flush()


def silence_optuna() -> None:
    """Turns off Optuna's log and warnings, which are for programmers."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


# Who trains the trials of a phase.


def run_phase(phase: SearchPhase, stop: cli.Stop, progress: Progress) -> None:
    """Trains what the phase wants, here or in --workers processes, until done or asked to stop.

    Raises:
        InputError: a worker or the storage failed; finished trials stay.
    """

    def check_stop() -> None:
        if stop.asked:
            raise TrialStopped

    if phase.plan.options.workers == 1:
        run_trials(phase, check_stop, progress)
    else:
        run_processes(phase, stop, progress)
    progress(True)


def run_trials(phase: SearchPhase, check_stop: Callable[[], None], progress: Progress) -> None:
    """Trains trials until the phase wants no more, those of other workers included."""
    study = phase.study()

    def between_updates() -> None:
        check_stop()
        progress(False)

    with contextlib.suppress(TrialStopped), as_input_errors(phase.plan.storage(), *STORAGE_ERRORS):
        check_stop()
        while phase.wants_more(study):
            run_trial(study, phase, between_updates)
            progress(True)
            check_stop()


def run_trial(study: optuna.Study, phase: SearchPhase, check_stop: Callable[[], None]) -> None:
    """Trains one trial; none if others took it for dead meanwhile, as after this machine slept."""
    numbers: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        numbers.append(trial.number)
        name_worker(trial)
        try:
            return phase.objective(trial, check_stop)
        except TrialStopped:
            trial.set_user_attr(STOPPED, True)
            raise

    try:
        study.optimize(objective, n_trials=1, catch=(TooManyTrials,))
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None  # came within Optuna, which stumbles over it
        if not isinstance(error, ValueError):  # as it calls the end of a trial that has ended
            raise
        if not numbers or study.get_trials()[numbers[0]].state != TrialState.FAIL:
            raise


def run_processes(phase: SearchPhase, stop: cli.Stop, progress: Progress) -> None:
    """Lets --workers processes train the phase's trials, and waits for them.

    Raises:
        InputError: one of them failed; it has said why.
    """
    context = multiprocessing.get_context("spawn")
    count = phase.plan.options.workers
    processes = [
        context.Process(target=worker_process, args=(phase, os.getpid())) for _ in range(count)
    ]
    with ignored(signal.SIGINT, signal.SIGHUP):  # a terminal sends these to all; we pass one on
        for process in processes:
            process.start()
    terminated = False
    try:
        while any(process.is_alive() for process in processes):
            if stop.asked and not terminated:
                terminated = True
                for process in processes:
                    process.terminate()
            time.sleep(0.1)
            progress(False)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    if not stop.asked and (failed := sum(process.exitcode != cli.DONE for process in processes)):
        codes = [process.exitcode or 0 for process in processes]
        killed = f", by signal {-min(codes)}" if min(codes) < 0 else ""
        raise InputError(
            f"{failed} of {count} workers ended early{killed}: look at what was said above, "
            "correct it and run the same command again; finished trials stay."
        )


def worker_process(phase: SearchPhase, parent: int) -> None:
    """A process of its own; it ends when told to, and when the one that started it is gone."""

    def main() -> int:
        silence_optuna()
        signals: list[int] = []

        def check_stop() -> None:
            if signals or os.getppid() != parent:
                raise TrialStopped

        with cli.handling(lambda number, _: signals.append(number), signal.SIGTERM):
            run_trials(phase, check_stop, lambda at_once: None)
        return cli.DONE

    sys.exit(cli.run(main))


class TrialStopped(Exception):
    """Ends a trial in which a signal came."""


@contextlib.contextmanager
def ignored(*signals: signal.Signals) -> Iterator[None]:
    """Processes started meanwhile never see these signals."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def search_from_words(options: SweepOptions) -> None:
    """Command line of eggroll.sweep."""
    try:
        done = sweep(options)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(str(stop) or INTERRUPTED) from None
    if not done:
        raise KeyboardInterrupt(INTERRUPTED)


def refuse_ranks() -> None:
    refuse("eggroll.sweep")  # its trials are processes of their own


main = cli.Command(SweepOptions, search_from_words, options_from, refuse_ranks)

if __name__ == "__main__":
    sys.exit(main())
