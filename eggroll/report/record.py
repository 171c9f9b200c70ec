"""A run as a report shows it: curves, statistics, samples, options and signature of its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from eggroll.baseline import backprop
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT, METRICS, SAMPLES, STATISTICS, open_regular
from eggroll.library.folder import read as read_trainer
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

TRAIN, ADAMW, TRAINER = "eggroll.train", "eggroll.adamw", "eggroll.Trainer"
OF_RUN: Final = ("tied", "threshold", "rate")
VOTES: Final = "vote_over_noise"
OF_LEAF: Final = ("update_rate", VOTES, "saturated")
OF_ACTIVATION: Final = ("saturated", "dead")
MOST_NAMES: Final = 400  # leaves, or activations, of one run
MOST_WARNINGS: Final = 100
MOST_TEXT: Final = 100_000  # bytes of samples.txt
LARGEST: Final = 1e300  # of a figure


@dataclass(frozen=True)
class RunRecord:
    """A run as the report shows it."""

    name: str  # a label, or the folder's name
    curves: RunCurves
    # Updates and validations in bits per token, [2, validations]; empty unless they differ from
    # those of `curves`, per byte.
    per_token: Values
    statistics: RunStatistics
    samples: str
    signature: Signature
    missing: tuple[str, ...]  # sentences on records that the folder lacks

    @property
    def made_by(self) -> str:
        """The command or class that made the run."""
        return made_by(self.curves)


class Signature(NamedTuple):
    """The digest of a checkpoint's weights."""

    text: str = ""  # empty where there is none
    step: int = 0  # the update of the checkpoint
    why_not: str = ""  # the reason why there is none


def read_record(folder: Path, label: str = "") -> RunRecord:
    """The record of a run; `label` names it in the place of its folder's name.

    Raises:
        InputError: the folder holds no run, none that has made an update, or one that is damaged.
    """
    curves = read_run(folder)
    statistics, signature = read_statistics(folder), read_signature(folder)
    samples = _samples(folder / SAMPLES)
    return RunRecord(
        label or curves.name, curves, _per_token(folder, curves), statistics, samples, signature,
        tuple(_missing(curves, statistics, samples, signature)),
    )  # fmt: skip


def made_by(curves: RunCurves) -> str:
    """The command or class that made a run with these curves."""
    if isinstance(curves, LanguageCurves):
        return TRAIN if curves.has_members else ADAMW
    return TRAINER


def read_signature(folder: Path) -> Signature:
    """The signature of the weights in a folder's checkpoint, as the run prints it at its end."""
    path = folder / CHECKPOINT
    try:
        program, arrays, step = _weights(path)
        weights = {leaf.name: arrays[f"weights/{leaf.name}"] for leaf in program.leaves}
    except (InputError, KeyError) as error:
        missing = not path.exists()
        return Signature(why_not="there is no checkpoint" if missing else f"{error}")
    return Signature(checkpoint.signature(weights), step)


def _weights(path: Path) -> tuple[Program, dict[str, Any], int]:
    kind = checkpoint.kind_of(path)
    if kind == backprop.FORMAT:
        options, step, _, arrays = backprop.read_run(path)
        return options.program(), arrays, step
    if kind == checkpoint.LIBRARY:
        saved = read_trainer(path, None, {})
        return saved.program, saved.arrays, saved.step
    model = checkpoint.load_model(path)
    weights = {f"weights/{name}": leaf for name, leaf in model.weights.items()}
    return model.config.program(), weights, model.step


def _per_token(folder: Path, curves: RunCurves) -> Values:
    """See `RunRecord.per_token`."""
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
    curves: RunCurves, statistics: RunStatistics, samples: str, signature: Signature
) -> list[str]:
    sentences = []
    if not statistics.recorded:
        sentences.append(_no_statistics(curves))
    if isinstance(curves, LanguageCurves) and not len(curves.valid):
        sentences.append("No validation yet: --validate-every says how often it is made.")
    if isinstance(curves, LanguageCurves) and not samples:
        sentences.append(f"No {SAMPLES}: samples are drawn at the end of a run.")
    if not signature.text:
        sentences.append(f"No signature: {signature.why_not.rstrip('.')}.")
    if statistics.left_out:
        sentences.append(
            f"{statistics.left_out:,} entries of {STATISTICS} are left out: there are too many."
        )
    return sentences


def _no_statistics(curves: RunCurves) -> str:
    contents = "update rates of single leaves, histograms, saturation and vote statistics"
    if made_by(curves) == TRAIN:
        return (
            f"No {STATISTICS}: {contents} are recorded by a run of eggroll.train with "
            "--statistics-every above 0."
        )
    if isinstance(curves, TrainerCurves):
        return f"No {STATISTICS}, which has {contents}; a Trainer does not record it."
    return f"No {STATISTICS}, which has {contents}; runs of eggroll.adamw do not record it."


# Statistics of weights, activations and votes, of statistics.jsonl; malformed entries are left out.


@dataclass
class RunStatistics:
    """A run's statistics, by update; empty where nothing was recorded."""

    # Name of OF_RUN, or VOTES (the mean over the leaves) -> points.
    run: dict[str, list[Point]] = field(default_factory=dict)
    leaves: dict[str, TensorStatistics] = field(default_factory=dict)
    activations: dict[str, TensorStatistics] = field(default_factory=dict)
    warnings: list[tuple[int, str]] = field(default_factory=list)  # (update, sentence)
    left_out: int = 0  # names beyond MOST_NAMES and warnings beyond MOST_WARNINGS

    @property
    def recorded(self) -> bool:
        """True if there is more than warnings."""
        return bool(self.run or self.leaves or self.activations)


@dataclass
class TensorStatistics:
    """The statistics of a leaf or an activation."""

    figures: dict[str, list[Point]] = field(default_factory=dict)  # by name
    # Step -> float64 [BINS], shares of all values.
    histograms: dict[int, NDArray[np.float64]] = field(default_factory=dict)


class Point(NamedTuple):
    """A figure at an update."""

    step: int
    value: float


def read_statistics(folder: Path) -> RunStatistics:
    """The statistics in a run's folder; empty if there is no file.

    Raises:
        InputError: the file is there and cannot be read.
    """
    statistics, previous = RunStatistics(), 0
    for _, row in read_lines(folder / STATISTICS):
        step = row["step"]
        if not 0 <= step < 1 << 53:
            continue
        if "warning" in row:
            _add_warning(statistics, step, row["warning"])
        elif step > previous:
            previous = step
            _add_row(statistics, step, row)
    return statistics


def _add_warning(statistics: RunStatistics, step: int, sentence: object) -> None:
    if not isinstance(sentence, str):
        return
    if len(statistics.warnings) < MOST_WARNINGS:
        statistics.warnings.append((step, sentence))
    else:
        statistics.left_out += 1


def _add_row(statistics: RunStatistics, step: int, row: Mapping[str, Any]) -> None:
    _add_points(statistics.run, step, row, OF_RUN)
    ratios = []
    for tensor, facts in _tensors(statistics, statistics.leaves, row.get("leaves")):
        _add_points(tensor.figures, step, facts, OF_LEAF)
        _add_histogram(tensor, step, facts.get("weights"))
        ratios += [p.value for p in tensor.figures.get(VOTES, [])[-1:] if p.step == step]
    if ratios:
        _add_points(statistics.run, step, {VOTES: float(np.mean(ratios))}, (VOTES,))
    for tensor, facts in _tensors(statistics, statistics.activations, row.get("activations")):
        _add_points(tensor.figures, step, facts, OF_ACTIVATION)
        _add_histogram(tensor, step, facts.get("values"))


def _tensors(
    statistics: RunStatistics, tensors: dict[str, TensorStatistics], entries: object
) -> Iterator[tuple[TensorStatistics, Mapping[str, Any]]]:
    if not isinstance(entries, dict):
        return
    for name, facts in entries.items():
        if not isinstance(facts, dict):
            continue
        if name not in tensors and len(tensors) >= MOST_NAMES:
            statistics.left_out += 1
            continue
        yield tensors.setdefault(name, TensorStatistics()), facts


def _add_points(
    series: dict[str, list[Point]], step: int, row: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    for name in names:
        value = row.get(name)
        if is_number(value):  # neither NaN nor infinite
            series.setdefault(name, []).append(Point(step, float(value)))


def _add_histogram(tensor: TensorStatistics, step: int, counts: object) -> None:
    if not isinstance(counts, list) or len(counts) != BINS:
        return
    if all(is_number(count) and count >= 0 for count in counts):
        values = np.array(counts, np.float64)
        if total := values.sum():
            tensor.histograms[step] = values / total


def is_number(value: object) -> TypeGuard[int | float]:
    """True of a number that is finite, and so small that sums of it are."""
    return type(value) in (int, float) and abs(cast(float, value)) <= LARGEST
