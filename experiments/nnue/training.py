"""All ways of training in one run: turn by turn, each on its own clock, on the same batches.

A clock has the process's CPU seconds of a way's updates alone: neither reading positions nor
validating counts, for none of them. A way gets the same budget of seconds; what it does with them
is a curve of looks.
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from eggroll.errors import InputError
from eggroll.files import write_whole
from experiments.nnue import integers, peers
from experiments.nnue.loader import FEATURES, Batch
from experiments.nnue.losses import Loss, Real, lost_by_logit, targets
from experiments.nnue.native import NativeTrainer
from experiments.nnue.positions import Positions
from experiments.nnue.shape import Shape

PIECE = 8192  # positions that are validated at a time
PACED = 15  # updates by which the pace of a way is found; the first third warms up
REMOVED = 0.1  # the share of a budget with the factoriser, of ways that remove it then
FIELDS = ("way", "features", "seed", "seconds", "positions", "squares", "entropy")


class Settings(NamedTuple):
    """A run. seconds: of every way; looks: validations, evenly spaced in its seconds."""

    features: str = "768"
    width: int = 32
    hidden: int = 16
    seconds: float = 30.0
    looks: int = 15
    seed: int = 0
    threads: int = 1
    loss: Loss = Loss()

    @property
    def shape(self) -> Shape:
        return Shape(FEATURES[self.features], self.width, self.hidden)


class Look(NamedTuple):
    """A validation: mean squared error and cross entropy (its minimum is 0) in WDL space."""

    way: str
    features: str
    seed: int
    seconds: float
    positions: int
    squares: float
    entropy: float


class Trainer(Protocol):
    """What a way of training does."""

    def logits(self, batch: Batch) -> Any: ...


class Way(NamedTuple):
    """A way of training. make: settings, planned updates -> a trainer and its update.

    rate: of learning at the peak; planned: whether it must know the number of its updates before;
    removes: the share of the budget after which the factoriser is removed, 0 for never; most: of a
    batch's positions that an update takes, 0 for all.
    """

    make: Callable[[Settings, float, int], tuple[Any, Callable[[Batch, float], object]]]
    rate: float
    planned: bool = False
    removes: float = 0.0
    most: int = 0


def _native(coalesce: bool) -> Any:
    def make(s: Settings, rate: float, steps: int) -> tuple[Any, Any]:
        trainer = NativeTrainer(s.shape, s.loss, s.seed, coalesce=coalesce)
        return trainer, trainer.step

    return make


def _torch(way: str) -> Any:
    def make(s: Settings, rate: float, steps: int) -> tuple[Any, Any]:
        trainer = peers.TorchTrainer(s.shape, s.loss, s.seed, way=way, threads=s.threads)
        return trainer, trainer.step

    return make


def _integers(kind: Any, **options: Any) -> Any:
    def make(s: Settings, rate: float, steps: int) -> tuple[Any, Any]:
        trainer = kind(
            s.shape, s.features, s.loss, s.seed, steps=steps, learning_rate=rate,
            threads=s.threads, **options,
        )  # fmt: skip
        return trainer, trainer.train

    return make


WAYS: dict[str, Way] = {
    "torch-coo": Way(_torch("coo"), 0.003),
    "torch-bag": Way(_torch("bag"), 0.003),
    "native": Way(_native(False), 0.003),
    "native-coalesced": Way(_native(True), 0.003),
    "native-removed": Way(_native(False), 0.003, removes=REMOVED),
    "feedback": Way(_integers(integers.Feedback), 1.0, planned=True),
    "feedback-removed": Way(_integers(integers.Feedback), 1.0, planned=True, removes=REMOVED),
    "token-credit": Way(_integers(integers.Evolution), 4.0, planned=True),
    "eggroll": Way(
        _integers(
            integers.Evolution, estimator="eggroll", rule="sign", pop=512, sigma_shift=1, shift=1
        ),
        1.0, planned=True, most=256,
    ),
}  # fmt: skip


def fall(progress: float) -> float:
    """The share of its peak that a rate has: up over the first 2 %, then down as a cosine."""
    return min(1.0, (progress + 0.001) / 0.02) * 0.5 * (1 + math.cos(math.pi * min(progress, 1)))


def chosen(way: str) -> tuple[Way, float]:
    """A way and its peak rate, by its name or name@rate.

    Raises:
        InputError: it is unknown, or the rate is none.
    """
    name, _, given = way.partition("@")
    try:
        kind = WAYS[name]
        rate = float(given) if given else kind.rate
    except (KeyError, ValueError):
        raise InputError(
            f"--ways has {way!r}: choose from {', '.join(WAYS)}, with @RATE for another peak of "
            "the learning rate."
        ) from None
    if not 0 < rate < 1000:
        raise InputError(f"--ways has {way!r}: a rate is above 0 and below 1000.")
    return kind, rate


class Run:
    """One way's training: `advance` lets it go on for some seconds of its own clock."""

    def __init__(self, way: str, settings: Settings, train: Positions, valid: Positions) -> None:
        """A trainer before its first update.

        Raises:
            InputError: the way is unknown, or something it needs is missing.
        """
        kind, self.rate = chosen(way)
        self.way, self.settings, self._train = way, settings, train
        self._most = min(kind.most or train.batch, train.batch)
        self._valid = valid.parts(PIECE)
        self.steps = self._planned(kind) if kind.planned else 0
        self.trainer, self._update = kind.make(settings, self.rate, self.steps)
        self._removes = kind.removes or math.inf
        self.updates, self.seconds = 0, 0.0
        self.looks = [self.look()]

    def _planned(self, kind: Way) -> int:
        """Updates that fit the budget, by the pace of a trainer that is thrown away."""
        _, update = kind.make(self.settings, self.rate, 1 << 20)
        took = []
        for i in range(PACED):
            batch = self._train.deal(i, self._most)
            began = time.process_time()
            update(batch, self.rate)
            took.append(time.process_time() - began)
        return max(int(self.settings.seconds / statistics.median(took[PACED // 3 :])), 1)

    @property
    def progress(self) -> float:
        """The share of its budget that is used: of its updates, if they were planned."""
        if self.steps:
            return self.updates / self.steps
        return self.seconds / self.settings.seconds

    @property
    def over(self) -> bool:
        return self.progress >= 1

    def advance(self, share: float) -> None:
        """Trains until that share of the budget is used, and looks."""
        while self.progress < share:
            batch = self._train.deal(self.updates, self._most)
            began = time.process_time()
            if self.progress >= self._removes:
                self.trainer.remove_factoriser()
                self._removes = math.inf
            self._update(batch, self.rate * fall(self.progress))
            self.seconds += time.process_time() - began
            self.updates += 1
        self.looks.append(self.look())

    def look(self) -> Look:
        """The validation of the network as it is."""
        squares, entropy = validation(self.trainer, self._valid, self.settings.loss)
        positions = self.updates * self._most
        s = self.settings
        return Look(self.way, s.features, s.seed, self.seconds, positions, squares, entropy)


def validation(trainer: Trainer, parts: Sequence[Batch], loss: Loss) -> tuple[float, float]:
    """Mean squared error and cross entropy in WDL space, whatever a network was trained by."""
    n = sum(len(batch.stm) for batch in parts)
    sums = np.zeros(2)
    for batch in parts:
        y = np.asarray(trainer.logits(batch), np.float64)
        for i, entropic in enumerate((False, True)):
            judged = Loss(entropic, scale=loss.scale, weight=loss.weight)
            sums[i] += lost_by_logit(judged, y, batch.score, batch.result)[0].sum()
    return float(sums[0] / n), float(sums[1] / n)


def constant(parts: Sequence[Batch], loss: Loss) -> float:
    """The squared error of the best network that says the same of all positions: the variance."""
    t: Real = np.concatenate([targets(loss, b.score, b.result) for b in parts])
    return float(t.var())


def run(
    ways: Sequence[str], settings: Settings, train: Positions, valid: Positions,
    say: Callable[[str], None] = print,
) -> dict[str, Run]:  # fmt: skip
    """All ways, turn by turn, a look at the end of each turn."""
    runs = {way: Run(way, settings, train, valid) for way in ways}
    for turn in range(1, settings.looks + 1):
        for each in runs.values():
            each.advance(turn / settings.looks)
            last = each.looks[-1]
            say(
                f"{settings.features} seed {settings.seed} {each.way}: {last.seconds:.1f} s, "
                f"{last.positions:,} positions, squared error {last.squares:.5f}"
            )
    return runs


def write_looks(path: Path, looks: Sequence[Look]) -> None:
    """Looks as a CSV file."""
    rows = [FIELDS, *([f"{v:.7g}" if isinstance(v, float) else v for v in x] for x in looks)]
    write_whole(path, "".join(",".join(map(str, row)) + "\n" for row in rows).encode())


def read_looks(path: Path) -> list[Look]:
    """Looks of a CSV file.

    Raises:
        InputError: there is none, or it is damaged.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        if not rows or tuple(rows[0]) != FIELDS:
            raise ValueError("its first line is another")
        looks = [
            Look(way, features, int(seed), float(seconds), int(positions), float(a), float(b))
            for way, features, seed, seconds, positions, a, b in rows[1:]
        ]
        if not any(look.seconds > 0 for look in looks):
            raise ValueError("it has no look after the first update")
        if not all(math.isfinite(v) for look in looks for v in look if isinstance(v, float)):
            raise ValueError("a figure is not finite")
        return looks
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror}): give the folder of `run --out`."
        ) from None
    except ValueError as error:
        raise InputError(f"{str(path)!r} is no file of looks ({error}): run again.") from None
