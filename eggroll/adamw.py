"""The baseline with gradients: `python -m eggroll.adamw` trains the network's float twin by AdamW.

The same declared network, data, streams, validation and files as eggroll.train; what float_twin.py
says is different is different. Gradients go back through the T tokens of an update. A seed gives
the same bits again on one machine with equal threads, not on another.
Letters: P samples, S streams, T tokens per update, V vocabulary.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll import __version__, checkpoint, cli, config, runlog, train
from eggroll.baseline.backprop import Options, Trainer
from eggroll.baseline.float_numpy import twin_for
from eggroll.baseline.float_twin import ONE, Leaves, by_token
from eggroll.baseline.reader import FORMAT, Reader
from eggroll.data.streams import Batch, Corpus, Streams, load_corpus
from eggroll.errors import InputError
from eggroll.run import check_data, check_options, fingerprint, unit, validation_batches

COMMAND = "python -m eggroll.adamw"


@dataclass
class Run:
    """A run under way, in the words of eggroll.run, so that eggroll.train can end it, too."""

    config: Options
    folder: runlog.Folder
    corpus: Corpus
    streams: Streams
    trainer: Trainer
    val_loss: float | None = None
    rounded: Leaves = field(default_factory=dict)

    @property
    def step(self) -> int:
        return self.trainer.step

    @property
    def weights(self) -> Leaves:
        return self.trainer.weights

    @property
    def engine(self) -> Reader:
        return Reader(self.trainer.twin)

    def path(self, name: str) -> Path:
        return self.folder.path / name

    def save(self) -> None:
        """Replaces the checkpoint by one of the present step."""
        facts = (config.to_dict(self.config), fingerprint(self.corpus))
        path = self.path(runlog.CHECKPOINT)
        checkpoint.write(path, FORMAT, self.step, *facts, self.trainer.arrays())

    def due(self, every: int) -> bool:
        """Whether something done `every` so many updates is due; it always is at the end."""
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

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


def open_run(options: Options, stack: ExitStack) -> Run:
    """Checks everything that can be checked, then creates or reopens the run's folder."""
    options = replace(options, data=config.absolute(options.data))
    options.check()
    trainer, before = Trainer(options, twin_for(options.program(), options.threads)), None
    if options.resume:
        folder = stack.enter_context(runlog.Folder(Path(options.resume)))
        before, arrays = checkpoint.read(folder.path / runlog.CHECKPOINT, FORMAT)
        done, source = int(before["step"]), f"checkpoint {str(folder.path / runlog.CHECKPOINT)!r}"
        old = config.options_of(Options, json.loads(before["config"]), source)
        check_options(old, done, options)
        trainer.restore(arrays, done, source)
    elif options.out:
        runlog.check_free(Path(options.out))
    corpus = load_corpus(options.data, vocabulary=options.vocabulary, steps=options.count_steps)
    if before:
        check_data(json.loads(before["corpus"]), fingerprint(corpus), options)
    streams = training_streams(corpus, options)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    if not before:
        name = f"adamw-{Path(options.data).stem}"
        folder = stack.enter_context(runlog.Folder(runlog.new_folder(options.out, name)))
        runlog.check_free(folder.path)  # another run may have come first
    run = Run(options, folder, corpus, streams, trainer)
    run.moved()
    introduce(run, old.steps if before else options.steps)
    run.save()
    runlog.write_whole(run.path(runlog.CONFIG), facts(run))
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


def way_on(run: Run) -> str:
    return f"go on with: {COMMAND} --resume {shlex.quote(str(run.folder.path))}"


def introduce(run: Run, steps_before: int) -> None:
    """Tells on stdout what runs where."""
    options, twin = run.config, run.trainer.twin
    parameters = sum(w.size for w in run.weights.values())
    print(f"engine: {twin.description}")
    print(
        f"network: {options.layers} x {options.width}, {parameters:,} parameters; data: "
        f"{options.streams:,} streams x {options.seq_len} tokens of {options.data}, "
        f"{run.streams.tokens_per_epoch:,} in all"
    )
    print(f"run: {run.folder.path}, updates {run.step} to {options.steps}")
    if options.resume and run.step == options.steps:
        print(f"All {run.step} updates are done; a larger --steps goes on.")
    elif steps_before != options.steps:
        print(
            f"From here the learning rate falls over {options.steps} updates instead of "
            f"{steps_before}, which is not the run of {options.steps} updates from the start."
        )
    sys.stdout.flush()


def facts(run: Run) -> bytes:
    """config.json: the options, and under `about` what else explains the results."""
    about = {
        "eggroll": __version__,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "engine": run.trainer.twin.description,
        "parameters": sum(w.size for w in run.weights.values()),
        "corpus": run.corpus.about,
        "baselines": run.corpus.baselines(),
    }
    values = config.to_dict(run.config) | {"about": about}
    return json.dumps(values, indent=1).encode() + b"\n"


def train_twin(options: Options) -> train.Result:
    """Trains from the start, or from the checkpoint in `options.resume`, up to `options.steps`.

    Raises:
        InputError: bad input or environment, or a loss that is no number any more.
    """
    with ExitStack() as stack:
        run = open_run(options, stack)
        metrics = stack.enter_context(runlog.Metrics(run.path(runlog.METRICS), run.step))
        display = stack.enter_context(runlog.Display(run.step, run.config.steps, unit(run.config)))
        stop = stack.enter_context(cli.Stop(way_on(run)))
        for step in range(run.step, run.config.steps):
            began = time.perf_counter()
            batch = run.streams.batch(step)
            loss = run.trainer.update(*batch)
            row = measured(run, loss, batch, time.perf_counter() - began)
            metrics.append(row)
            display.update(row)
            asked = stop.asked  # once, as a signal may come between two looks
            if asked or run.due(run.config.checkpoint_every):
                metrics.sync()
                run.save()
            if asked:
                break
        left = ""
        if run.step < run.config.steps:
            left = f"Interrupted after update {run.step} of {run.config.steps}; {way_on(run)}"
        else:
            display.close()
            ending: Any = run  # has what train.finish asks of its own runs
            train.finish(ending)
        mark = checkpoint.signature(run.weights)
        return train.Result(run.folder.path, run.step, mark, run.val_loss, left)


def measured(run: Run, loss: float, batch: Batch, seconds: float) -> runlog.Row:
    """One line of metrics.jsonl, with the keys of eggroll.train's; seconds: of the whole step."""
    if not math.isfinite(loss):
        raise InputError(
            f"the loss of update {run.step} is {loss}: try a --learning-rate below "
            f"{run.config.learning_rate}."
        )
    row: runlog.Row = {
        "step": run.step,
        "loss": loss,
        "update_rate": run.moved(),
        "tokens_per_second": round(batch[0].size / seconds, 1),
        "seconds": round(seconds, 6),
    }
    run.val_loss = run.validate() if run.due(run.config.validate_every) else None
    if run.val_loss is not None:
        row |= runlog.validated(run.val_loss, run.config.data)
    return row


def options_from(argv: Sequence[str]) -> Options:
    """The command line over --config FILE, or over the options of the run in --resume DIR.

    Raises:
        InputError: an option, the file or the checkpoint is no good.
    """
    about = "Trains the float twin of the int8 network by back-propagation and AdamW: the baseline."

    def parse(base: Options | None) -> Options:
        return cli.parse(Options, argv, command="adamw", about=about, base=base)

    given = parse(None)
    if given.config and given.resume:
        raise InputError(
            f"--config {given.config!r} and --resume {given.resume!r} are both given: a resumed "
            "run keeps its own options, so leave one of them out."
        )
    if given.config:
        return parse(config.options_in(Options, given.config))
    if given.resume:
        path = Path(given.resume) / runlog.CHECKPOINT
        metadata, _ = checkpoint.read(path, FORMAT)
        source = f"checkpoint {str(path)!r}"
        return parse(config.options_of(Options, json.loads(metadata["config"]), source))
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.adamw; returns its exit code."""

    def work() -> int:
        result = train_twin(options_from(sys.argv[1:] if argv is None else argv))
        if result.way_on:
            raise KeyboardInterrupt(result.way_on)
        print(f"signature: {result.signature}")
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
