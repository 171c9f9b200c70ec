"""The files of a Trainer: a checkpoint, or a folder as a run of the command line has it.

Letters: P members.
"""

from __future__ import annotations

import json
import math
import os
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from eggroll.cli import command as cli
from eggroll.errors import InputError, in_python, whole_number
from eggroll.evolution.estimators import SCALES, Estimator
from eggroll.evolution.population import Population
from eggroll.evolution.rules import UpdateRule
from eggroll.evolution.step import Learner
from eggroll.files import CHECKPOINT, CONFIG, METRICS, Row, write_whole
from eggroll.spec.backward import MOST
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.program import Program, ProgramError, program_of
from eggroll.training import checkpoint, trackers
from eggroll.training.folder import Folder, Metrics, check_free, new_folder
from eggroll.training.run import config_file

MOST_STEPS = 10**10 - 1  # a Trainer makes as many updates as it is told to
CHANGEABLE = ("block_tokens", "checkpoint_every", "chunk", "engine", "guard", "threads", "track")


class TrainerLog:
    """A folder, locked until it is closed.

    saved: the update of the checkpoint in it, -1 if this process has written none.
    """

    def __init__(self, path: Path) -> None:
        """Locks a folder that is there."""
        self.path, self.saved, self.closed = path, -1, False
        self._process = os.getpid()
        self._rows: list[Row] = []  # not yet on the disk
        self._metrics: Metrics | None = None
        self._tracking: trackers.Tracking | None = None
        self._open = ExitStack()
        with in_folder(path):
            self._open.enter_context(Folder(path))
        # Who forgets to close it keeps no lock.
        weakref.finalize(self, _close, self._open, self._process)

    @classmethod
    def new(cls, path: Path) -> Self:
        """Makes the folder of a new run.

        Raises:
            InputError: it cannot be made, or holds a run.
        """
        with in_folder(path):
            check_free(path)
            log = cls(new_folder(str(path), ""))
            with log.closed_by_errors():
                check_free(path)  # another run may have come first
        return log

    @property
    def hint(self) -> str:
        return f"go on with Trainer.load({str(self.path)!r})"

    def begin(self, program: Program, options: Mapping[str, Any], population: Population) -> None:
        """Writes config.json and cuts the metrics back to the update of the checkpoint."""
        network = {
            "network": program.digest(),
            "declaration": json.dumps(program.declaration()),
            "score_bits": program.score_bits,
        }
        facts = {"chunk": population.chunk}
        config = config_file({**options, **network}, population.engine, facts)
        with in_folder(self.path):
            write_whole(self.path / CONFIG, config)
            metrics = Metrics(self.path / METRICS, self.saved)
            self._metrics = self._open.enter_context(metrics)
            tracking = trackers.tracking(options["track"], self.path, max(self.saved, 0))
            self._tracking = self._open.enter_context(tracking)

    def add(self, row: Row) -> None:
        """Adds the line of an update; one that cannot be written is written before the next."""
        rounded = row | {key: round(row[key], 9) for key in ("rows_per_second", "seconds")}
        self._rows.append(rounded)
        if self._tracking:
            self._tracking.log(rounded)
        self._flush()

    def _flush(self) -> None:
        while self._metrics and self._rows:
            with in_folder(self.path):
                self._metrics.append(self._rows[0])
            del self._rows[0]

    def sync(self) -> None:
        """Sees all lines on the disk, so that a checkpoint never knows more than they do.

        Raises:
            InputError: they cannot be written, or the folder is closed.
        """
        self.check_open()
        self._flush()
        if self._metrics:
            self._metrics.sync()

    def check_open(self) -> None:
        """Raises InputError after `close`, and in a fork of the process that writes into it."""
        if self.closed:
            raise InputError(f"The folder {str(self.path)!r} is closed: {self.hint}.")
        if self._process != os.getpid():
            raise InputError(
                f"The folder {str(self.path)!r} is written by process {self._process}, of which "
                f"process {os.getpid()} is a fork: go on there, or here with a copy of the "
                "Trainer, which has no folder (copy.deepcopy)."
            )

    def heed_signals(self) -> None:
        """Makes SIGTERM and a lost terminal interrupt as Ctrl-C does, until the folder is closed.

        Where the caller handles or ignores them, that stays.
        """
        numbers = (signal.SIGTERM, signal.SIGHUP)
        plain = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
        self._open.enter_context(cli.handling(_interrupt, *plain))

    def finish(self, step: int, save: Callable[[], None]) -> None:
        """Saves an update that the checkpoint lacks, and gives the folder free."""
        if self.closed or self._process != os.getpid():
            return
        with cli.uninterrupted():
            try:
                if self.saved < step:
                    save()
            finally:
                self.close()

    def note_interrupt(self, error: BaseException | None, step: int) -> None:
        """Adds to Ctrl-C what is saved, and how it goes on."""
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"Update {step} is saved; {self.hint}.")

    def close(self) -> None:
        """Gives the folder free; may be called again."""
        self.closed = True
        _close(self._open, self._process)

    @contextmanager
    def closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def _close(what: ExitStack, process: int) -> None:
    """Closes what a process has opened, if it is this one and not a fork of it."""
    if os.getpid() == process:
        what.close()


class Extras(NamedTuple):
    """The parts of a checkpoint beside the learner.

    kept: arrays of the caller's objects, by the object's name and their own; best: fitness, updates
    before, member and weights of the best member seen.
    """

    kept: dict[str, checkpoint.Arrays] = {}  # noqa: RUF012  # nobody changes it
    best: tuple[float, int, int, checkpoint.Arrays] | None = None

    def write(self, facts: dict[str, str], arrays: checkpoint.Arrays) -> None:
        """Adds itself to what a file will have."""
        for name, of in self.kept.items():
            arrays.update({f"kept/{name}/{key}": array for key, array in of.items()})
        if self.best:
            fitness, step, member, weights = self.best
            facts["best"] = json.dumps({"fitness": fitness.hex(), "step": step, "member": member})
            arrays.update({f"best/{name}": leaf for name, leaf in weights.items()})

    @classmethod
    def take(
        cls, metadata: Mapping[str, str], arrays: checkpoint.Arrays, program: Program, path: Path
    ) -> Self:
        """Takes itself out of what a file had.

        Raises:
            InputError: the best member's weights are none of the network.
        """
        kept, weights = dict[str, checkpoint.Arrays](), checkpoint.Arrays()
        for name in [name for name in arrays if name.startswith(("kept/", "best/"))]:
            group, _, rest = name.partition("/")
            if group == "best":
                weights[rest] = arrays.pop(name)
            else:
                owner, _, key = rest.partition("/")
                kept.setdefault(owner, {})[key] = arrays.pop(name)
        if "best" not in metadata and not weights:
            return cls(kept)
        facts = checkpoint.json_of(metadata, "best", path)
        shapes = {leaf.name: leaf.shape for leaf in program.leaves}
        fits = {name: leaf.shape for name, leaf in weights.items()} == shapes and all(
            leaf.dtype == np.int8 and leaf.min(initial=0) >= -LIMIT for leaf in weights.values()
        )
        try:
            fitness = float.fromhex(facts["fitness"])
            numbers = [whole_number(name, facts[name], 0) for name in ("step", "member")]
        except (InputError, KeyError, OverflowError, TypeError, ValueError):
            fits, fitness, numbers = False, 0.0, [0, 0]
        if not fits or not math.isfinite(fitness):
            raise checkpoint.damaged(path, "its best member is none of its network")
        ordered = {name: weights[name] for name in shapes}
        return cls(kept, (fitness, numbers[0], numbers[1], ordered))


class Saved(NamedTuple):
    """A checkpoint, read and of the right network.

    options: those of the Trainer from now on; before: those that it had; value_scale: see
    estimators.Rollout; warm: whether it began with weights of a caller, not its seed's.
    """

    path: Path
    program: Program
    options: dict[str, Any]
    step: int
    value_scale: float
    arrays: checkpoint.Arrays
    before: dict[str, Any]
    warm: bool
    extras: Extras

    def restore(
        self, learner: Learner, rule: type[UpdateRule], estimator: type[Estimator], members: int
    ) -> None:
        """Puts a new learner where the one that was saved stood.

        rule, estimator, members: those that it had. What the new ones keep beyond them begins anew.

        Raises:
            InputError: an array is missing, too many, or of another shape or range.
        """
        memory_shapes = rule.memory(self.program) | estimator.memory(self.program)
        with in_folder(self.path.parent):
            weights, memory, state = checkpoint.fitting(
                self.program, memory_shapes, members, self.arrays, self.path
            )
            start = weights if self.warm else learner.weights
            if wrong := rule.impossible(weights, memory, start, self.step):
                raise checkpoint.damaged(self.path, wrong)
            scales = np.asarray(memory.get(SCALES, 0))
            if scales.min() < 0 or scales.max() > MOST:
                raise checkpoint.damaged(self.path, f"a scale of credit is beyond 0 to {MOST}")
        learner.begin_with(weights)
        learner.memory |= {
            name: kept
            for name, kept in memory.items()
            if name in learner.memory and learner.memory[name].shape == kept.shape
        }
        if members == learner.population.members:
            learner.state = state
        learner.step = self.step


def store(
    to: Path | TrainerLog | None,
    kind: str,
    step: int,
    metadata: dict[str, str],
    arrays: checkpoint.Arrays,
) -> None:
    """Replaces a checkpoint, of a path or of a folder, whose lines are on the disk before.

    Raises:
        InputError: there is neither, or it cannot be written; what was there before is intact.
    """
    if to is None:
        raise InputError(
            "save was given no path, and the Trainer no folder: give save a path, or Trainer out."
        )
    path = to if isinstance(to, Path) else to.path / CHECKPOINT
    if isinstance(to, TrainerLog):
        to.sync()
    with in_folder(path.parent):
        checkpoint.store(path, kind, step, metadata, arrays)
    if isinstance(to, TrainerLog):
        to.saved = step


def save(
    to: Path | TrainerLog | None,
    program: Program,
    options: Mapping[str, Any],
    learner: Learner,
    value_scale: float,
    *,
    warm: bool = False,
    extras: Extras = Extras(),  # noqa: B008  # nobody changes it
) -> None:
    """Replaces a checkpoint, of a path or of a folder, as a whole.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    arrays = {"state": np.array(learner.state)}
    for group, leaves in (("weights", learner.weights), ("memory", learner.memory)):
        arrays |= {f"{group}/{name}": np.array(leaf) for name, leaf in leaves.items()}
    facts = {
        "config": json.dumps(options),
        "declaration": json.dumps(program.declaration()),
        "score_bits": str(program.score_bits),
        "unit": value_scale.hex(),
        "network": program.digest(),
    } | ({"warm": "1"} if warm else {})
    extras.write(facts, arrays)
    store(to, checkpoint.LIBRARY, learner.step, facts, arrays)


def read(path: Path, net: Program | None, changes: Mapping[str, Any]) -> Saved:
    """The checkpoint in a file, with options changed.

    net: the network that it must be of, if it is to be checked.

    Raises:
        InputError: missing, damaged, foreign, of another network, or an option must stay.
    """
    with in_folder(path.parent):
        metadata, arrays = checkpoint.read(path, checkpoint.LIBRARY)
    if "seed" in changes:
        raise InputError(
            f"seed belongs to the training in {str(path)!r}: other options may change, or start a "
            "new Trainer with weights=."
        )
    with in_folder(path.parent):
        program, options, step, unit = _facts(metadata, path)
    if net is not None and net.digest() != program.digest():
        raise InputError(
            f"checkpoint {str(path)!r} is of another network (declaration "
            f"{program.digest()[:12]}) than was given ({net.digest()[:12]}): declare the network "
            "that it was saved with, or leave net out."
        )
    # A warm start or another phase has other weights than those of its seed and its rule.
    warm = bool(metadata.get("warm")) or bool(changes.keys() - {*CHANGEABLE})
    after = {**options, **changes}
    with in_folder(path.parent):
        extras = Extras.take(metadata, arrays, program, path)
    return Saved(path, program, after, step, unit, arrays, options, warm, extras)


def _facts(metadata: Mapping[str, str], path: Path) -> tuple[Program, dict[str, Any], int, float]:
    """Program, options, updates made and unit; an InputError where they cannot be."""
    score_bits = checkpoint.number_of(metadata, "score_bits", 8, path)
    try:
        program = program_of(checkpoint.json_of(metadata, "declaration", path), score_bits)
    except ProgramError as error:
        raise checkpoint.damaged(path, "its declaration is of no program") from error
    if metadata.get("network") != program.digest():
        raise checkpoint.damaged(path, "its declaration is not of its network")
    text = metadata.get("unit", "")
    try:
        unit = float.fromhex(text) if len(text) < 40 else math.inf
    except (ValueError, OverflowError):
        unit = math.inf
    if not 0 <= unit < math.inf:
        raise checkpoint.damaged(path, f"its unit is {text[:20]!r}")
    step = checkpoint.step_of(metadata, MOST_STEPS, path)
    return program, checkpoint.json_of(metadata, "config", path), step, unit


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, TrainerLog | None]]:
    """The checkpoint of a path, and the folder, locked, if it is one; errors close it again.

    Raises:
        InputError: the path is neither file nor folder, or the folder is in use.
    """
    if os.path.isdir(path):
        log = TrainerLog(path)
        with log.closed_by_errors():
            yield path / CHECKPOINT, log
    elif os.path.isfile(path):
        yield path, None
    else:
        raise InputError(
            f"{str(path)!r} is no file or folder: give the path that save was given, or the out of "
            "a Trainer."
        )


@contextmanager
def in_folder(path: Path) -> Iterator[None]:
    """Makes what a command line would say of a run's folder into what Python says."""
    with in_python():
        try:
            yield
        except InputError as error:
            there = f"Trainer.load({str(path)!r})"
            raise InputError(str(error).replace(f"--resume {path}", there)) from None


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
