"""The figures of runs as plot.py draws them: read from their folders, several seeds joined.

Letters: P members, S streams, T tokens.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.data.hub import NUMBERED
from eggroll.errors import InputError, object_in
from eggroll.evolution.estimators import ESTIMATORS, MOST
from eggroll.files import CONFIG, METRICS, open_regular
from eggroll.training.folder import read_lines

Values = NDArray[np.float64]
Metric = Literal[
    "val_loss",
    "loss",
    "fitness",
    "fitness_best",
    "error",
    "update_rate",
    "nonzero_ratio",
    "tokens_per_second",
    "rows_per_second",
]


MIXED: Final = "val_bits_per_byte_with_counts"
# Of an update by values told; those by errors have an error, and with targets a loss.
OF_VALUES: Final[tuple[Metric, ...]] = ("fitness", "fitness_best", "nonzero_ratio")


@dataclass(frozen=True)
class RunCurves(ABC):
    """A run's options and the figures of its updates, as the pictures show them.

    steps, rate, speed, seconds: [updates], speed in tokens or rows per second, seconds of one
    update each.
    """

    name: str
    config: dict[str, Any]
    about: dict[str, Any]
    steps: Values
    rate: Values
    speed: Values
    seconds: Values

    of: ClassVar[str]  # what it is a run of
    metrics: ClassVar[tuple[Metric, ...]]  # its figures
    over: ClassVar[str]  # the method that counts what was read
    counted: ClassVar[str]  # what it counts

    @property
    @abstractmethod
    def main(self) -> Metric:
        """The figure that runs are compared by."""

    @property
    @abstractmethod
    def has_members(self) -> bool:
        """True if updates were made by members of a population."""

    @abstractmethod
    def unit_of(self, metric: Metric) -> str:
        """The unit of a metric."""

    @abstractmethod
    def curve(self, metric: Metric) -> tuple[Values, Values]:
        """Updates, and the figure of each; those of single updates smoothed."""

    def elapsed(self, steps: Values) -> Values:
        """Seconds of all updates up to each of these, those of validating left out."""
        return self._up_to(steps, self.seconds)

    def _up_to(self, steps: Values, of_each: Values) -> Values:
        done = np.searchsorted(self.steps, steps, side="right")
        sums: Values = np.concatenate([[0.0], of_each.cumsum()])
        return sums[done]

    def without_seed(self) -> str:
        """All that may make two runs differ but the seed, in one text."""
        changes = {"seed", "out", "resume", "config"}
        kept = {name: value for name, value in self.config.items() if name not in changes}
        return json.dumps(kept | {"about": self.about.get("corpus")}, sort_keys=True)


@dataclass(frozen=True)
class LanguageCurves(RunCurves):
    """A run of eggroll.train or eggroll.adamw.

    loss: [updates]; valid_steps, valid: [validations]; with_counts: [2, validations with an
    expert], steps and figures.
    """

    loss: Values
    valid_steps: Values
    valid: Values
    with_counts: Values

    of: ClassVar[str] = "of a language model"
    metrics: ClassVar[tuple[Metric, ...]] = (
        "val_loss", "loss", "update_rate", "tokens_per_second",
    )  # fmt: skip
    over: ClassVar[str] = "tokens"
    counted: ClassVar[str] = "tokens of the corpus read"
    main: ClassVar[Metric] = "val_loss"

    @property
    def unit(self) -> str:
        return "bits per token" if self.config.get("data") in NUMBERED else "bits per byte"

    @property
    def has_members(self) -> bool:
        return "pop" in self.config

    def unit_of(self, metric: Metric) -> str:
        known = {"update_rate": "% of weights per update", "tokens_per_second": "tokens per s"}
        return known.get(metric, self.unit)

    def tokens(self, steps: Values) -> Values:
        """Tokens of the corpus read up to each of these updates: updates x S x T."""
        c = self.config
        streams = c["streams"] if not self.has_members else c["pop"]
        estimator = ESTIMATORS.get(c.get("estimator", ""))
        if self.has_members and (estimator is None or estimator.perturbs):
            streams //= c["group_size"]  # without noise, every member reads a stream of its own
        per_update: int = streams * c["seq_len"]
        return steps * per_update

    def curve(self, metric: Metric) -> tuple[Values, Values]:
        if metric == "val_loss":
            return self.valid_steps, self.valid
        values = {"loss": self.loss, "update_rate": 100 * self.rate}
        return self.steps, smooth(values.get(metric, self.speed))


@dataclass(frozen=True)
class TrainerCurves(RunCurves):
    """A run of eggroll.Trainer, whose updates are by values told or by errors.

    points: by metric, [2, updates that have it]: their numbers and the figure.
    """

    points: dict[Metric, Values]

    of: ClassVar[str] = "of eggroll.Trainer"
    metrics: ClassVar[tuple[Metric, ...]] = (
        "fitness", "fitness_best", "loss", "error", "update_rate", "nonzero_ratio",
        "rows_per_second",
    )  # fmt: skip
    over: ClassVar[str] = "rows"
    counted: ClassVar[str] = "rows of all members"

    @property
    def main(self) -> Metric:
        names: tuple[Metric, ...] = ("fitness", "loss", "error")
        return next(name for name in names if self.has(name))

    @property
    def has_members(self) -> bool:
        return self.has("fitness")

    def has(self, metric: Metric) -> bool:
        """True if updates have that figure."""
        return bool(self.points[metric].size)

    def unit_of(self, metric: Metric) -> str:
        known = {
            "loss": "mean of the rows",
            "error": "mean size, of 127",
            "update_rate": "% of weights per update",
            "nonzero_ratio": "% of pairs per update",
            "rows_per_second": "rows per s",
        }
        return known.get(metric, "fitness")

    def rows(self, steps: Values) -> Values:
        """Rows that all members together were shown up to each of these updates."""
        return self._up_to(steps, np.rint(self.speed * self.seconds))

    def curve(self, metric: Metric) -> tuple[Values, Values]:
        if metric in self.points:
            steps, values = self.points[metric]
            return steps, smooth(100 * values if metric == "nonzero_ratio" else values)
        return self.steps, smooth(100 * self.rate if metric == "update_rate" else self.speed)


def read_run(folder: Path | str) -> RunCurves:
    """A run's config and metrics.

    Raises:
        InputError: the folder holds no run, or none that has made an update.
    """
    folder = Path(folder)
    try:
        with open_regular(folder / CONFIG) as file:
            config = object_in(file.read(), {"about": dict | None})
        about = config.pop("about", {})
        _check(config, about)
        rows = [row for _, row in read_lines(folder / METRICS)]
        of_trainer = any("rows_per_second" in row for row in rows[:1])
        figures = (
            ("rows_per_second", "seconds")
            if of_trainer
            else ("tokens_per_second", "seconds", "loss")
        )
        if rows and not of_trainer:  # what its tokens are counted by
            counted = ("pop", "group_size") if "pop" in config else ("streams",)
            if missing := {*counted, "seq_len"} - config.keys():
                raise KeyError(*sorted(missing))
        columns = [
            np.array([row[name] for row in rows], np.float64)
            for name in ("step", "update_rate", *figures)
        ]
        validated = [row for row in rows if "val_loss" in row]
        validations = _points([(row["step"], per_unit(row)) for row in validated])
        with_counts = _points([(row["step"], row[MIXED]) for row in validated if MIXED in row])
        named: dict[Metric, Values] = {
            name: _points([(row["step"], row[name]) for row in rows if name in row])
            for name in ((*OF_VALUES, "loss", "error") if of_trainer else ())
        }
        if any(column.ndim != 1 for column in (*columns, *validations)):
            raise ValueError("a figure is a list")
        for row in rows if of_trainer else ():
            if "error" not in row and (lost := [name for name in OF_VALUES if name not in row]):
                raise KeyError(lost[0])
        if not of_trainer:  # the members' loss in the unit of validation
            unit = next((per_unit(r) / r["val_loss"] for r in rows if r.get("val_loss")), 1)
            with np.errstate(over="ignore", invalid="ignore"):  # of a file that is damaged
                columns[-1] *= unit
        every = (*columns, *validations, *with_counts, *named.values())
        if not all((abs(c) <= MOST).all() for c in every):
            raise ValueError("a figure is not finite")
        if (columns[0] < 1).any() or (np.diff(columns[0]) <= 0).any():
            raise ValueError("updates are not in their order")
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} holds no run ({error.strerror}): give the folder of a training run."
        ) from error
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise InputError(
            f"the files of {str(folder)!r} are damaged ({type(error).__name__}: {error}): give the "
            "folder of another run."
        ) from error
    if not rows:
        raise InputError(f"the run in {str(folder)!r} has made no update yet: plot it later.")
    name = folder.resolve().name
    if of_trainer:
        steps, rate, speed, seconds = columns
        return TrainerCurves(name, config, about, steps, rate, speed, seconds, named)
    columns += [*validations, with_counts]
    return LanguageCurves(name, config, about, *columns)


def _points(pairs: list[tuple[Any, Any]]) -> Values:
    """Updates and a figure of each, [2, updates]."""
    return np.array(pairs, np.float64).reshape(-1, 2).T


def per_unit(row: dict[str, Any]) -> float:
    """A validation in bits per byte; per token where tokens are numbers, as then both are equal."""
    return float(row.get("val_bits_per_byte", row["val_loss"]))


def _check(config: dict[str, Any], about: dict[str, Any]) -> None:
    """Raises ValueError or AttributeError where they are not as a run writes them."""
    for name in ("pop", "group_size", "seq_len", "streams"):
        value = config.get(name, 1)
        if type(value) is not int or not 1 <= value < 1 << 40:
            raise ValueError(f"{name} is {value!r:.20}")
    for name, value in about.get("baselines", {}).items():
        if type(value) not in (int, float) or not abs(value) <= MOST:
            raise ValueError(f"the {name:.20} model's loss is {value!r:.20}")


def smooth(values: Values) -> Values:
    """Centred moving average over a hundredth of the run, narrower towards the ends."""
    half = min(max(len(values) // 200, 2), 50)
    sums = np.concatenate([[0.0], values.cumsum()])
    index = np.arange(len(values))
    reach = np.minimum(half, np.minimum(index, len(values) - 1 - index))
    means: Values = (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)
    return means


class Series(NamedTuple):
    """Runs that differ in their seeds alone, drawn as one line: their mean, in a band to both ends.

    label: that of the first; runs: one or more, which share updates.
    """

    label: str
    runs: list[RunCurves]

    def takes(self, run: RunCurves, metric: Metric) -> bool:
        """True if the run differs from these in its seed alone and shares updates with them."""
        seeds = [other.config.get("seed") for other in self.runs]
        alike = run.without_seed() == self.runs[0].without_seed()
        return (
            alike
            and run.config.get("seed") not in seeds
            and len(common_steps([*self.runs, run], metric)) > 0
        )

    def points(self, metric: Metric, over: str) -> tuple[Values, Values, Values, Values]:
        """x, and the mean, the least and the greatest y of the runs at the updates they share.

        over: 'elapsed', or the runs' own `over`: what x counts.
        """
        common, curves = common_steps(self.runs, metric), [run.curve(metric) for run in self.runs]
        y = np.stack([values[np.isin(steps, common)] for steps, values in curves])
        x = np.mean([getattr(run, over)(common) for run in self.runs], axis=0)
        return x, y.mean(axis=0), y.min(axis=0), y.max(axis=0)


def common_steps(runs: Sequence[RunCurves], metric: Metric) -> Values:
    """The updates at which every one of the runs has that figure."""
    return functools.reduce(np.intersect1d, [run.curve(metric)[0] for run in runs])


def grouped(named: Sequence[tuple[str, RunCurves]], metric: Metric) -> list[Series]:
    """The runs in series, each run in the first that takes it."""
    parts: list[Series] = []
    for name, run in named:
        if found := next((series for series in parts if series.takes(run, metric)), None):
            found.runs.append(run)
        else:
            parts.append(Series(name, [run]))
    return parts


def labelled(
    runs: Sequence[RunCurves], labels: Sequence[str], metric: Metric, group_seeds: bool
) -> list[Series]:
    """The lines of a picture with their names: labels of the runs or of the lines, else folders'.

    Raises:
        InputError: there are labels, but neither as many as runs nor as lines.
    """
    each = len(labels) == len(runs)
    named = list(zip(labels if each else [run.name for run in runs], runs, strict=True))
    series = grouped(named, metric) if group_seeds else [Series(n, [run]) for n, run in named]
    if labels and not each and len(labels) != len(series):
        lines = f", or {len(series)} for the lines that they make" * (len(series) < len(runs))
        raise InputError(
            f"--label has {len(labels)} names for {len(runs)} folders: give one for each{lines}."
        )
    if not each:
        labels = labels or [shared_name(one) for one in series]
        series = [one._replace(label=name) for one, name in zip(series, labels, strict=True)]
    return series


def told_apart(runs: Sequence[RunCurves], folders: Sequence[Path]) -> list[RunCurves]:
    """The runs, those of one name with that of the folder around them."""
    names = Counter(run.name for run in runs)
    return [
        replace(run, name="/".join(folder.resolve().parts[-2:])) if names[run.name] > 1 else run
        for run, folder in zip(runs, folders, strict=True)
    ]


def shared_name(series: Series) -> str:
    """The common beginning of its folders' names, as `wide` of wide-0, wide-1; else the first."""
    letters = zip(*(run.name for run in series.runs), strict=False)
    begin = "".join(c[0] for c in takewhile(lambda c: len(set(c)) == 1, letters))
    alone = len(series.runs) == 1 or begin[-1:] not in ("-", "_", ".")
    return series.label if alone else begin.rstrip("-_.") or series.label
