"""The baseline with gradients: `python -m eggroll.adamw` trains the network's float twin by AdamW.

The same declared network, data, streams, validation, loop and files as eggroll.train; float_twin.py
lists the differences. Gradients go back through the T tokens of an update. A seed gives the same
bits again on one machine with equal threads, not on another.
Letters: P samples, S streams, T tokens per update, V vocabulary.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll import entry

    raise SystemExit(entry.run("eggroll.adamw"))

import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import mlx.core as mx
import numpy as np

from eggroll import checkpoint, runlog, trackers, training
from eggroll.anyrun import (
    Run,
    corpus_of,
    fingerprint,
    print_header,
    validation_batches,
    write_facts,
)
from eggroll.baseline import reader
from eggroll.baseline.backprop import Options, Trainer
from eggroll.baseline.float_numpy import twin_for
from eggroll.baseline.float_twin import ONE, Leaves, by_token
from eggroll.baseline.reader import FORMAT, Reader
from eggroll.data.corpus import Corpus, Streams
from eggroll.errors import InputError
from eggroll.options import from_command_line
from eggroll.ranks import refuse
from eggroll.run import check_data, check_options

EXAMPLES = (
    ("--steps 2000", "train on the source text of Python's standard library"),
    ("--data book.txt --out runs/book-adamw", "train on a text of your own"),
)


@dataclass
class BaselineRun(Run):
    """A run of eggroll.adamw."""

    config: Options
    trainer: Trainer
    rounded: Leaves = field(default_factory=dict)

    command: ClassVar[str] = "adamw"
    legend: ClassVar[str] = "loss: on the training tokens before each update; both are exact"

    @property
    def step(self) -> int:
        return self.trainer.step

    @property
    def weights(self) -> Leaves:
        return self.trainer.weights

    @property
    def engine(self) -> Reader:
        return Reader(self.trainer.twin)

    def update(self) -> runlog.Row:
        began, self.val_loss = time.perf_counter(), None
        tokens, targets = self.streams.batch(self.step)
        loss = self.trainer.update(tokens, targets)
        seconds = max(time.perf_counter() - began, 0.0)
        if not math.isfinite(loss):
            raise InputError(
                f"the loss of update {self.step} is {loss}: try a --learning-rate below "
                f"{self.config.learning_rate}."
            )
        return {
            "step": self.step,
            "loss": loss,
            "update_rate": self.moved(),
            "tokens_per_second": round(runlog.per_second(tokens.size, seconds), 1),
            "seconds": round(seconds, 6),
        }

    def save(self) -> None:
        """Replaces the checkpoint by one of the present step."""
        path, facts = self.path(runlog.CHECKPOINT), fingerprint(self.corpus)
        checkpoint.write(path, FORMAT, self.step, self.config, facts, self.trainer.arrays())

    def validate(self) -> float:
        """Bits per token on the validation split, read as eggroll.train reads it."""
        state, total, count = None, 0.0, 0
        for i, (tokens, targets) in enumerate(validation_batches(self.corpus, self.config)):
            if state is None:
                state = mx.zeros((len(tokens), self.trainer.twin.program.state_size))
            batch = by_token(tokens), by_token(targets)
            bits, state = self.trainer.twin.bits(self.weights, *batch, state)
            scored = np.array(bits)[self.corpus.warmup if i == 0 else 0 :]
            total, count = total + scored.sum(dtype=np.float64), count + scored.size
        return float(total) / count

    def moved(self) -> float:
        """Share of the weights whose rounding to Q4 changed since this was asked last."""
        now = {name: mx.round(w * ONE) for name, w in self.weights.items()}
        before, self.rounded = self.rounded or now, now
        changed = mx.stack([mx.sum(now[k] != before[k]) for k in now]).sum()
        return int(np.array(changed)) / sum(w.size for w in now.values())


def open_run(options: Options, stack: ExitStack) -> BaselineRun:
    """Checks everything that can be checked, then creates or reopens the run's folder."""
    options = options.at_home()
    options.check()
    trackers.check_installed(options.track)
    trainer, before = Trainer(options, twin_for(options.program(), options.threads)), None
    if options.resume:
        folder = stack.enter_context(runlog.Folder(Path(options.resume)))
        path = folder.path / runlog.CHECKPOINT
        before, done, facts, arrays = reader.read(path)
        check_options(before, done, options)
        trainer.restore(arrays, done, f"checkpoint {str(path)!r}")
    elif options.out:
        runlog.check_free(Path(options.out))
    corpus = corpus_of(options)
    if before:
        check_data(facts, fingerprint(corpus), options)
    streams = training_streams(corpus, options)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    if not before:
        name = f"adamw-{Path(options.data).stem}"
        folder = stack.enter_context(runlog.Folder(runlog.new_folder(options.out, name)))
        runlog.check_free(folder.path)  # another run may have come first
    run = BaselineRun(options, folder, corpus, streams, trainer)
    run.moved()
    print_header(run, "", before.steps if before else options.steps)
    run.save()
    write_facts(run)
    return run


def training_streams(corpus: Corpus, options: Options) -> Streams:
    """The streams that eggroll.train gives a population with as many groups."""
    try:
        return corpus.streams("train", options.streams, options.seq_len, options.seed)
    except InputError as error:
        raise InputError(
            f"--streams {options.streams} of --seq-len {options.seq_len} do not fit the training "
            f"split of --data {options.data!r}: make one of them smaller."
        ) from error


def train_twin(options: Options) -> training.Result:
    """Trains from the start, or from the checkpoint in `options.resume`, up to `options.steps`.

    Raises:
        InputError: bad input or environment, or a loss that is no number any more.
    """
    with ExitStack() as stack:
        return training.complete(open_run(options, stack), stack)


def options_from(argv: Sequence[str]) -> Options:
    """The options of the command line; see options.from_command_line."""
    about = "Trains the float twin of the int8 network by back-propagation and AdamW: the baseline."
    return from_command_line(
        Options, argv, command="adamw", about=about, examples=EXAMPLES,
        resumed=lambda folder: reader.read(Path(folder) / runlog.CHECKPOINT)[0],
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.adamw; returns its exit code."""
    words = sys.argv[1:] if argv is None else argv

    def trained(words: Sequence[str]) -> training.Result:
        refuse("eggroll.adamw")
        return train_twin(options_from(words))

    return training.command(words, trained)
