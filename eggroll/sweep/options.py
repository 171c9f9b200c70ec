"""Options of a sweep: those of a training run, and how to search among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from eggroll.cli import Range
from eggroll.config import Config, hidden_default
from eggroll.errors import InputError
from eggroll.help import Group
from eggroll.options import from_command_line
from eggroll.sweep.trial import MOST_STEPS, Budget
from eggroll.trackers import NONE

DEFAULT_SEARCH = ("sigma_shift", "alpha", "alpha_decay", "learning_rate", "rate_decay")
EXAMPLES = (
    ("--data count --pop 1024 --trials 20 --budget 10", "settings for counting, 10 s a trial"),
    ("--config runs/a/config.json --search alpha width=64,128", "vary two options of a run"),
)
NOT_OFFERED = {
    "--steps": "a trial makes as many updates as its budget allows",
    "--resume": "the same command goes on with its study",
    "--track": "trials are many and short, and the study keeps them",
}
Pruner = Literal["median", "hyperband", "none"]


@dataclass(frozen=True)
class Options(Config):
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


def options_from(argv: Sequence[str]) -> Options:
    """The command line over --config FILE or --recipe NAME.

    Raises:
        InputError: an option or the file is no good.
    """
    about = "Searches for good options of a training run, every trial on the same budget."
    names = {word.partition("=")[0] for word in argv}
    for name in sorted(names & NOT_OFFERED.keys()):
        why = NOT_OFFERED[name]
        raise InputError(f"{name} is no option of eggroll.sweep, as {why}: leave it out.")
    given = from_command_line(Options, argv, command="sweep", about=about, examples=EXAMPLES)
    if "--budget" in names and given.budget_tokens > 0:
        raise InputError(
            f"--budget {given.budget:g} and --budget-tokens {given.budget_tokens} are both given, "
            "and a trial ends with one of them: leave the other out."
        )
    return given
