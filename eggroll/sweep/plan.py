"""The plan of a sweep, which its workers share, and its two phases: search and confirmation.

The lowest of many noisy validations is lower than what its options reach with another seed. So the
best few trials of the search are trained again on other seeds before one of them is named best.
Each phase is an Optuna study of its own in the same storage, so both resume and are shared alike.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, get_args

import optuna
from optuna.trial import TrialState

from eggroll import cli, runlog
from eggroll.anyrun import corpus_of, fingerprint, validation_batches
from eggroll.config import Config
from eggroll.errors import InputError
from eggroll.help import CHANGEABLE
from eggroll.learners import engine_for
from eggroll.options import TYPES
from eggroll.sweep import space
from eggroll.sweep.options import DEFAULT_SEARCH, Options
from eggroll.sweep.space import Axis
from eggroll.sweep.study import (
    FINISHED,
    REFUSED,
    SEED_OFFSET,
    STOPPED,
    STORAGE_ERRORS,
    TRIAL,
    TRIES,
    as_input_errors,
    asks,
    by_validation,
    open_study,
    prepare_study,
)
from eggroll.sweep.trial import train_trial


class TooManyTrials(Exception):
    """Ends a trial that several workers began at once beyond those wanted."""


@dataclass(frozen=True)
class Plan:
    """The plan of a sweep, the same for all workers."""

    options: Options
    base: Config
    axes: list[Axis]
    folder: Path
    engine: str
    corpus: str

    def settings(self) -> dict[str, Any]:
        """The facts that must be equal in all trials of a study for them to compare."""
        same = {
            name: value
            for name, value in self.base.to_dict().items()
            if CHANGEABLE not in get_args(TYPES[name])[1:] or name == "val_tokens"
        }
        budget, slices = str(self.options.trial_budget()), self.options.slices
        mine = {"budget": budget, "slices": slices, "text": self.corpus}
        return same | mine | {"search": " ".join(sorted(map(str, self.axes)))}

    def storage(self) -> str:
        return self.options.storage or f"sqlite:///{self.folder / 'study.db'}"

    def run(
        self,
        trial: optuna.Trial,
        options: Config,
        name: str,
        check_stop: Callable[[], None],
    ) -> float:
        """Trains one trial in the folder `name`; returns its validation in bits per token.

        Raises:
            TrialPruned: the options are impossible, or the pruner ends the trial.
        """
        budget = self.options.trial_budget()
        try:
            engine_and_data(options)
        except InputError as error:
            trial.set_user_attr(REFUSED, str(error))
            raise optuna.TrialPruned from error
        steps = budget.steps(options, self.folder, check_stop)
        if not steps:
            trial.set_user_attr(REFUSED, "one update takes more than the budget")
            raise optuna.TrialPruned
        options = replace(options, steps=steps, out=str(self.folder / name))
        trial.set_user_attr("config", options.to_dict())
        return train_trial(trial, options, budget, self.options.slices, check_stop)


def make_plan(options: Options) -> Plan:
    """Checks everything that can be checked; creates nothing.

    Raises:
        InputError: bad options, environment or data.
    """
    cli.check_ranges(options)
    base = options.run_options()
    axes = space.choose_axes(options.search, base, strict=options.search != DEFAULT_SEARCH)
    engine, corpus = engine_and_data(base)
    if options.json and (Path(options.json).is_dir() or not Path(options.json).parent.is_dir()):
        raise InputError(
            f"--json {options.json!r} is no place for a file: give a file in a folder that is "
            "there."
        )
    folder = options.folder().absolute()
    runlog.check_free(folder)
    return Plan(options, base, axes, folder, engine, corpus)


def engine_and_data(options: Config) -> tuple[str, str]:
    """The engine a run would have, in words, and a digest of its data.

    Raises:
        InputError: the options do not go together, or not with the data.
    """
    options.check()
    engine, reason = engine_for(options)
    corpus = corpus_of(options)
    corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))
    digest = hashlib.sha256(json.dumps(fingerprint(corpus), sort_keys=True).encode())
    return f"{engine.description}, {reason}", digest.hexdigest()[:12]


class Phase(Protocol):
    """A study and how its trials are made. Workers get it pickled."""

    @property
    def plan(self) -> Plan: ...

    def study(self) -> optuna.Study:
        """The study, made if it is not there."""
        ...

    def prepared_study(self) -> optuna.Study:
        """The study, ready for more trials.

        Raises:
            InputError: it was begun with other settings.
        """
        ...

    def total(self, study: optuna.Study) -> int:
        """Trials of the phase once it is done."""
        ...

    def wants_more(self, study: optuna.Study) -> bool:
        """True if a trial is left to begin."""
        ...

    def objective(self, trial: optuna.Trial, check_stop: Callable[[], None]) -> float:
        """Trains a trial; returns its validation in bits per token."""
        ...


@dataclass(frozen=True)
class Search:
    """Trials of options that the sampler proposes."""

    plan: Plan

    def study(self) -> optuna.Study:
        options = self.plan.options
        return open_study(self.plan.storage(), options.name(), sampler(options), pruner(options))

    def prepared_study(self) -> optuna.Study:
        plan = self.plan
        first = space.baseline(plan.axes, plan.base)
        return prepare_study(self.study, plan.settings(), first, plan.storage())

    def total(self, study: optuna.Study) -> int:
        return self.plan.options.trials

    def wants_more(self, study: optuna.Study) -> bool:
        states = [t.state for t in study.get_trials(deepcopy=False)]
        claimed = sum(state in (*FINISHED, TrialState.RUNNING) for state in states)
        return claimed < self.plan.options.trials

    def objective(self, trial: optuna.Trial, check_stop: Callable[[], None]) -> float:
        before = [t for t in trial.study.get_trials(deepcopy=False) if t.number < trial.number]
        if sum(t.state != TrialState.FAIL for t in before) >= self.plan.options.trials:
            raise TooManyTrials
        base = self.plan.base
        options = replace(base, **space.suggest(trial, self.plan.axes, base))
        return self.plan.run(trial, options, f"trial-{trial.number:04d}", check_stop)


@dataclass(frozen=True)
class Confirmation:
    """The best trials of the search again, with the seeds that follow its own."""

    plan: Plan

    def study(self) -> optuna.Study:
        name = f"{self.plan.options.name()}-confirm"
        return open_study(self.plan.storage(), name, sampler(self.plan.options), PRUNE_NOTHING)

    def prepared_study(self) -> optuna.Study:
        return prepare_study(self.study, self.plan.settings(), {}, self.plan.storage())

    def queue_best(self, search: optuna.Study, study: optuna.Study) -> None:
        """Queues the runs that the best trials of the search lack; none where one is the choice."""
        options, best = self.plan.options, by_validation(search)
        runs = [t for t in study.get_trials(deepcopy=False) if asks(t)]
        lost = Counter(
            (t.user_attrs[TRIAL], t.user_attrs[SEED_OFFSET])
            for t in runs
            if t.state == TrialState.FAIL and not t.user_attrs.get(STOPPED)
        )
        known = {asked for asked, times in lost.items() if times >= TRIES}
        known |= {
            (t.user_attrs[TRIAL], t.user_attrs[SEED_OFFSET])
            for t in runs
            if t.state != TrialState.FAIL
        }
        with as_input_errors(self.plan.storage(), *STORAGE_ERRORS):
            for offset in range(1, options.confirm_seeds + 1):
                for trial in best[: options.confirm if len(best) > 1 else 0]:
                    if (trial.number, offset) not in known:
                        asked = {TRIAL: trial.number, SEED_OFFSET: offset}
                        study.enqueue_trial({}, user_attrs=asked)

    def total(self, study: optuna.Study) -> int:
        return sum(t.state != TrialState.FAIL for t in study.get_trials(deepcopy=False))

    def wants_more(self, study: optuna.Study) -> bool:
        return bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def objective(self, trial: optuna.Trial, check_stop: Callable[[], None]) -> float:
        asked = trial.user_attrs
        if TRIAL not in asked:  # the last in the queue went to another worker
            raise TooManyTrials
        try:
            found = Search(self.plan).study().get_trials(deepcopy=False)[asked[TRIAL]]
            seed = (self.plan.base.seed + asked[SEED_OFFSET]) % (1 << 63)
            options = replace(self.plan.base, **found.params, seed=seed)
        except (LookupError, TypeError) as error:
            raise InputError(
                f"the confirmation of study {self.plan.options.name()!r} asks for a run that "
                f"cannot be ({error!r:.80}): give another --study."
            ) from error
        return self.plan.run(trial, options, f"confirm-{trial.number:04d}", check_stop)


PRUNE_NOTHING = optuna.pruners.NopPruner()


def sampler(options: Options) -> optuna.samplers.BaseSampler:
    # No seed: workers that share one would all try the same.
    return optuna.samplers.TPESampler(n_startup_trials=options.startup, constant_liar=True)


def pruner(options: Options) -> optuna.pruners.BasePruner:
    if options.pruner == "median":
        return optuna.pruners.MedianPruner(options.startup, n_warmup_steps=options.slices // 5)
    if options.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=options.slices)
    return PRUNE_NOTHING
