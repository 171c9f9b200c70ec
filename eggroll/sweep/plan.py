"""The plan of a sweep, which its workers share: options, two phases of trials, and one trial.

The lowest of many noisy validations is lower than what its options reach with another seed. So the
best few trials of the search are trained again on other seeds before one of them is named best.
Each phase is an Optuna study of its own in the same storage, so both resume and are shared alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, get_args

import optuna
import tyro
from optuna.trial import TrialState

from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.cli.help import CHANGEABLE, Group
from eggroll.errors import InputError, object_in
from eggroll.files import METRICS, check_place, open_regular
from eggroll.sweep import space
from eggroll.sweep.space import Axis
from eggroll.sweep.study import (
    BEST,
    FINISHED,
    REFUSED,
    SEED_OFFSET,
    STOPPED,
    STORAGE_ERRORS,
    TRIAL,
    TRIES,
    as_input_errors,
    by_validation,
    is_confirmation,
    open_study,
    prepare_study,
    process_exists,
)
from eggroll.training.config import TYPES, Config, from_command_line, hidden_default
from eggroll.training.folder import Metrics, check_free
from eggroll.training.learner import engine_for
from eggroll.training.run import (
    TrainingRun,
    fingerprint,
    load_run_corpus,
    open_run,
    validation_batches,
)
from eggroll.training.trackers import NONE

DEFAULT_SEARCH = ("sigma_shift", "alpha", "alpha_decay", "learning_rate", "rate_decay")
NOT_OFFERED = {
    "--steps": "a trial makes as many updates as its budget allows",
    "--resume": "the same command goes on with its study",
    "--track": "trials are many and short, and the study keeps them",
}
EXAMPLES = (
    ("--data count --pop 1024 --trials 20 --budget 10", "settings for counting, 10 s a trial"),
    ("--config runs/a/config.json --search alpha width=64,128", "vary two options of a run"),
)
PROBE_FOLDERS: Final = ".probe-"  # prefix of the folders of short runs
PROBE_SHARE: Final = 0.05  # of the budget's seconds, spent in a short run to time updates
MOST_TIMED: Final = 10**5  # updates of that run, should the clock stand still
MOST_STEPS: Final = 10**9  # steps of a run whose length is not known yet
PRUNE_NOTHING = optuna.pruners.NopPruner()

Pruner = Literal["median", "hyperband", "none"]
SamplerName = Literal["tpe", "random", "qmc", "cmaes", "gp"]
# Packages that Optuna asks for.
SAMPLER_PACKAGES: Final = {"qmc": ("scipy",), "cmaes": ("cmaes",), "gp": ("scipy", "torch")}


@dataclass(frozen=True)
class SweepOptions(Config):
    """Options of a sweep; those of a run are the same for all trials, but for the --search."""

    trials: Annotated[int, Range(1, 10**6)] = 20
    """Trials of the search, those of earlier commands included; confirmation comes on top."""
    budget: Annotated[float, Range(0, 10**7, above=True)] = 60.0
    """Seconds of updates per trial, validation not counted; a busy machine makes fewer updates."""
    budget_tokens: Annotated[int, Range(0, 1 << 60)] = 0
    """Instead of --budget: tokens per trial, over all members (--pop x --seq-len per update), so
    that a trial's result depends on its options alone; 0 for seconds."""
    search: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME[=LOW:HIGH[:log]|=A,B] ...")] = (
        DEFAULT_SEARCH
    )
    """Options to try, in their declared range, in a given one (log: evenly by ratio) or among given
    values."""
    confirm: Annotated[int, Range(0, 1000)] = 3
    """Best trials that are trained again on other seeds before one is named best; 0 for none."""
    confirm_seeds: Annotated[int, Range(1, 1000)] = 2
    """Other seeds for each of them, the whole budget each; the best mean over these seeds wins."""
    study: Annotated[str, hidden_default("NAME")] = ""
    """Name of the study; that of the data if none is given."""
    storage: Annotated[str, hidden_default("URL|FILE")] = ""
    """postgresql://..., mysql://..., sqlite:///FILE, journal:///FILE, FILE.db or FILE.log; study.db
    in the folder if none is given."""
    workers: Annotated[int, Range(1, 1024)] = 1
    """Processes that train trials side by side; they share the threads."""
    pruner: Pruner = "median"
    """Which trials end early: those worse than the median of others at the same share of the
    budget, those Hyperband drops, or none."""
    sampler: SamplerName = "tpe"
    """Optuna's sampler, which proposes the next options: tpe (the usual one), random, qmc (evenly
    spread), cmaes (for numbers) or gp (a Gaussian process); the last three need more packages."""
    slices: Annotated[int, Range(1, 1000)] = 10
    """Validations per trial, after equal parts of its budget; the pruner looks at each."""
    startup: Annotated[int, Range(0, 10**6)] = 5
    """First trials, which draw their options at random and, with pruner median, are not pruned."""
    json: Annotated[str, hidden_default("FILE")] = ""
    """Also write all trials as JSON."""

    out: Annotated[str, Group.RUN, hidden_default("DIR")] = ""
    """Folder for the sweep, its trials and its results; sweeps/<study> if none is given."""
    steps: Annotated[int, tyro.conf.Suppress] = MOST_STEPS
    resume: Annotated[str, tyro.conf.Suppress] = ""
    track: Annotated[str, tyro.conf.Suppress] = NONE

    def run_options(self) -> Config:
        """The options that trials share, with a worker's share of the threads."""
        values = {f.name: getattr(self, f.name) for f in fields(Config)}
        # Of a file, these are another's.
        values |= {"steps": MOST_STEPS, "out": "", "config": "", "track": NONE}
        shared = Config(**values).at_home()
        return replace(shared, threads=self.threads or max(shared.cores() // self.workers, 1))

    def trial_budget(self) -> Budget:
        """Tokens if they are given, else seconds."""
        return Budget(tokens=self.budget_tokens) if self.budget_tokens else Budget(self.budget)

    def name(self) -> str:
        return self.study or Path(self.at_home().data).stem or "sweep"

    def folder(self) -> Path:
        return Path(self.out or Path("sweeps", self.name()))


def options_from(argv: Sequence[str]) -> SweepOptions:
    """The command line over --config FILE or --recipe NAME.

    Raises:
        InputError: an option or the file is no good.
    """
    about = "Searches for good options of a training run, every trial on the same budget."
    names = {word.partition("=")[0] for word in argv}
    for name in sorted(names & NOT_OFFERED.keys()):
        why = NOT_OFFERED[name]
        raise InputError(f"{name} is no option of eggroll.sweep, as {why}: leave it out.")
    options = from_command_line(SweepOptions, argv, command="sweep", about=about, examples=EXAMPLES)
    if "--budget" in names and options.budget_tokens > 0:
        raise InputError(
            f"--budget {options.budget:g} and --budget-tokens {options.budget_tokens} are both "
            "given, and a trial ends with one of them: leave the other out."
        )
    return options


def make_plan(options: SweepOptions) -> Plan:
    """Checks everything that can be checked; creates nothing.

    Raises:
        InputError: bad options, environment or data.
    """
    cli.check_ranges(options)
    cli.check_names(options)
    sampler(options)
    base = options.run_options()
    axes = space.choose_axes(options.search, base, strict=options.search != DEFAULT_SEARCH)
    engine, corpus = engine_and_data(base)
    check_place("--json", options.json)
    folder = options.folder().absolute()
    check_free(folder)
    check_results(folder / BEST, options.name())
    return Plan(options, base, axes, folder, engine, corpus)


def check_results(best: Path, study: str) -> None:
    """Raises InputError where results of another study would be written over."""
    if not best.exists():
        return
    try:
        with open_regular(best) as file:
            about = object_in(file.read(), {"about": dict})["about"]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(best)!r} is no result of a sweep ({error}): give another --out."
        ) from error
    if (other := about.get("study")) != study:
        raise InputError(
            f"{str(best)!r} is of study {other!r} and would be written over by study {study!r}: "
            f"give another --out, or --study {other} to go on with that one."
        )


def engine_and_data(options: Config) -> tuple[str, str]:
    """The engine a run would have, in words, and a digest of its data.

    Raises:
        InputError: the options do not go together, or not with the data.
    """
    options.check()
    engine, reason = engine_for(options, options.program())
    corpus = load_run_corpus(options)
    corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))
    digest = hashlib.sha256(json.dumps(fingerprint(corpus), sort_keys=True).encode())
    return f"{engine.description}, {reason}", digest.hexdigest()[:12]


@dataclass(frozen=True)
class Plan:
    """The plan of a sweep, the same for all workers."""

    options: SweepOptions
    base: Config  # options that all trials share
    axes: list[Axis]
    folder: Path
    engine: str  # and the reason for it, in words
    corpus: str  # digest of the data

    def settings(self) -> dict[str, Any]:
        """The facts that must be equal in all trials of a study for them to compare."""
        shared = {
            name: value
            for name, value in self.base.to_dict().items()
            if CHANGEABLE not in get_args(TYPES[name])[1:] or name == "val_tokens"
        }
        budget, slices = str(self.options.trial_budget()), self.options.slices
        trial_facts = {"budget": budget, "slices": slices, "text": self.corpus}
        return shared | trial_facts | {"search": " ".join(sorted(map(str, self.axes)))}

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


class TooManyTrials(Exception):
    """Ends a trial that several workers began at once beyond those wanted."""


# The phases of a sweep.


class SearchPhase(Protocol):
    """A study, and the training of its trials. Workers get it pickled."""

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
        runs = [t for t in study.get_trials(deepcopy=False) if is_confirmation(t)]
        losses = Counter(
            (t.user_attrs[TRIAL], t.user_attrs[SEED_OFFSET])
            for t in runs
            if t.state == TrialState.FAIL and not t.user_attrs.get(STOPPED)
        )
        settled = {attributes for attributes, times in losses.items() if times >= TRIES}
        settled |= {
            (t.user_attrs[TRIAL], t.user_attrs[SEED_OFFSET])
            for t in runs
            if t.state != TrialState.FAIL
        }
        with as_input_errors(self.plan.storage(), *STORAGE_ERRORS):
            for offset in range(1, options.confirm_seeds + 1):
                for trial in best[: options.confirm if len(best) > 1 else 0]:
                    if (trial.number, offset) not in settled:
                        attributes = {TRIAL: trial.number, SEED_OFFSET: offset}
                        study.enqueue_trial({}, user_attrs=attributes)

    def total(self, study: optuna.Study) -> int:
        return sum(t.state != TrialState.FAIL for t in study.get_trials(deepcopy=False))

    def wants_more(self, study: optuna.Study) -> bool:
        return bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def objective(self, trial: optuna.Trial, check_stop: Callable[[], None]) -> float:
        attributes = trial.user_attrs
        if TRIAL not in attributes:  # the last in the queue went to another worker
            raise TooManyTrials
        try:
            best = Search(self.plan).study().get_trials(deepcopy=False)[attributes[TRIAL]]
            seed = (self.plan.base.seed + attributes[SEED_OFFSET]) % (1 << 63)
            options = replace(self.plan.base, **best.params, seed=seed)
        except (LookupError, TypeError) as error:
            raise InputError(
                f"the confirmation of study {self.plan.options.name()!r} asks for a run that "
                f"cannot be ({error!r:.80}): give another --study."
            ) from error
        return self.plan.run(trial, options, f"confirm-{trial.number:04d}", check_stop)


def sampler(options: SweepOptions) -> optuna.samplers.BaseSampler:
    """The sampler that --sampler names.

    Raises:
        InputError: it needs a package that is not installed.
    """
    # No seeds: workers that share one would all try the same.
    samplers, startup = optuna.samplers, options.startup
    missing = [p for p in SAMPLER_PACKAGES.get(options.sampler, ()) if find_spec(p) is None]
    if missing:
        raise InputError(
            f"--sampler {options.sampler} needs {' and '.join(missing)}, not installed here: "
            f"'pip install {' '.join(missing)}', or use --sampler tpe or random."
        )
    make: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": lambda: samplers.TPESampler(n_startup_trials=startup, constant_liar=True),
        "random": samplers.RandomSampler,
        "qmc": lambda: samplers.QMCSampler(scramble=True, warn_independent_sampling=False),
        "cmaes": lambda: samplers.CmaEsSampler(
            n_startup_trials=max(startup, 1), warn_independent_sampling=False
        ),
        "gp": lambda: samplers.GPSampler(n_startup_trials=startup),
    }
    return make[options.sampler]()


def pruner(options: SweepOptions) -> optuna.pruners.BasePruner:
    """The pruner that --pruner names."""
    if options.pruner == "median":
        return optuna.pruners.MedianPruner(options.startup, n_warmup_steps=options.slices // 5)
    if options.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=options.slices)
    return PRUNE_NOTHING


# The training of one trial.


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
        metrics = stack.enter_context(Metrics(run.path(METRICS), 0))
        value, seconds, validated = run.validate(), 0.0, 0
        while validated < slices:
            check_stop()
            row = run.update()
            seconds += row["seconds"]
            used = budget.slices_done(slices, run.step, options.steps, seconds)
            row |= run.validation() if used > validated else {}
            metrics.append(row)
            # An update that ends several slices is validated once, in the last of them.
            for number in range(validated + 1, used + 1):
                value = run.val_loss if number == used and run.val_loss is not None else value
                trial.report(value, number)
            behind = validated < used < slices and trial.should_prune()
            validated = slices if behind else used
        metrics.sync()
        run.save()
        trial.set_user_attr("updates", run.step)
        trial.set_user_attr("seconds", round(seconds, 3))
    if behind:
        raise optuna.TrialPruned
    return value


def updates_within(
    seconds: float, options: Config, folder: Path, check_stop: Callable[[], None]
) -> int:
    """Updates that fit into `seconds`, by the median of a few in a run that is thrown away."""
    prefix = f"{PROBE_FOLDERS}{socket.gethostname()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as scratch, ExitStack() as stack:
        run = open_quietly(replace(options, out=scratch, steps=MOST_STEPS), stack)
        run.update()  # not timed, as it wakes threads and fills the noise table
        times: list[float] = []
        while sum(times) < PROBE_SHARE * seconds and len(times) < MOST_TIMED:
            check_stop()
            times.append(run.update()["seconds"])
    median = statistics.median(times)
    return min(int(seconds / median), MOST_STEPS) if median > 0 else 0


def open_quietly(options: Config, stack: ExitStack) -> TrainingRun:
    """A run that prints nothing when it opens."""
    with contextlib.redirect_stdout(io.StringIO()):  # the sweep has said it once for all runs
        return open_run(options, stack)


def remove_lost_probes(folder: Path) -> None:
    """Removes the short runs of processes of this machine that were killed in the middle of one."""
    for probe in folder.glob(f"{PROBE_FOLDERS}*"):
        host, _, pid = probe.name.rpartition("-")[0].rpartition("-")
        if host == f"{PROBE_FOLDERS}{socket.gethostname()}" and not process_exists(pid):
            shutil.rmtree(probe, ignore_errors=True)
