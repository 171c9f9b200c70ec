"""The studies of a sweep: their storage, lost and repeated trials, and which trial is best.

Search and confirmation are a study each. A trial of the confirmation is a trial of the search once
more, with another seed; its attributes say of which, and with which seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from eggroll.errors import InputError

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
SETTINGS = "eggroll"  # attribute of a study: the options that its trials share
# Attributes of trials: the failed one that it repeats; host and process; why it was not trained.
RETRY, WORKER, REFUSED = "retry", "worker", "refused"
BEST = "best.json"  # the best trial's options, in the folder of a sweep
STOPPED = "stopped"  # of a trial that a signal ended, which is no fault of its options
TRIES = 3  # losses of a process after which its options are given up
TRIAL, SEED_OFFSET = "trial", "seed_offset"  # of a confirmation: which trial, seeds after its seed
NAMING = 2  # seconds that a process has to name itself
HEARTBEAT, GRACE = 10, 40  # seconds between signs of life, and until their absence means death
STORAGE_URLS = (
    "sqlite:///FILE, postgresql://USER@HOST/NAME, mysql://USER@HOST/NAME, journal:///FILE"
)
STORAGE_ERRORS = (SQLAlchemyError, optuna.exceptions.OptunaError)


def open_study(
    place: str, name: str, sampler: optuna.samplers.BaseSampler, pruner: optuna.pruners.BasePruner
) -> optuna.Study:
    """The study of that name, made if it is not there.

    Raises:
        InputError: the storage is no good.
    """
    storage = storage_at(place)
    with as_input_errors(place):
        return optuna.create_study(
            storage=storage, study_name=name, sampler=sampler, pruner=pruner, load_if_exists=True
        )


def prepare_study(
    open: Callable[[], optuna.Study],
    settings: Mapping[str, Any],
    first: Mapping[str, Any],
    place: str,
    *,
    named: str = "",
    option: str = "--study and --out",
) -> optuna.Study:
    """A study ready for more trials: new with `first` as its first one, or an old one that fits.

    Trials whose process is gone fail, and failed trials are queued again. named: what errors call
    the study, with its name if empty; option: gives trials another one.

    Raises:
        InputError: its trials had other settings, so new ones would not compare with them.
    """
    study = open()
    with as_input_errors(place):
        begun = study.user_attrs.get(SETTINGS)
        if begun is None and not study.get_trials(deepcopy=False):
            study.set_user_attr(SETTINGS, dict(settings))
            if first:
                study.enqueue_trial(dict(first), skip_if_exists=True)
        elif begun != settings:
            begun = begun if isinstance(begun, dict) else {}
            name = named or f"study {study.study_name!r}"
            raise begun_otherwise(name, begun, settings, option)
        fail_lost_trials(study)
        retry_failed(study)
    return study


def begun_otherwise(
    study: str, begun: Mapping[str, Any], settings: Mapping[str, Any], option: str
) -> InputError:
    """An error that names the first setting that differs; option: gives trials another study."""
    keys = [*settings, *(begun.keys() - settings.keys())]
    name = next(key for key in keys if settings.get(key) != begun.get(key))
    old, new = begun.get(name), settings.get(name)
    return InputError(
        f"{study} was begun with {name} {old!r}, not {new!r}, and only equal trials "
        f"compare: give the same options, or another {option}."
    )


def fail_lost_trials(study: optuna.Study) -> None:
    """Fails the trials whose process on this machine is gone; heartbeats tell of others.

    A process names itself as soon as its trial is there; one that ended before it did tells nobody.
    """

    def running() -> list[FrozenTrial]:
        return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    if any(WORKER not in trial.user_attrs for trial in running()):
        time.sleep(NAMING)
    for trial in running():
        host, _, pid = str(trial.user_attrs.get(WORKER, "")).rpartition(":")
        nameless = WORKER not in trial.user_attrs
        if nameless or (host == socket.gethostname() and not process_exists(pid)):
            # It may have ended at this very moment.
            with contextlib.suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
                study.tell(trial.number, state=TrialState.FAIL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)


def name_worker(trial: optuna.Trial) -> None:
    """Says in a trial that this process makes it."""
    trial.set_user_attr(WORKER, f"{socket.gethostname()}:{os.getpid()}")


def process_exists(pid: str) -> bool:
    """True if a process of this machine has that number."""
    try:
        os.kill(int(pid) if re.fullmatch("[1-9][0-9]{0,8}", pid) else 0, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def retry_failed(study: optuna.Study) -> None:
    """Enqueues what failed trials were trying, each once; what was lost TRIES times is given up."""
    trials = study.get_trials(deepcopy=False)
    retried = [trial.user_attrs.get(RETRY) for trial in trials]
    for trial in trials:
        retriable = trial.state == TrialState.FAIL and trial.params and trial.number not in retried
        if retriable and _losses(trial, trials) < TRIES:
            study.enqueue_trial(trial.params, user_attrs={RETRY: trial.number})


def _losses(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """The number of times in a row that a failed trial's options were lost, up to TRIES."""
    losses = 0
    for _ in trials:
        losses += not trial.user_attrs.get(STOPPED)
        number = trial.user_attrs.get(RETRY)
        if type(number) is not int or not 0 <= number < len(trials) or losses == TRIES:
            break
        trial = trials[number]
    return losses


# The results of its trials.


def finished(study: optuna.Study) -> int:
    """Trials that count: complete or pruned."""
    return len(study.get_trials(deepcopy=False, states=FINISHED))


def by_validation(study: optuna.Study) -> list[FrozenTrial]:
    """Complete trials, that of the lowest validation first and of equal ones the earlier."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda trial: (trial.value, trial.number))


def is_confirmation(run: FrozenTrial) -> bool:
    """True of a run of the confirmation that says which trial it repeats, with which seed."""
    return all(type(run.user_attrs.get(name)) is int for name in (TRIAL, SEED_OFFSET))


class Results(NamedTuple):
    """A search and, where there is one, its confirmation of `best` trials on `seeds` seeds."""

    study: optuna.Study
    best: int
    seeds: int
    confirmation: optuna.Study | None = None

    def confirmations(self) -> dict[tuple[int, int], FrozenTrial]:
        """(Trial, seed offset) -> its finished run in the confirmation."""
        if self.confirmation is None:
            return {}
        runs = self.confirmation.get_trials(deepcopy=False, states=FINISHED)
        confirmations = [run for run in runs if is_confirmation(run)]
        return {
            (r.user_attrs[TRIAL], r.user_attrs[SEED_OFFSET]): r for r in reversed(confirmations)
        }

    def others(self, trial: FrozenTrial) -> tuple[float, ...]:
        """A trial's validations with other seeds, once it has them all; else none."""
        confirmations = self.confirmations()
        runs = [confirmations.get((trial.number, offset)) for offset in self._offsets()]
        values = tuple(run.value for run in runs if run and run.value is not None)
        return values if len(values) == self.seeds else ()

    def confirmed(self) -> bool:
        """True once the best trials have made their runs with other seeds, one of them all."""
        trials, confirmations = by_validation(self.study)[: self.best], self.confirmations()
        complete = all(
            (t.number, offset) in confirmations for t in trials for offset in self._offsets()
        )
        return complete and any(self.others(trial) for trial in trials)

    def ranking(self) -> list[Ranked]:
        """Complete trials, the best one first; nothing else decides which is best.

        Once confirmed, trials with all their other seeds come first, by the mean over these.
        """
        ranking = [Ranked(trial, self.others(trial)) for trial in by_validation(self.study)]
        if not self.confirmed():
            return ranking
        return sorted(ranking, key=lambda r: (not r.others, r.mean if r.others else 0.0))

    def _offsets(self) -> range:
        return range(1, self.seeds + 1)


class Ranked(NamedTuple):
    """A complete trial of the search and its validations with other seeds, in bits per token."""

    trial: FrozenTrial
    others: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Over the other seeds alone: the search's own validation was chosen for being low."""
        return fmean(self.others)

    @property
    def spread(self) -> float:
        return max(self.others) - min(self.others)


# Storages.


def storage_at(place: str) -> BaseStorage:
    """The storage that a URL or the name of a file means.

    Raises:
        InputError: it is neither, its driver is missing, or it cannot be reached.
    """
    scheme, separator, rest = place.partition("://")
    if not separator:
        schemes = {".log": "journal", ".journal": "journal", ".db": "sqlite", ".sqlite3": "sqlite"}
        scheme, rest = schemes.get(Path(place).suffix, ""), f"/{place}"
    if not scheme or not rest.strip("/"):
        raise InputError(
            f"--storage {redacted(place)!r} names no storage: give {STORAGE_URLS}, or a file that "
            "ends in .db or .log."
        )
    with as_input_errors(place):
        if scheme == "journal":
            return _open_journal(rest.removeprefix("/"))
        connect = {"connect_args": {"timeout": 60}} if scheme.startswith("sqlite") else {}
        url = f"{scheme}://{rest}"
        return _open_database(url, connect)


def _open_journal(path: str) -> BaseStorage:
    """A journal; a ValueError where its lines are JSON, but none of a journal."""
    try:
        return JournalStorage(JournalFileBackend(path))
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"its lines are damaged: {error!r}") from error


def _open_database(url: str, connect: dict[str, Any]) -> BaseStorage:
    """A database; where several create its tables at once, all but one have to try again."""
    for attempt in range(20):
        try:
            storage = RDBStorage(
                url, engine_kwargs=connect, heartbeat_interval=HEARTBEAT, grace_period=GRACE
            )
            if storage.engine.dialect.name == "sqlite":
                _lock_before_reading(storage)
            return optuna.storages.get_storage(storage)
        except SQLAlchemyError as error:
            clash = any(word in str(error).lower() for word in ("exist", "unique", "locked"))
            if not clash or attempt == 19:
                raise
        time.sleep(random.uniform(0.05, 0.2))
    raise AssertionError


def _lock_before_reading(storage: RDBStorage) -> None:
    """Lets SQLite lock before it reads, not before it writes: else two could take one trial.

    The recipe is that of SQLAlchemy's page on SQLite, on transactional isolation.
    """

    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # Python shall not begin transactions on its own

    def began(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(storage.engine, "connect", connected)
    event.listen(storage.engine, "begin", began)
    storage.engine.dispose()  # connections from before know nothing of this


@contextlib.contextmanager
def as_input_errors(place: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors of a storage into an InputError; `errors`: of these types, or all known."""
    try:
        yield
    except (NoSuchModuleError, ArgumentError) as error:
        raise InputError(
            f"--storage {redacted(place)!r} names no database: give {STORAGE_URLS}."
        ) from error
    except ImportError as error:
        driver = getattr(error.__cause__ or error, "name", "") or str(error)
        raise InputError(
            f"--storage {redacted(place)!r} needs the driver {driver!r}, which is not installed: "
            "install it with pip, or name an installed one as in postgresql+DRIVER://USER@HOST/NAME."
        ) from error
    except Exception as error:
        if not isinstance(error, errors or (*STORAGE_ERRORS, OSError, ValueError)):
            raise
        if isinstance(error, optuna.exceptions.StorageInternalError):
            error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = " ".join(str(getattr(error, "orig", None) or error).split())[:200].rstrip(".")
        raise InputError(
            f"--storage {redacted(place)!r} cannot be used ({reason}): correct it, or see that the "
            "database answers; finished trials stay."
        ) from error


def redacted(place: str) -> str:
    """A URL without its password."""
    scheme, separator, rest = place.partition("://")
    user, at_sign, host = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at_sign}{host}"
