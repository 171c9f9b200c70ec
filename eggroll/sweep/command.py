"""Searches for good options, every trial a real run of equal wall-clock: `python -m eggroll.sweep`.

Every worker, also one on another machine, asks the study in --storage for its next trial, which
trial.py makes. What was found is written by report.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import optuna
import tyro
from optuna.trial import TrialState

from eggroll import cli, runlog
from eggroll.cli import Range
from eggroll.config import CHANGEABLE, Config, hidden_default
from eggroll.data.streams import load_corpus
from eggroll.errors import InputError
from eggroll.options import TYPES, from_command_line
from eggroll.run import engine_for, fingerprint, validation_batches
from eggroll.sweep import report, space
from eggroll.sweep.space import Axis
from eggroll.sweep.study import (
    FINISHED,
    STORAGE_ERRORS,
    explained,
    finished,
    fresh_study,
    open_study,
)
from eggroll.sweep.trial import MOST, train_trial, updates_within

USUAL = ("sigma_shift", "alpha", "alpha_decay", "learning_rate", "rate_decay")
DERIVED = {
    "--steps": "a trial makes as many updates as its --budget allows",
    "--resume": "the same command goes on with its study",
}
AGAIN: Final = "run the same command again to go on."
KEPT: Final = f"Interrupted, and every finished trial is kept; {AGAIN}"
Pruner = Literal["median", "hyperband", "none"]


@dataclass(frozen=True)
class Options(Config):
    """Options of a sweep; those of a run are the same for all trials, but for the --search."""

    trials: Annotated[int, Range(1, 10**6)] = 20
    """Trials of the whole study, earlier ones included."""
    budget: Annotated[float, Range(0, 10**7, above=True)] = 60.0
    """Seconds of updates that a trial has; validation is not counted."""
    search: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME[=LOW:HIGH[:log]|=A,B] ...")] = (
        USUAL
    )
    """What to try: options with their usual or a given range (log: by ratio) or values."""
    study: Annotated[str, hidden_default("NAME")] = ""
    """Name of the study; that of the data if none is given."""
    storage: Annotated[str, hidden_default("URL|FILE")] = ""
    """postgresql://..., mysql://..., sqlite:///FILE, journal:///FILE, FILE.db or FILE.log; study.db
    in the folder if none is given."""
    workers: Annotated[int, Range(1, 1024)] = 1
    """Processes that work on the study; each has its share of the threads."""
    pruner: Pruner = "median"
    """Stops trials: worse than the median of others at equal seconds, Hyperband's way, or never."""
    slices: Annotated[int, Range(1, 1000)] = 10
    """Validations of a trial, after equal parts of its budget; each may prune it."""
    startup: Annotated[int, Range(0, 10**6)] = 5
    """Trials at the start that are random and, with pruner median, not pruned."""
    json: Annotated[str, hidden_default("FILE")] = ""
    """Also write all trials as JSON."""

    out: Annotated[str, hidden_default("DIR")] = ""
    """Folder for the sweep, its trials and what it finds; sweeps/<study> if none is given."""
    steps: Annotated[int, tyro.conf.Suppress] = MOST
    resume: Annotated[str, tyro.conf.Suppress] = ""

    def base(self) -> Config:
        """The options that trials share, with a worker's share of the threads."""
        values = {f.name: getattr(self, f.name) for f in fields(Config)}
        values |= {"steps": MOST, "out": "", "config": ""}  # of a file, they are another run's
        shared = Config(**values).at_home()
        return replace(shared, threads=self.threads or max(shared.cores() // self.workers, 1))

    def name(self) -> str:
        return self.study or Path(self.at_home().data).stem or "sweep"

    def folder(self) -> Path:
        return Path(self.out or Path("sweeps", self.name()))


class Stopped(Exception):
    """Ends a trial in which a signal came."""


class Surplus(Exception):
    """Ends a trial that several workers began at once beyond the total."""


@dataclass(frozen=True)
class Plan:
    """What a worker needs to know; the same for all."""

    options: Options
    base: Config
    space: list[Axis]
    folder: Path
    engine: str
    corpus: str

    def facts(self) -> dict[str, Any]:
        """What must be equal in all trials of a study for them to compare."""
        same = {
            name: value
            for name, value in self.base.to_dict().items()
            if CHANGEABLE not in get_args(TYPES[name])[1:] or name == "val_tokens"
        }
        mine = {"budget": self.options.budget, "slices": self.options.slices, "text": self.corpus}
        return same | mine | {"search": " ".join(sorted(map(str, self.space)))}

    def study(self) -> optuna.Study:
        """The study, which must be there."""
        o = self.options
        return open_study(self.storage(), o.name(), sampler(o), pruner(o))

    def storage(self) -> str:
        return self.options.storage or f"sqlite:///{self.folder / 'study.db'}"


def sampler(options: Options) -> optuna.samplers.BaseSampler:
    # No seed: workers that share one would all try the same.
    return optuna.samplers.TPESampler(n_startup_trials=options.startup, constant_liar=True)


def pruner(options: Options) -> optuna.pruners.BasePruner:
    if options.pruner == "median":
        return optuna.pruners.MedianPruner(options.startup, n_warmup_steps=options.slices // 5)
    if options.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=options.slices)
    return optuna.pruners.NopPruner()


def options_from(argv: Sequence[str]) -> Options:
    """The command line over --config FILE.

    Raises:
        InputError: an option or the file is no good.
    """
    about = "Searches for good options of a training run, every trial at equal wall-clock."

    for name, why in DERIVED.items():
        if any(word.partition("=")[0] == name for word in argv):
            raise InputError(f"{name} is no option of eggroll.sweep, as {why}: leave it out.")
    return from_command_line(Options, argv, command="sweep", about=about)


def planned(options: Options) -> Plan:
    """Checks everything that can be checked; creates nothing.

    Raises:
        InputError: bad options, environment or data.
    """
    cli.check_ranges(options)
    base = options.base()
    axes = space.chosen(options.search, base, strict=options.search != USUAL)
    engine, corpus = possible(base)
    if options.json and (Path(options.json).is_dir() or not Path(options.json).parent.is_dir()):
        raise InputError(
            f"--json {options.json!r} is no place for a file: give a file in a folder that is "
            "there."
        )
    folder = options.folder().absolute()
    runlog.check_free(folder)
    return Plan(options, base, axes, folder, engine, corpus)


def possible(options: Config) -> tuple[str, str]:
    """The engine a run would have, in words, and a digest of its data.

    Raises:
        InputError: the options do not go together, or not with the data.
    """
    options.check()
    engine, reason = engine_for(options)
    corpus = load_corpus(options.data, vocabulary=options.vocabulary, steps=options.count_steps)
    corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))
    digest = hashlib.sha256(json.dumps(fingerprint(corpus), sort_keys=True).encode())
    return f"{engine.description}, {reason}", digest.hexdigest()[:12]


def objective(trial: optuna.Trial, plan: Plan, look: Callable[[], None]) -> float:
    """One trial: its options, its speed, its run."""
    before = [t for t in trial.study.get_trials(deepcopy=False) if t.number < trial.number]
    if sum(t.state != TrialState.FAIL for t in before) >= plan.options.trials:
        raise Surplus
    trial.set_user_attr("worker", f"{socket.gethostname()}:{os.getpid()}")
    options = replace(plan.base, **space.suggest(trial, plan.space, plan.base))
    try:
        possible(options)
    except InputError as error:
        trial.set_user_attr("refused", str(error))
        raise optuna.TrialPruned from error
    budget = plan.options.budget
    steps = updates_within(budget, options, plan.folder, look)
    if not steps:
        trial.set_user_attr("refused", "one update takes longer than the budget")
        raise optuna.TrialPruned
    options = replace(options, steps=steps, out=str(plan.folder / f"trial-{trial.number:04d}"))
    trial.set_user_attr("config", options.to_dict())
    return train_trial(trial, options, budget, plan.options.slices, look)


def make_trial(study: optuna.Study, plan: Plan, look: Callable[[], None]) -> None:
    """One trial; none if others took it for dead meanwhile, as after this machine slept."""
    begun: list[int] = []

    def tried(trial: optuna.Trial) -> float:
        begun.append(trial.number)
        return objective(trial, plan, look)

    try:
        study.optimize(tried, n_trials=1, catch=(Surplus,))
    except ValueError:  # what Optuna says to one who ends a trial that has ended
        if not begun or study.get_trials()[begun[0]].state != TrialState.FAIL:
            raise


def work(plan: Plan, look: Callable[[], None], told: Callable[[bool], None]) -> None:
    """Makes trials until the study has its total, those of other workers included.

    look: raises Stopped once a signal came; told: called after updates, and with True after trials.
    """
    study = plan.study()

    def watched() -> None:
        look()
        told(False)

    with contextlib.suppress(Stopped), explained(plan.storage(), *STORAGE_ERRORS):
        while True:
            look()
            states = [t.state for t in study.get_trials(deepcopy=False)]
            claimed = sum(state in (*FINISHED, TrialState.RUNNING) for state in states)
            if claimed >= plan.options.trials:
                break
            make_trial(study, plan, watched)
            told(True)


def worker(plan: Plan, parent: int) -> None:
    """A process of its own; it ends when told to, and when the one that started it is gone."""

    def main() -> int:
        quiet()
        asked: list[int] = []

        def look() -> None:
            if asked or os.getppid() != parent:
                raise Stopped

        with cli.handling(lambda number, _: asked.append(number), signal.SIGTERM):
            work(plan, look, lambda at_once: None)
        return cli.DONE

    sys.exit(cli.run(main))


def work_together(plan: Plan, stop: cli.Stop, told: Callable[[bool], None]) -> None:
    """Lets --workers processes work, and waits for them.

    Raises:
        InputError: one of them failed; it has said why.
    """
    context = multiprocessing.get_context("spawn")
    count = plan.options.workers
    team = [context.Process(target=worker, args=(plan, os.getpid())) for _ in range(count)]
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
            told(False)
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


def quiet() -> None:
    """Optuna's own words are for programmers."""
    import warnings

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def sweep(options: Options) -> bool:
    """Makes or goes on with a study, writes what was found; returns whether it has all its trials.

    Raises:
        InputError: bad input or environment; finished trials stay.
    """
    quiet()
    plan = planned(options)
    if not options.storage:
        runlog.new_folder(str(plan.folder), "")
    first = space.baseline(plan.space, plan.base)
    study = fresh_study(plan.study, plan.facts(), first, plan.storage())
    runlog.new_folder(str(plan.folder), "")
    print(f"engine: {plan.engine}")
    print(f"study: {options.name()} in {plan.folder}; search: {', '.join(map(str, plan.space))}")
    print(
        f"trials: {finished(study)} of {options.trials} done; {options.budget:g} s of updates "
        f"each; workers: {options.workers}, with {plan.base.threads} threads each"
    )
    sys.stdout.flush()
    with cli.Stop(f"finished trials stay; {AGAIN}") as stop:
        with report.Board(study, options.trials, options.slices) as board:

            def look() -> None:
                if stop.asked:
                    raise Stopped

            if options.workers == 1:
                work(plan, look, board.update)
            else:
                work_together(plan, stop, board.update)
            board.update(True)
        interrupted = stop.asked
    given = {name: getattr(options, name) for name in ("engine", "chunk", "threads")}
    report.conclude(study, plan.folder, options.json, given, pictures=not interrupted)
    return not interrupted


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.sweep; returns its exit code."""

    def run() -> int:
        options = options_from(sys.argv[1:] if argv is None else argv)
        try:
            done = sweep(options)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(str(stop) or KEPT) from None
        if not done:
            raise KeyboardInterrupt(KEPT)
        return cli.DONE

    return cli.run(run)


if __name__ == "__main__":
    sys.exit(main())
