"""A run: from options to network, data, engine and learner, new or from a checkpoint.

Letters: P members, N = P/2 pairs, S streams, T tokens of a stream per update.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from eggroll import __version__, checkpoint, engines, runlog
from eggroll.checkpoint import Checkpoint
from eggroll.config import Common, Config
from eggroll.data.streams import TOKENS, Batch, Corpus, Streams, load_corpus
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.estimator import Estimator
from eggroll.fixed_point import Q
from eggroll.help import invocation
from eggroll.networks import initial_weights
from eggroll.noise import Noise
from eggroll.options import check_resumed
from eggroll.population import Population, fitting_chunk, model_loss
from eggroll.program import Leaves, Program
from eggroll.step import Learner

VALID_STREAMS, VALID_TOKENS = 256, 64  # of validation: most streams, most tokens of a batch


@dataclass
class Run(ABC):
    """A run under way, of whatever is trained: its options, its folder and its data.

    folder: None if nothing of it is written;
    val_loss: the validation after the last update, in bits per token; None if there was none.
    """

    config: Common
    folder: runlog.Folder | None
    corpus: Corpus
    streams: Streams
    val_loss: float | None = field(default=None, init=False)

    command: ClassVar[str]
    legend: ClassVar[str]  # what the loss in metrics.jsonl and on the screen is

    @property
    @abstractmethod
    def step(self) -> int:
        """Updates made."""

    @property
    @abstractmethod
    def weights(self) -> Leaves: ...

    @property
    @abstractmethod
    def engine(self) -> Any:
        """The engine that draws samples from the weights, or something with its `logits`."""

    @abstractmethod
    def update(self) -> runlog.Row:
        """Makes one update; returns its line of metrics.jsonl, but for the validation."""

    @abstractmethod
    def validate(self) -> float:
        """Exact bits per token of the model on the validation split."""

    @abstractmethod
    def save(self) -> None:
        """Replaces the checkpoint by one of the present step; nothing without a folder."""

    def validation(self) -> runlog.Row:
        """Validates, and returns what the line of metrics.jsonl gets by it."""
        self.val_loss = self.validate()
        # A token is a byte in every corpus of text. Count has none: there it is per token, too.
        return {"val_loss": self.val_loss, "val_bits_per_byte": self.val_loss}

    def path(self, name: str) -> Path:
        """The path of one of the files; only of a run with a folder."""
        assert self.folder
        return self.folder.path / name

    def due(self, every: int) -> bool:
        """True if something done `every` so many updates is due; it always is at the end."""
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    def resume_hint(self, engine: str = "") -> str:
        """How the run goes on; engine: another than its own."""
        if not self.folder:
            return "nothing of it is written without an out."
        folder = str(self.folder.path)
        if self.config.data == TOKENS:
            changed = f", engine={engine!r}" if engine else ""
            return f"go on with Config(resume={folder!r}{changed}, ...) and the same tokens"
        changed = f" --engine {engine}" if engine else ""
        return f"go on with: {invocation(self.command)} --resume {shlex.quote(folder)}{changed}"

    @property
    def by_steps(self) -> bool:
        """True if an update depends on the total of updates."""
        return True

    def details(self) -> Sequence[str]:
        """Words of the first lines that belong to this kind of run."""
        return ()

    def facts(self) -> dict[str, Any]:
        """Facts in config.json that belong to this kind of run."""
        return {}


@dataclass
class TrainingRun(Run):
    """A run of eggroll.train."""

    config: Config
    learner: Learner

    command: ClassVar[str] = "train"
    legend: ClassVar[str] = "loss: mean score of the members, rounded down; validation: exact"

    @property
    def step(self) -> int:
        return self.learner.step

    @property
    def weights(self) -> Leaves:
        return self.learner.weights

    @property
    def engine(self) -> Engine:
        return self.learner.population.engine

    def update(self) -> runlog.Row:
        made, self.val_loss = self.learner.update(self.streams.batch(self.step)), None
        unit = self.engine.program.score_unit
        # On the host, as nothing may fail between an update and its line.
        bits = (0 - int(np.asarray(made.scores).sum(dtype=np.int64))) * unit / made.scores.size
        return {
            "step": self.step,
            "loss": bits,
            "update_rate": made.rate,
            "tokens_per_second": round(runlog.per_second(made.scores.size, made.seconds), 1),
            "seconds": round(made.seconds, 6),
        }

    def validate(self) -> float:
        batches = validation_batches(self.corpus, self.config)
        return model_loss(self.engine, self.weights, batches, self.corpus.warmup)

    def save(self) -> None:
        if not self.folder:
            return
        made = self.learner
        arrays = (made.weights, made.memory, made.state)
        kept = Checkpoint(self.config, made.step, *arrays, fingerprint(self.corpus))
        checkpoint.save(self.path(runlog.CHECKPOINT), kept)

    @property
    def by_steps(self) -> bool:
        return self.learner.rule.by_steps

    def details(self) -> Sequence[str]:
        options, chunk = self.config, self.learner.population.chunk
        changed = ", ".join(f"{name} {value}" for name, value in options.changed().items())
        return (
            f"recipe: {options.recipe}{' but for ' * bool(changed)}{changed}",
            f"population: {options.pop:,} members, {chunk:,} at a time, rank {options.rank}",
        )

    def facts(self) -> dict[str, Any]:
        return {"chunk": self.learner.population.chunk}


def open_run(
    options: Config,
    stack: ExitStack,
    *,
    corpus: Corpus | None = None,
    write: bool = True,
    show: bool = True,
) -> TrainingRun:
    """Checks everything that can be checked, then creates or reopens the run's folder.

    corpus: None reads the one that the options name; write: whether a new run has a folder; show:
    whether the first lines are printed.
    """
    options = options.at_home()
    options.check()
    engine, reason = engine_for(options)
    before: Checkpoint | None = None
    folder: runlog.Folder | None = None
    if options.resume:
        folder = stack.enter_context(runlog.Folder(Path(options.resume)))
        before = checkpoint.load(folder.path / runlog.CHECKPOINT)
        check_options(before.config, before.step, options)
    elif options.out:
        runlog.check_free(Path(options.out))
    corpus = corpus or load_corpus(
        options.data, vocabulary=options.vocabulary, steps=options.count_steps
    )
    if before:
        check_data(before.corpus, fingerprint(corpus), options)
    streams = corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    if write and not before:
        name = "" if options.recipe == "paper" else f"-{options.recipe}"
        folder = stack.enter_context(
            runlog.Folder(runlog.new_folder(options.out, f"{Path(options.data).stem}{name}"))
        )
        runlog.check_free(folder.path)  # another run may have come first
    learner = new_learner(options, engine)
    if before:
        learner.step, learner.weights = before.step, before.weights
        learner.memory, learner.state = before.memory, before.state
    run = TrainingRun(options, folder, corpus, streams, learner)
    if show:
        print_header(run, reason, before.config.steps if before else options.steps)
    run.save()
    if folder:
        runlog.write_whole(run.path(runlog.CONFIG), config_json(run))
    return run


def check_options(before: Any, done: int, options: Common) -> None:
    """Raises InputError unless a run with these options can go on after `done` updates."""
    check_resumed(before, options)
    if options.out and Path(options.out).resolve() != Path(options.resume).resolve():
        raise InputError(
            f"--out {options.out!r} is not the folder of --resume {options.resume!r}, where the "
            "run goes on: leave --out out."
        )
    if options.steps < done:
        raise InputError(
            f"--steps is {options.steps}, but the run in {options.resume!r} has made {done} "
            f"updates already: give the new total, {done} or more."
        )


def check_data(before: Any, found: Any, options: Common) -> None:
    """Raises InputError unless this is the data that the checkpoint was trained on."""
    then, now = (
        ", ".join(f"{name} {str(value)[:12]}" for name, value in facts.items())
        for facts in (before, found)
    )
    if found != before:
        raise InputError(
            f"--data {options.data!r} has changed since the run in {options.resume!r} began (then "
            f"{then}, now {now}): bring the old data back, or start a new run without --resume."
        )


def engine_for(options: Config) -> tuple[Engine, str]:
    """The engine of a run, and why that one.

    Raises:
        InputError: it is unknown, cannot run here, or lacks what the estimator needs.
    """
    estimator = options.estimator_class
    return engines.choose(
        options.engine, options.program(), options.threads, options.block_tokens,
        credit=estimator.by_token,
    )  # fmt: skip


def new_learner(options: Config, engine: Engine) -> Learner:
    """The learner of a run before its first update."""
    program = engine.program
    noise = Noise(
        [leaf.shape for leaf in program.leaves],
        seed=options.seed,
        rank=options.rank,
        shift=Q + options.sigma_shift,
        reuse=options.noise_reuse,
        table_bits=options.table_bits,
    )
    estimator = options.estimator_class(options, program)
    population = Population(
        engine,
        noise,
        crediting=estimator.crediting,
        members=options.pop,
        group=options.group_size,
        chunk=chunk_size(options, engine, estimator),
        clt=options.clt,
    )
    rule = options.rule_class.make(options, program, estimator)
    weights = initial_weights(program, options.seed)
    state = population.initial_state()
    memory = rule.start(weights) | estimator.start()
    return Learner(population, estimator, rule, 0, weights, memory, state)


def chunk_size(options: Config, engine: Engine, estimator: Estimator) -> int:
    """Members evaluated at a time: as asked, else as many as a memory budget holds.

    Whole groups, where an estimator compares their members.
    """
    chunk = min(options.chunk, options.pop) or fitting_chunk(
        engine, members=options.pop, seq_len=options.seq_len, rank=options.rank,
        kept=estimator.inputs_kept(engine.program),
    )  # fmt: skip
    unit = options.group_size if estimator.grouped else 1
    return max(chunk // unit * unit, unit)


def validation_batches(corpus: Corpus, options: Common) -> Iterator[Batch]:
    """At most val_tokens of the validation split, spread over at most 256 streams.

    A small split gives fewer streams, so that each is long, as each begins without a memory.
    """
    most = max(min(VALID_STREAMS, options.val_tokens // VALID_TOKENS), 1).bit_length()
    shapes: list[Streams] = []
    for bits in reversed(range(most)):
        try:
            shapes.append(corpus.streams("valid", 1 << bits, 1, options.seed))
        except InputError:  # too small for so many
            if bits == 0:
                raise
    long = (shape for shape in shapes if shape.length > VALID_TOKENS)
    shape = next(long, max(shapes, key=lambda shape: shape.tokens_per_epoch))
    length = min(VALID_TOKENS, shape.length - 1, options.val_tokens)
    length = max(length, corpus.warmup + 1)  # something must be scored
    streams = corpus.streams("valid", shape.streams, length, options.seed)
    batches = min(options.val_tokens // shape.streams, shape.length - 1) // length
    return (streams.batch(i) for i in range(max(batches, 1)))


def fingerprint(corpus: Corpus) -> Any:
    """The identity of the data: the digest of each split, or the options of corpus count."""
    splits = corpus.about.get("splits")
    facts = {k: v["sha256"] for k, v in splits.items()} if splits else corpus.about
    return json.loads(json.dumps(facts))


def unit(options: Common) -> str:
    return "bits per token" if options.numbers else "bits per byte"


def parameters(program: Program) -> int:
    return sum(math.prod(leaf.shape) for leaf in program.leaves)


def print_header(run: Run, reason: str, steps_before: int) -> None:
    """Tells on stdout what runs where, and why there."""
    options, engine, streams = run.config, run.engine, run.streams
    print(f"engine: {engine.description}{', ' * bool(reason)}{reason}")
    parts = (
        f"network: {options.network_words}, {parameters(engine.program):,} parameters",
        *run.details(),
        f"data: {streams.streams:,} streams x {options.seq_len} tokens of {options.data}, "
        f"{streams.tokens_per_epoch:,} in all",
    )
    print("\n".join(parts))
    where = run.folder.path if run.folder else "not written"
    print(f"run: {where}, updates {run.step} to {options.steps}")
    if options.resume and run.step == options.steps:
        print(f"All {run.step} updates are done; a larger --steps goes on.")
    elif run.by_steps and steps_before != options.steps:
        print(
            f"From here the learning rate falls over {options.steps} updates instead of "
            f"{steps_before}, which is not the run of {options.steps} updates from the start."
        )
    sys.stdout.flush()


def config_json(run: Run) -> bytes:
    """The options, and under `about` what else explains the results."""
    corpus = run.corpus
    data = {"corpus": corpus.about, "baselines": corpus.baselines()}
    return described(run.config.to_dict(), run.engine, run.facts() | data)


def described(options: Mapping[str, Any], engine: Any, facts: Mapping[str, Any]) -> bytes:
    """A config.json of these options; facts: what `about` says beside versions and engine."""
    about = {
        "eggroll": __version__,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "engine": engine.description,
        "parameters": parameters(engine.program),
        **facts,
    }
    return json.dumps({**options, "about": about}, indent=1).encode() + b"\n"
