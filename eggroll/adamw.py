"""The baseline with gradients: `python -m eggroll.adamw` trains the network's float twin by AdamW.

The same declared network, data, streams, validation, loop and files as eggroll.train; twin.py lists
the differences. Gradients go back through the T tokens of an update. A seed gives the same
bits again on one machine with equal threads, not on another.
Letters: P samples, S streams, T tokens per update, V vocabulary.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

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
from numpy.typing import NDArray

from eggroll.baseline.backprop import FORMAT, AdamwOptions, AdamwTrainer, TwinReader, read_run
from eggroll.baseline.twin import ONE, by_token
from eggroll.baseline.twin_numpy import twin_for
from eggroll.cli import command as cli
from eggroll.cli.screen import per_second
from eggroll.data.corpus import Corpus, Streams
from eggroll.data.expert import probabilities_of
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT, Row
from eggroll.ranks import refuse
from eggroll.spec.program import Leaves
from eggroll.training import checkpoint, trackers
from eggroll.training import loop as training
from eggroll.training.config import from_command_line
from eggroll.training.folder import Folder, check_free, new_folder
from eggroll.training.run import (
    Run,
    check_data,
    check_options,
    counted_expert,
    fingerprint,
    load_run_corpus,
    print_header,
    validation_batches,
    write_config,
    write_tokenizer,
)

EXAMPLES = (
    ("--steps 2000", "train on the source text of Python's standard library"),
    ("--data book.txt --out runs/book-adamw", "train on a text of your own"),
)


Options = AdamwOptions  # its name for programs, as before there were several


@dataclass
class BaselineRun(Run):
    """A run of eggroll.adamw."""

    config: AdamwOptions
    trainer: AdamwTrainer
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
    def engine(self) -> TwinReader:
        return TwinReader(self.trainer.twin)

    def update(self) -> Row:
        start, self.val_loss = time.perf_counter(), None
        batch = self.streams.batch(self.step)
        loss = self.trainer.update(batch)
        seconds = max(time.perf_counter() - start, 0.0)
        if not math.isfinite(loss):
            raise InputError(
                f"the loss of update {self.step} is {loss}: try a --learning-rate below "
                f"{self.config.learning_rate}."
            )
        return {
            "step": self.step,
            "loss": loss,
            "update_rate": self.update_rate(),
            "tokens_per_second": round(per_second(batch.tokens.size, seconds), 1),
            "seconds": round(seconds, 6),
        }

    def save(self) -> None:
        """Replaces the checkpoint by one of the present step."""
        path, facts = self.path(CHECKPOINT), fingerprint(self.corpus)
        checkpoint.write(path, FORMAT, self.step, self.config, facts, self.trainer.arrays())

    def validate(self) -> float:
        """Bits per token on the validation split, read as eggroll.train reads it."""
        state, total, count = None, 0.0, 0
        network: list[NDArray[np.int64]] = []  # in 2^-30, [S, T]
        for i, batch in enumerate(validation_batches(self.corpus, self.config)):
            if state is None:
                state = mx.zeros((len(batch.tokens), self.trainer.twin.program.state_size))
            bits, state = self.trainer.twin.bits(
                self.weights, by_token(batch._replace(state=state))
            )
            scored = np.array(bits)[self.corpus.warmup if i == 0 else 0 :]
            network.append(probabilities_of(scored.T))
            total, count = total + scored.sum(dtype=np.float64), count + scored.size
        if self.expert:
            self.beside = self.expert.beside(np.concatenate(network, axis=1))
        return float(total) / count

    def update_rate(self) -> float:
        """Share of the weights whose rounding to Q4 changed since this was asked last."""
        rounded = {name: mx.round(w * ONE) for name, w in self.weights.items()}
        previous, self.rounded = self.rounded or rounded, rounded
        changed = mx.stack([mx.sum(rounded[k] != previous[k]) for k in rounded]).sum()
        return int(np.array(changed)) / sum(w.size for w in rounded.values())


def open_run(options: AdamwOptions, stack: ExitStack) -> BaselineRun:
    """Checks everything that can be checked, then creates or reopens the run's folder."""
    options = options.at_home()
    options.check()
    trackers.check_installed(options.track)
    trainer, old_options = AdamwTrainer(options, twin_for(options.program(), options.threads)), None
    if options.resume:
        folder = stack.enter_context(Folder(Path(options.resume)))
        path = folder.path / CHECKPOINT
        old_options, step, old_facts, arrays = read_run(path)
        check_options(old_options, step, options)
        trainer.restore(arrays, step, f"checkpoint {str(path)!r}")
    elif options.out:
        check_free(Path(options.out))
    corpus = load_run_corpus(options)
    if old_options:
        check_data(old_facts, fingerprint(corpus), options)
    streams = training_streams(corpus, options)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    if not old_options:
        name = f"adamw-{Path(options.data).stem}"
        folder = stack.enter_context(Folder(new_folder(options.out, name)))
        check_free(folder.path)  # another run may have come first
    run = BaselineRun(options, folder, corpus, streams, trainer)
    run.update_rate()
    run.expert = counted_expert(corpus, options)
    print_header(run, "", old_options.steps if old_options else options.steps)
    write_tokenizer(run)
    run.save()
    write_config(run)
    return run


def training_streams(corpus: Corpus, options: AdamwOptions) -> Streams:
    """The streams that eggroll.train gives a population with as many groups."""
    try:
        return corpus.streams("train", options.streams, options.seq_len, options.seed)
    except InputError as error:
        raise InputError(
            f"--streams {options.streams} of --seq-len {options.seq_len} do not fit the training "
            f"split of --data {options.data!r}: make one of them smaller."
        ) from error


def train_twin(options: AdamwOptions) -> training.RunResult:
    """Trains from the start, or from the checkpoint in `options.resume`, up to `options.steps`.

    Raises:
        InputError: bad input or environment, or a loss that is no number any more.
    """
    with ExitStack() as stack:
        return training.complete(open_run(options, stack), stack)


def options_from(argv: Sequence[str]) -> AdamwOptions:
    """The options of the command line; see options.from_command_line."""
    about = "Trains the float twin of the int8 network by back-propagation and AdamW: the baseline."
    return from_command_line(
        AdamwOptions, argv, command="adamw", about=about, examples=EXAMPLES,
        resumed=lambda folder: read_run(Path(folder) / CHECKPOINT)[0],
    )  # fmt: skip


def train_and_tell(options: AdamwOptions) -> None:
    """Command line of eggroll.adamw."""
    training.tell_result(train_twin(options))


def refuse_ranks() -> None:
    refuse("eggroll.adamw")


main = cli.Command(AdamwOptions, train_and_tell, options_from, refuse_ranks)

if __name__ == "__main__":
    sys.exit(main())
