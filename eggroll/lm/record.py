"""The files of a fine-tune: checkpoint, metrics and replay log, and a replay without the model.

Letters: N pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx

from eggroll.cli.help import CHANGEABLE as MARK
from eggroll.cli.help import hints_of
from eggroll.errors import InputError, shown
from eggroll.files import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    REPLAY,
    VERSION,
    Row,
    open_regular,
    write_whole,
)
from eggroll.library.folder import TrainerLog, in_folder, store
from eggroll.lm import adapter
from eggroll.lm.layers import Layers, load_model
from eggroll.lm.learner import Delta, DeltaLearner, Options, Votes, mode_of, rule_of
from eggroll.training import checkpoint
from eggroll.training.folder import Metrics
from eggroll.training.replay_log import SMALL, SignLog, header_of, records

KIND: Final = checkpoint.FINE_TUNE
CHANGEABLE: Final = {
    name for name, hint in hints_of(Options).items() if MARK in getattr(hint, "__metadata__", ())
}
MOST_STEPS: Final = 10**9


@dataclass(frozen=True)
class Facts:
    """The facts of a fine-tune that its files keep.

    model: the name it was loaded by, empty if it was given; fingerprint: of its weights.
    """

    options: Options
    leaves: list[Delta]
    model: str
    fingerprint: str

    def header(self) -> dict[str, Any]:
        """The beginning of the replay log."""
        return {
            "kind": KIND,
            "pairs": self.options.pop // 2,
            "packing": None if self.options.fitness == "sign" else SMALL,
            "config": asdict(self.options),
            "network": self.fingerprint,
            "leaves": [list(leaf) for leaf in self.leaves],
            "model": self.model,
        }

    @classmethod
    def of(cls, header: Mapping[str, Any], path: Path) -> Self:
        """The facts in a header.

        Raises:
            InputError: they are no facts of a fine-tune.
        """
        try:
            known = {field.name for field in fields(Options)}
            options = Options(**{k: v for k, v in header["config"].items() if k in known})
            options.check()
            leaves = [Delta(str(n), int(o), int(i), int(c), int(e), str(d))
                      for n, o, i, c, e, d in header["leaves"]]  # fmt: skip
            return cls(options, leaves, str(header["model"]), str(header["network"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{str(path)!r} is damaged (its options are no fine-tune's): restore it "
                "from a copy."
            ) from error


def signature(learner: DeltaLearner) -> str:
    """Hex sha256 of all deltas."""
    return checkpoint.signature(learner.weights)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


class RunLog(TrainerLog):
    """The folder of a fine-tune, locked until it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._signs: SignLog | None = None
        self._waiting: list[tuple[Row, Votes]] = []  # not yet in the replay log
        self._fitness: Callable[[], Votes]

    @property
    def hint(self) -> str:
        return (
            f"go on with lm.Trainer.load({str(self.path)!r}), or eggroll finetune --resume "
            f"{self.path} if the command began it"
        )

    def begin_run(self, facts: Facts, step: int, fitness: Callable[[], Votes]) -> None:
        """Writes config.json, and cuts the other files back to the update of the checkpoint.

        fitness: gives that of the last update's pairs, int8 [N].
        """
        self._fitness = fitness
        options = asdict(facts.options)
        config = {**options, "model": facts.model, "fingerprint": facts.fingerprint}
        with in_folder(self.path):
            about = {"eggroll": VERSION, "mlx": version("mlx"), "mlx-lm": _version_of("mlx-lm")}
            text = json.dumps({**config, "about": about}, indent=1)
            write_whole(self.path / CONFIG, text.encode() + b"\n")
            self._metrics = self._open.enter_context(Metrics(self.path / METRICS, step))
            log = SignLog(
                self.path / REPLAY, facts.header(), step, facts.options.steps,
                lambda: self._waiting[0][1], CHANGEABLE,
            )  # fmt: skip
            self._signs = self._open.enter_context(log)

    @property
    def lacks(self) -> str:
        """The reason why updates from here on cannot be replayed; empty if they can."""
        return self._signs.lacks if self._signs else ""

    def add(self, row: Row) -> None:
        self._waiting.append((row, self._fitness()))
        super().add(row)

    def _flush(self) -> None:
        super()._flush()
        while self._signs and self._waiting:
            with in_folder(self.path):
                self._signs.append(self._waiting[0][0])
            del self._waiting[0]

    def sync(self) -> None:
        super().sync()
        if self._signs:
            self._signs.sync()


class SavedFineTune(NamedTuple):
    """A checkpoint of a fine-tune, read."""

    path: Path
    facts: Facts
    step: int
    sigma_scale: float
    same: list[float]
    notes: dict[str, Any]
    arrays: checkpoint.Arrays

    def check_model(self, facts: Facts) -> None:
        """Raises InputError if the model is another than the run began with."""
        if (facts.fingerprint, facts.leaves) != (self.facts.fingerprint, self.facts.leaves):
            raise InputError(
                f"the run in {str(self.path.parent)!r} began with another model (fingerprint "
                f"{self.facts.fingerprint[:12]}, this one has {facts.fingerprint[:12]}): give the "
                "model that it began with."
            )

    def restore(self, learner: DeltaLearner) -> None:
        """Puts a new learner where the one that was saved stood.

        Raises:
            InputError: an array is missing, too many, or of another shape or range.
        """
        wanted = checkpoint.tensors(learner.weights, learner.memory)
        shapes = {name: (a.shape, a.dtype) for name, a in wanted.items()}
        if shapes != {name: (a.shape, a.dtype) for name, a in self.arrays.items()}:
            raise checkpoint.damaged(self.path, "its arrays are of other layers")
        weights = {name: mx.array(self.arrays[f"weights/{name}"]) for name in learner.weights}
        memory = {name: mx.array(self.arrays[f"memory/{name}"]) for name in learner.memory}
        if wrong := learner.rule.impossible(weights, memory, learner.weights, self.step):
            raise checkpoint.damaged(self.path, wrong)
        learner.weights, learner.memory, learner.step = weights, memory, self.step


def save(
    to: Path | RunLog | None, facts: Facts, learner: DeltaLearner, adapted: Mapping[str, Any]
) -> None:
    """Replaces a checkpoint, of a path or of a folder, as a whole.

    adapted: plain data that goes on besides what is learnt.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    arrays = checkpoint.tensors(learner.weights, learner.memory)
    metadata = {"facts": json.dumps(facts.header()), "adapted": json.dumps(adapted)}
    store(to, KIND, learner.step, metadata, arrays)


def read(path: Path, changes: Mapping[str, Any] | None = None) -> SavedFineTune:
    """The checkpoint in a file, with options changed.

    Raises:
        InputError: missing, damaged, foreign, or an option must stay.
    """
    with in_folder(path.parent):
        metadata, arrays = checkpoint.read(path, KIND)
        facts = Facts.of(checkpoint.json_of(metadata, "facts", path), path)
        adapted = checkpoint.json_of(metadata, "adapted", path)
        step = checkpoint.step_of(metadata, MOST_STEPS, path)
        scale, same = adapted.get("sigma_scale"), adapted.get("same")
        notes = adapted.get("notes")
        if not (isinstance(scale, float) and isinstance(same, list) and isinstance(notes, dict)):
            raise checkpoint.damaged(path, "its sigma cannot be read")
    if fixed := sorted((changes or {}).keys() - CHANGEABLE):
        raise InputError(
            f"{fixed[0]} belongs to the training in {str(path)!r}: only "
            f"{', '.join(sorted(CHANGEABLE))} may change, or start a new Trainer."
        )
    options = replace(facts.options, **(changes or {}))
    return SavedFineTune(path, replace(facts, options=options), step, scale, same, notes, arrays)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, RunLog | None]]:
    """The checkpoint of a path, and the folder, locked, if it is one; errors close it again.

    Raises:
        InputError: the path is neither file nor folder, or the folder is in use.
    """
    if path.is_dir():
        log = RunLog(path)
        with log.closed_by_errors():
            yield path / CHECKPOINT, log
    elif path.is_file():
        yield path, None
    else:
        raise InputError(
            f"{shown(str(path))} is no file or folder: give the path that save was given, or the "
            "out of a Trainer."
        )


# Replay.


def is_fine_tune(folder: Path) -> bool:
    """True if a run's folder, or its replay log, is a fine-tune's."""
    path = folder / REPLAY if folder.is_dir() else folder
    try:
        with open_regular(path) as file:
            return header_of(file, path).facts.get("kind") == KIND
    except (OSError, InputError):
        return False


def replayed(place: Path, step: int | None = None) -> tuple[Facts, DeltaLearner]:
    """The fine-tune after update `step`, the last if not given, by its replay log alone.

    Raises:
        InputError: the log is missing, damaged, or ends before.
    """
    path = place / REPLAY if place.is_dir() else place
    try:
        file = open_regular(path)
    except OSError as error:
        raise InputError(
            f"replay log {str(path)!r} cannot be read ({error.strerror}): give the folder of a "
            "fine-tune."
        ) from error
    with file:
        header = header_of(file, path)
        facts = Facts.of(header.facts, path)
        expected = facts.header()
        if any(header.facts.get(name) != expected[name] for name in ("pairs", "packing")):
            raise InputError(
                f"{str(path)!r} is damaged (its pairs do not fit its options): restore it from a "
                "copy."
            )
        learner = DeltaLearner(facts.leaves, facts.options)
        planned = facts.options.steps
        for one in islice(records(file, header), step):
            if one.steps != planned:  # the run was resumed with another total
                planned = one.steps
                learner.rule = rule_of(replace(facts.options, steps=planned))
            learner.move(one.signs)
    if step is not None and learner.step < step:
        raise InputError(
            f"{str(path)!r} ends with update {learner.step}: give --step {learner.step} or less."
        )
    return facts, learner


def compare(folder: Path, learner: DeltaLearner) -> str:
    """A sentence on the checkpoint in a folder, which a replay up to its update must equal.

    Raises:
        InputError: it has other deltas.
    """
    try:
        saved = read(folder / CHECKPOINT)
    except InputError as error:
        return f"not compared with a checkpoint: {error}"
    if saved.step != learner.step:
        return f"not compared: the checkpoint is of update {saved.step}"
    names = [leaf.name for leaf in learner.leaves]
    stored = {name: mx.array(saved.arrays[f"weights/{name}"]) for name in names}
    if (found := checkpoint.signature(stored)) != signature(learner):
        raise InputError(
            f"the deltas of update {learner.step} are rebuilt as {signature(learner)[:12]} and the "
            f"checkpoint has {found[:12]}: replay log and checkpoint are not of one run, or one "
            "of them has been changed; restore them from a copy."
        )
    return f"equal to the deltas in the checkpoint of update {learner.step}"


def write_adapter(path: Path, facts: Facts, learner: DeltaLearner) -> None:
    """Writes the adapter of a replayed fine-tune.

    Raises:
        InputError: it changes arrays of a model that is not there, or cannot be written.
    """
    if mode_of(facts.options.learn).name == "adapter":
        adapter.save_low_rank(path, facts.leaves, learner.weights, facts.options.seed)
        return
    if not facts.model:
        raise InputError(
            f"--learn {facts.options.learn} changes arrays of the model, and this run was given "
            "one in memory: use lm.Trainer.load and save_adapter."
        )
    layers = Layers(load_model(facts.model)[0], facts.options)
    if layers.leaves != facts.leaves:
        raise InputError(
            f"the model {facts.model!r} has other layers than this run began with: restore it."
        )
    layers.set_deltas(learner.weights)
    adapter.save_arrays(path, layers.changed())
