"""A search over sigma and rate: `eggroll finetune --sweep TRIALS`.

Every trial is a fine-tune of its own from the model as it was given, and its worth the reward of
greedy answers to the held-out prompts. Trials that fall behind the median of earlier ones at a
judgement end there. The study lies in the folder, so a search that was ended goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import optuna
from optuna.trial import Trial, TrialState

from eggroll.files import write_whole
from eggroll.sweep import study as studies

STUDY, TRIALS = "study.log", "trials.json"  # files of the folder
SEARCHED: Final = {"sigma": 16.0, "rate": 64.0}  # options, and the largest that they may be
TIMES: Final = 8.0  # the given values are searched from a so manieth to so many times
FIRST: Final = 4  # trials that are drawn freely, and never end early
Report = Callable[[float, int], bool]  # (held-out reward, updates) -> True to go on


class EndedTrial(NamedTuple):
    """A trial that has ended.

    updates: made; held_out: the reward at its last judgement; early: ended for its low rewards.
    """

    number: int
    sigma: float
    rate: float
    updates: int
    held_out: float
    early: bool


class TuningSearch:
    """The study of a folder, whose trials `run` makes."""

    def __init__(self, folder: Path, options: Any, digests: Mapping[str, str]) -> None:
        """Opens the study, or makes it, with the given options as its first trial.

        digests: of what else all trials share, by its name.

        Raises:
            InputError: the folder has the study of other options, or cannot be written.
        """
        self.folder, self.options = folder, options
        shared = {k: v for k, v in asdict(options).items() if k not in ("out", "resume", "sweep")}
        shared |= digests
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        place = f"journal:///{folder.absolute() / STUDY}"
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST)

        def opened() -> optuna.Study:
            study = studies.open_study(place, "finetune", optuna.samplers.RandomSampler(), pruner)
            # A search that goes on draws what it has not drawn.
            drawn = (options.seed + len(study.get_trials(deepcopy=False))) % (1 << 32)
            study.sampler = optuna.samplers.TPESampler(seed=drawn, n_startup_trials=FIRST)
            return study

        self._study = studies.prepare_study(
            opened, shared, {name: getattr(options, name) for name in SEARCHED}, place,
            named=f"the sweep in {str(folder)!r}", option="--out",
        )  # fmt: skip

    @property
    def done(self) -> int:
        """Trials that have ended."""
        return studies.finished(self._study)

    def next(self, run: Callable[[Any, Report], float | None]) -> EndedTrial | None:
        """Makes a trial; None where `run` was stopped.

        run: fine-tunes by options, reports, and answers the last held-out reward, or None.
        """
        trial = self._study.ask()
        studies.name_worker(trial)
        options = replace(self.options, **{name: self._drawn(trial, name) for name in SEARCHED})

        early, found = False, None

        def report(held_out: float, step: int) -> bool:
            nonlocal early
            trial.report(-held_out, step)  # as a study looks for what is least
            early = trial.should_prune() and step < options.steps
            return not early

        try:
            found = run(options, report)
            if found is None:
                trial.set_user_attr(studies.STOPPED, True)
        finally:
            if found is None:
                self._study.tell(trial, state=TrialState.FAIL)
        if found is None:
            return None
        self._study.tell(trial, None if early else -found, TrialState.PRUNED if early else None)
        ended = self.ended()
        lines = ",\n ".join(json.dumps(one._asdict()) for one in ended)
        write_whole(self.folder / TRIALS, f"[\n {lines}\n]\n".encode())
        return next(one for one in ended if one.number == trial.number)

    def ended(self) -> list[EndedTrial]:
        """All trials that have ended, in order."""
        ended = []
        for trial in self._study.get_trials(deepcopy=False, states=studies.FINISHED):
            sigma, rate = (rounded(trial.params[name]) for name in SEARCHED)
            updates, value = max(trial.intermediate_values.items())
            early = trial.state == TrialState.PRUNED
            ended.append(EndedTrial(trial.number, sigma, rate, updates, -value, early))
        return ended

    def best(self) -> EndedTrial:
        """The trial of the largest held-out reward, of those that were not ended early."""
        return max((t for t in self.ended() if not t.early), key=lambda t: (t.held_out, -t.number))

    def _drawn(self, trial: Trial, name: str) -> float:
        middle = getattr(self.options, name)
        most = min(middle * TIMES, SEARCHED[name])
        return rounded(trial.suggest_float(name, middle / TIMES, most, log=True))


def rounded(value: float) -> float:
    """To three digits, so that it can be typed."""
    return round(value, 2 - math.floor(math.log10(value)))
