"""All that a run's folder tells: its curves, statistics, samples, options and signature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from eggroll import checkpoint, trainer_log
from eggroll.baseline import reader
from eggroll.curves import LanguageCurves, RunCurves, TrainerCurves, Values, per_unit, read_run
from eggroll.errors import InputError
from eggroll.program import Program
from eggroll.report.statistics import Statistics, is_number, read_statistics
from eggroll.runlog import CHECKPOINT, METRICS, SAMPLES, STATISTICS, open_regular, read_lines

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
