"""All that a run's folder tells: its curves, statistics, samples, options and signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from eggroll.baseline import backprop as reader
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT, METRICS, SAMPLES, STATISTICS, open_regular
from eggroll.library import folder as trainer_log
from eggroll.spec.program import Program
from eggroll.training import checkpoint
from eggroll.training.curves import (
    LanguageCurves,
    RunCurves,
    TrainerCurves,
    Values,
    per_unit,
    read_run,
)
from eggroll.training.folder import read_lines
from eggroll.training.statistics import BINS

OF_RUN: Final = ("tied", "threshold", "rate")
VOTES: Final = "vote_over_noise"
OF_LEAF: Final = ("update_rate", VOTES, "saturated")
OF_ACTIVATION: Final = ("saturated", "dead")
MOST_NAMES: Final = 400  # leaves, or activations, of one run
MOST_WARNINGS: Final = 100
LARGEST: Final = 1e300  # of a figure


class Point(NamedTuple):
    """A figure at an update."""

    step: int
    value: float


@dataclass
class Part:
    """A leaf's or an activation's record.

    figures: name -> points; histograms: step -> float64 [BINS], shares of all values.
    """

    figures: dict[str, list[Point]] = field(default_factory=dict)
    histograms: dict[int, NDArray[np.float64]] = field(default_factory=dict)


@dataclass
class Statistics:
    """A run's statistics, by update; empty where nothing was recorded.

    run: name of OF_RUN, or VOTES (the mean over the leaves) -> points; warnings: (update,
    sentence); left_out: names beyond MOST_NAMES and warnings beyond MOST_WARNINGS.
    """

    run: dict[str, list[Point]] = field(default_factory=dict)
    leaves: dict[str, Part] = field(default_factory=dict)
    activations: dict[str, Part] = field(default_factory=dict)
    warnings: list[tuple[int, str]] = field(default_factory=list)
    left_out: int = 0

    @property
    def recorded(self) -> bool:
        """True if there is more than warnings."""
        return bool(self.run or self.leaves or self.activations)


def read_statistics(folder: Path) -> Statistics:
    """The statistics in a run's folder; empty if there is no file.

    Raises:
        InputError: the file is there and cannot be read.
    """
    found, last = Statistics(), 0
    for _, row in read_lines(folder / STATISTICS):
        step = row["step"]
        if not 0 <= step < 1 << 53:
            continue
        if "warning" in row:
            _add_warning(found, step, row["warning"])
        elif step > last:
            last = step
            _add_row(found, step, row)
    return found


def _add_warning(found: Statistics, step: int, sentence: object) -> None:
    if not isinstance(sentence, str):
        return
    if len(found.warnings) < MOST_WARNINGS:
        found.warnings.append((step, sentence))
    else:
        found.left_out += 1


def _add_row(found: Statistics, step: int, row: Mapping[str, Any]) -> None:
    _add_points(found.run, step, row, OF_RUN)
    ratios = []
    for part, facts in _parts(found, found.leaves, row.get("leaves")):
        _add_points(part.figures, step, facts, OF_LEAF)
        _add_histogram(part, step, facts.get("weights"))
        ratios += [p.value for p in part.figures.get(VOTES, [])[-1:] if p.step == step]
    if ratios:
        _add_points(found.run, step, {VOTES: float(np.mean(ratios))}, (VOTES,))
    for part, facts in _parts(found, found.activations, row.get("activations")):
        _add_points(part.figures, step, facts, OF_ACTIVATION)
        _add_histogram(part, step, facts.get("values"))


def _parts(
    found: Statistics, known: dict[str, Part], row: object
) -> Iterator[tuple[Part, Mapping[str, Any]]]:
    if not isinstance(row, dict):
        return
    for name, facts in row.items():
        if not isinstance(facts, dict):
            continue
        if name not in known and len(known) >= MOST_NAMES:
            found.left_out += 1
            continue
        yield known.setdefault(name, Part()), facts


def _add_points(
    known: dict[str, list[Point]], step: int, row: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    for name in names:
        value = row.get(name)
        if is_number(value):  # neither NaN nor infinite
            known.setdefault(name, []).append(Point(step, float(value)))


def _add_histogram(part: Part, step: int, counts: object) -> None:
    if not isinstance(counts, list) or len(counts) != BINS:
        return
    if all(is_number(count) and count >= 0 for count in counts):
        values = np.array(counts, np.float64)
        if total := values.sum():
            part.histograms[step] = values / total


def is_number(value: object) -> TypeGuard[int | float]:
    """True of a number that is finite, and so small that sums of it are."""
    return type(value) in (int, float) and abs(cast(float, value)) <= LARGEST


MOST_TEXT: Final = 100_000  # bytes of samples.txt
TRAIN, ADAMW, TRAINER = "eggroll.train", "eggroll.adamw", "eggroll.Trainer"


class Signature(NamedTuple):
    """The digest of a checkpoint's weights; `text` is empty where `why_not` says what is wrong.

    step: the update of the checkpoint.
    """

    text: str = ""
    step: int = 0
    why_not: str = ""


@dataclass(frozen=True)
class Record:
    """A run as the report shows it.

    name: a label, or the folder's name; per_token: updates and validations in bits per token, [2,
    validations], where `curves` has them per byte and the two differ, else empty; missing: what the
    folder lacks, in sentences.
    """

    name: str
    curves: RunCurves
    per_token: Values
    statistics: Statistics
    samples: str
    signature: Signature
    missing: tuple[str, ...]

    @property
    def made_by(self) -> str:
        """The command or class that made the run."""
        return made_by(self.curves)


def made_by(curves: RunCurves) -> str:
    if isinstance(curves, LanguageCurves):
        return TRAIN if curves.has_members else ADAMW
    return TRAINER


def read_record(folder: Path, label: str = "") -> Record:
    """The record of a run; `label` names it in the place of its folder's name.

    Raises:
        InputError: the folder holds no run, none that has made an update, or one that is damaged.
    """
    curves = read_run(folder)
    statistics, signature = read_statistics(folder), read_signature(folder)
    samples = _samples(folder / SAMPLES)
    return Record(
        label or curves.name, curves, _per_token(folder, curves), statistics, samples, signature,
        tuple(_missing(curves, statistics, samples, signature)),
    )  # fmt: skip


def read_signature(folder: Path) -> Signature:
    """The signature of the weights in a folder's checkpoint, as the run prints it at its end."""
    path = folder / CHECKPOINT
    try:
        program, arrays, step = _weights(path)
        weights = {leaf.name: arrays[f"weights/{leaf.name}"] for leaf in program.leaves}
    except (InputError, KeyError) as error:
        gone = not path.exists()
        return Signature(why_not="there is no checkpoint" if gone else f"{error}")
    return Signature(checkpoint.signature(weights), step)


def _weights(path: Path) -> tuple[Program, dict[str, Any], int]:
    kind = checkpoint.kind_of(path)
    if kind == reader.FORMAT:
        options, step, _, arrays = reader.read(path)
        return options.program(), arrays, step
    if kind == checkpoint.LIBRARY:
        saved = trainer_log.read(path, None, {})
        return saved.program, saved.arrays, saved.step
    model = checkpoint.load_model(path)
    weights = {f"weights/{name}": leaf for name, leaf in model.weights.items()}
    return model.config.program(), weights, model.step


def _per_token(folder: Path, curves: RunCurves) -> Values:
    if not isinstance(curves, LanguageCurves):
        return np.empty((2, 0))
    rows = [row for _, row in read_lines(folder / METRICS) if is_number(row.get("val_loss"))]
    if all(row["val_loss"] == per_unit(row) for row in rows):
        return np.empty((2, 0))
    return np.array([(row["step"], row["val_loss"]) for row in rows], np.float64).T


def _samples(path: Path) -> str:
    """The end of samples.txt; empty if there is none or it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(size - MOST_TEXT, 0))
            return file.read(MOST_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def _missing(
    curves: RunCurves, statistics: Statistics, samples: str, signature: Signature
) -> list[str]:
    found = []
    if not statistics.recorded:
        found.append(_no_statistics(curves))
    if isinstance(curves, LanguageCurves) and not len(curves.valid):
        found.append("No validation yet: --validate-every says how often it is made.")
    if isinstance(curves, LanguageCurves) and not samples:
        found.append(f"No {SAMPLES}: samples are drawn at the end of a run.")
    if not signature.text:
        found.append(f"No signature: {signature.why_not.rstrip('.')}.")
    if statistics.left_out:
        found.append(
            f"{statistics.left_out:,} entries of {STATISTICS} are left out: there are too many."
        )
    return found


def _no_statistics(curves: RunCurves) -> str:
    what = "update rates of single leaves, histograms, saturation and vote statistics"
    if made_by(curves) == TRAIN:
        return (
            f"No {STATISTICS}: {what} are recorded by a run of eggroll.train with "
            "--statistics-every above 0."
        )
    if isinstance(curves, TrainerCurves):
        return f"No {STATISTICS}, which has {what}; a Trainer does not record it."
    return f"No {STATISTICS}, which has {what}; runs of eggroll.adamw do not record it."
