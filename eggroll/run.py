"""A run: from options to network, data, engine and population, new or from a checkpoint.

Letters: P members, N = P/2 pairs, S streams, T tokens of a stream per update.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from eggroll import __version__, checkpoint, cli, config, engines, runlog
from eggroll.checkpoint import Checkpoint
from eggroll.config import Common, Config
from eggroll.credit import Crediting, CreditKind, crediting
from eggroll.data.streams import Batch, Corpus, Streams, load_corpus
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.fixed_point import Q
from eggroll.networks import initial_weights
from eggroll.noise import Noise, slice_length
from eggroll.population import Population, model_loss
from eggroll.program import Leaves, Program
from eggroll.rules import MasterRule, SignRule, UpdateRule
from eggroll.whitening import WhitenedRule, turnable

VALID_STREAMS, VALID_TOKENS = 256, 64  # of validation: most streams, most tokens of a batch
BUDGET, PORTABLE_BUDGET = 1 << 28, 1 << 26  # bytes that the arrays of a chunk may take


@dataclass
class Run:
    """A run under way: what stays, and below it what every update changes."""

    config: Config
    folder: runlog.Folder
    corpus: Corpus
    streams: Streams
    engine: Engine
    population: Population
    rule: UpdateRule
    step: int
    weights: Leaves
    master: Leaves
    state: mx.array
    val_loss: float | None = None

    def path(self, name: str) -> Path:
        return self.folder.path / name

    def save(self) -> None:
        """Replaces the checkpoint by one of the present step."""
        arrays = (self.weights, self.master, self.state)
        kept = Checkpoint(self.config, self.step, *arrays, fingerprint(self.corpus))
        checkpoint.save(self.path(runlog.CHECKPOINT), kept)

    def due(self, every: int) -> bool:
        """Whether something done `every` so many updates is due; it always is at the end."""
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    def validate(self) -> float:
        """Bits per token of the unperturbed model on the validation split."""
        batches = validation_batches(self.corpus, self.config)
        return model_loss(self.engine, self.weights, batches, self.corpus.warmup)


def open_run(options: Config, stack: ExitStack) -> Run:
    """Checks everything that can be checked, then creates or reopens the run's folder."""
    options = options.at_home()
    options.check()
    program = options.program()
    engine, reason = engine_for(options)
    before: Checkpoint | None = None
    if options.resume:
        folder = stack.enter_context(runlog.Folder(Path(options.resume)))
        before = checkpoint.load(folder.path / runlog.CHECKPOINT)
        check_options(before.config, before.step, options)
    elif options.out:
        runlog.check_free(Path(options.out))
    corpus = load_corpus(options.data, vocabulary=options.vocabulary, steps=options.count_steps)
    if before:
        check_data(before.corpus, fingerprint(corpus), options)
    streams = corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    if not before:
        folder = stack.enter_context(runlog.Folder(runlog.new_folder(options.out, options.data)))
        runlog.check_free(folder.path)  # another run may have come first
    start = before or beginning(options, program, fingerprint(corpus))
    run = Run(
        options, folder, corpus, streams, engine, new_population(options, engine), rule(options),
        start.step, start.weights, start.master, start.state,
    )  # fmt: skip
    introduce(run, reason, start.config.steps)
    run.save()
    runlog.write_whole(run.path(runlog.CONFIG), facts(run))
    return run


def check_options(before: Any, done: int, options: Common) -> None:
    """Raises InputError unless a run with these options can go on after `done` updates."""
    config.check_resumed(before, options)
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


def new_population(options: Config, engine: Engine) -> Population:
    noise = Noise(
        [leaf.shape for leaf in engine.program.leaves],
        seed=options.seed,
        rank=options.rank,
        shift=Q + options.sigma_shift,
        reuse=options.noise_reuse,
        table_bits=options.table_bits,
    )
    return Population(
        engine,
        noise,
        how=crediting_of(options),
        members=options.pop,
        group=options.group_size,
        chunk=chunk_size(options, engine),
        clt=options.clt,
    )


def chunk_size(options: Config, engine: Engine) -> int:
    """Members evaluated at a time: as asked, else as many as a memory budget holds."""
    program = engine.program
    if options.chunk:
        return min(options.chunk, options.pop)
    # Of a pair's credit: inputs of every token (portable), or their sum (cpu).
    inputs = sum(leaf.shape[-1] for leaf in program.leaves) * (options.estimator != "eggroll")
    if engine.name == "portable":  # int32 registers and slices, int64 sums over the vocabulary
        registers = sum(sum(stage.registers) for stage in program.stages)
        longest = max(slice_length(leaf.shape, options.rank) for leaf in program.leaves)
        budget, member = PORTABLE_BUDGET, 4 * registers + 24 * (longest + program.vocabulary)
        member += 4 * options.seq_len * inputs
    else:
        arrays = 10 * options.seq_len + 2 * program.state_size + 4 * len(program.leaves)
        chances = 10 * options.seq_len * (inputs > 0)
        budget, member = BUDGET, arrays + inputs + chances
    return min(max(budget // member // 2 * 2, 2), options.pop)


def engine_for(options: Config) -> tuple[Engine, str]:
    """The engine of a run, and why that one.

    Raises:
        InputError: it is unknown, cannot run here, or lacks what the estimator needs.
    """
    credit = options.estimator != "eggroll"
    return engines.choose(
        options.engine, options.program(), options.threads, options.slab, credit=credit
    )


def crediting_of(options: Config) -> Crediting | None:
    """How each leaf is credited; None for the default estimator."""
    if options.estimator == "eggroll":
        return None
    return crediting(
        options.program(), options.estimator, sigma_shift=options.sigma_shift,
        discount=options.discount, seq_len=options.seq_len,
    )  # fmt: skip


def floors(options: Config) -> dict[str, int]:
    """Rule whitened: mean votes at about which pairs differ by 1/16 bit and token, per leaf."""
    how, deviation = crediting_of(options), math.isqrt(options.pop // 2)
    if how is None:
        return {}
    least = {}
    for i, leaf in enumerate(options.program().leaves):
        one_byte = how.kinds[i] == CreditKind.INPUTS or how.owners[i] != i
        noise = deviation * (16 if one_byte else 256)  # of one byte, or of the product of two
        least[leaf.name] = noise if how.kinds[i] in (CreditKind.INPUTS, CreditKind.SCALAR) else 16
    return least


def rule(options: Config) -> UpdateRule:
    pairs, rank, clt = options.pop // 2, options.rank, options.clt
    if options.rule == "sign":
        alpha, decay_of_alpha = options.alpha, options.alpha_decay
        return SignRule(
            alpha=alpha, decay=decay_of_alpha, pairs=pairs, rank=rank, clt=clt,
            measured=options.estimator != "eggroll",
        )  # fmt: skip
    rate, decay, steps = options.learning_rate, options.rate_decay, options.steps
    if options.rule == "whitened":
        matrices = turnable(options.program())
        return WhitenedRule(rate=rate, steps=steps, floors=floors(options), turned=matrices)
    return MasterRule(rate=rate, decay=decay, steps=steps, pairs=pairs, rank=rank, clt=clt)


def beginning(options: Config, program: Program, corpus: Any) -> Checkpoint:
    """What a run starts from."""
    weights = initial_weights(program, options.seed)
    state = mx.zeros((options.pop, program.state_size), mx.int8)
    return Checkpoint(options, 0, weights, rule(options).start(weights), state, corpus)


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
    """What tells this data from other data: the digest of each split, or the rule's options."""
    splits = corpus.about.get("splits")
    facts = {k: v["sha256"] for k, v in splits.items()} if splits else corpus.about
    return json.loads(json.dumps(facts))


def unit(options: Common) -> str:
    return "bits per token" if options.data == "count" else "bits per byte"


def way_on(run: Run) -> str:
    return f"go on with: python -m eggroll.train --resume {shlex.quote(str(run.folder.path))}"


def parameters(program: Program) -> int:
    return sum(math.prod(leaf.shape) for leaf in program.leaves)


def introduce(run: Run, reason: str, steps_before: int) -> None:
    """Tells on stdout what runs where, and why there."""
    options, engine = run.config, run.engine
    print(f"engine: {engine.description}, {reason}")
    print(
        f"network: {options.layers} x {options.width}, {parameters(engine.program):,} parameters; "
        f"population: {options.pop:,} members, {run.population.chunk:,} at a time, rank "
        f"{options.rank}; data: {options.streams:,} streams x {options.seq_len} tokens of "
        f"{options.data}, {run.streams.tokens_per_epoch:,} in all"
    )
    print(f"run: {run.folder.path}, updates {run.step} to {options.steps}")
    if options.resume and run.step == options.steps:
        print(f"All {run.step} updates are done; a larger --steps goes on.")
    elif options.resume and options.rule != "sign" and steps_before != options.steps:
        print(
            f"From here the learning rate falls over {options.steps} updates instead of "
            f"{steps_before}, which is not the run of {options.steps} updates from the start."
        )
    sys.stdout.flush()


def facts(run: Run) -> bytes:
    """config.json: the options, and under `about` what else explains the results."""
    corpus = run.corpus
    about = {
        "eggroll": __version__,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "engine": run.engine.description,
        "chunk": run.population.chunk,
        "parameters": parameters(run.engine.program),
        "corpus": corpus.about,
        "baselines": corpus.baselines(),
    }
    return json.dumps(run.config.to_dict() | {"about": about}, indent=1).encode() + b"\n"


def options_from(argv: Sequence[str]) -> Config:
    """The command line over --config FILE, or over the options of the run in --resume DIR.

    Raises:
        InputError: an option, the file or the checkpoint is no good.
    """
    about = "Trains an int8 recurrent language model by evolution strategies, without gradients."

    def parse(base: Config | None) -> Config:
        return cli.parse(Config, argv, command="train", about=about, base=base)

    given = parse(None)
    others = [
        flag for flag, value in (("--config", given.config), ("--resume", given.resume)) if value
    ]
    if given.recipe != "paper" and others:
        raise InputError(
            f"--recipe {given.recipe} and {others[0]} are both given, and each brings settings of "
            "its own: leave one of them out."
        )
    if given.config and given.resume:
        raise InputError(
            f"--config {given.config!r} and --resume {given.resume!r} are both given: a resumed "
            "run keeps its own options, so leave one of them out."
        )
    if given.config:
        return parse(config.read(given.config))
    if given.recipe != "paper":
        return parse(Config(**config.RECIPES[given.recipe]))
    if given.resume:
        return parse(checkpoint.load(Path(given.resume) / runlog.CHECKPOINT).config)
    return given
