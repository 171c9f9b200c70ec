"""A run: from options to network, data, engine and learner, new or from a checkpoint.

Letters: P members, N = P/2 pairs, S streams, T tokens of a stream per update.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.cli.command import flag
from eggroll.cli.help import invocation
from eggroll.cli.screen import per_second
from eggroll.data.codings import TOKENIZER_FILE, BytePairs
from eggroll.data.corpus import ArrayCorpus, Corpus, Streams, load_corpus
from eggroll.data.counting import CountedModel, FrozenCounts
from eggroll.data.expert import Beside, CountedExpert, Mixture, network_probabilities, rows_of
from eggroll.data.hub import TOKENS
from eggroll.data.text import VAL_SHARE
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.evolution.step import Learner, Step
from eggroll.files import CHECKPOINT, CONFIG, METRICS, VERSION, Row, write_whole
from eggroll.inference import Likelihoods, loss_of, token_likelihoods
from eggroll.ranks import ALONE, Ranks, SharedError
from eggroll.spec.program import Batch, Leaves, Program
from eggroll.training import checkpoint, trackers
from eggroll.training.chain import NONE, Link, digest_signs, digest_state, takes_state
from eggroll.training.checkpoint import Checkpoint
from eggroll.training.config import Common, Config, check_resumed
from eggroll.training.folder import Folder, check_free, new_folder, read_lines
from eggroll.training.learner import engine_for, new_learner
from eggroll.training.statistics import Observed, observe


@dataclass
class Run(ABC):
    """A run under way, of whatever is trained: its options, its folder and its data."""

    config: Common
    folder: Folder | None  # None if nothing of it is written
    corpus: Corpus
    streams: Streams
    # The validation after the last update, in bits per token; None if there was none.
    val_loss: float | None = field(default=None, init=False)
    expert: CountedExpert | None = field(default=None, init=False)  # on rank 0
    # The last validation with the expert.
    beside: Beside | None = field(default=None, init=False)
    # Tells whether it is to stop or to be saved, and whether it is, as of the last update.
    asked: Callable[[], bool] = field(default_factory=lambda: lambda: False, init=False)
    wants_save: Callable[[], bool] = field(default_factory=lambda: lambda: False, init=False)
    stops: bool = field(default=False, init=False)
    saves: bool = field(default=False, init=False)

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

    @property
    def ranks(self) -> Ranks:
        """The processes that share its work."""
        return ALONE

    @abstractmethod
    def update(self) -> Row:
        """Makes one update; returns its line of metrics.jsonl, but for the validation."""

    @abstractmethod
    def validate(self) -> float:
        """Exact bits per token of the model on the validation split."""

    @abstractmethod
    def save(self) -> None:
        """Replaces the checkpoint by one of the present step; nothing without a folder."""

    def validation(self) -> Row:
        """Validates, and returns what the line of metrics.jsonl gets by it."""
        self.val_loss = self.validate()
        size = self.bytes_per_token
        row = {"val_loss": self.val_loss, "val_bits_per_byte": self.val_loss / size}
        if self.beside:
            bits = self.beside.bits
            row |= {"val_loss_with_counts": bits, "val_bits_per_byte_with_counts": bits / size}
        return row

    @cached_property
    def bytes_per_token(self) -> float:
        """Of the text that validation reads."""
        return bytes_per_token(self.corpus, self.config)

    def path(self, name: str) -> Path:
        """The path of one of the files; only of a run with a folder."""
        assert self.folder
        return self.folder.path / name

    def due(self, every: int) -> bool:
        """True if something done `every` so many updates is due; it always is at the end."""
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    def resume_hint(self, engine: str = "") -> str:
        """The words by which the run goes on; engine: another than its own."""
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
    has_folder: bool  # on rank 0, which alone has its path
    observed: Observed | None = field(default=None, init=False)  # the last update, for statistics
    made: Link | None = field(default=None, init=False)  # the last update, for the chain

    command: ClassVar[str] = "train"
    legend: ClassVar[str] = (
        "loss: the members' mean score, rounded down (training signal); validation: exact loss, "
        "compare this"
    )

    @property
    def step(self) -> int:
        return self.learner.step

    @property
    def weights(self) -> Leaves:
        return self.learner.weights

    @property
    def engine(self) -> Engine:
        return self.learner.population.engine

    @property
    def ranks(self) -> Ranks:
        return self.learner.population.ranks

    def update(self) -> Row:
        before, self.observed, learner = self.ranks.seconds, None, self.learner
        batch = self.streams.batch(self.step)
        start = learner.start_of(batch)._replace(memory={})
        made, self.val_loss = learner.update(batch), None
        every = self.config.rank_check
        compares = self.ranks.size > 1 and every > 0 and self.step % every == 0
        digest = digest_of(self.learner) if compares else 0
        waited = self.ranks.seconds - before
        wishes = Wishes(self.asked(), self.wants_save())
        exchange = exchange_results(self.ranks, made, waited, wishes, digest)
        (self.stops, self.saves), tokens = exchange.wishes, self.config.pop * made.scores.shape[1]
        if (
            self.has_folder
            and self.config.statistics_every
            and self.due(self.config.statistics_every)
        ):
            self.observed = observe(learner, start, made)
        if self.has_folder:
            self.made = self._link(exchange.total_score)
        return {
            "step": self.step,
            "loss": (0 - exchange.total_score) * self.engine.program.score_unit / tokens,
            "update_rate": made.rate,
            "tokens_per_second": round(per_second(tokens, made.seconds), 1),
            "seconds": round(made.seconds, 6),
            **exchange.facts,
        }

    def _link(self, total_score: int) -> Link:
        """The last update as the chain has it; all ranks give what they have of the states."""
        learner, steps, digest = self.learner, self.config.steps, NONE
        if takes_state(self.step, steps):
            state = gather_state(self.ranks, learner)
            if self.folder:
                digest = digest_state(learner.weights, learner.memory, state)
        return Link(self.step, steps, total_score, digest_signs(learner.fitness), digest)

    def validation(self) -> Row:
        return {} if self.ranks.rank else super().validation()

    def validate(self) -> float:
        batches = validation_batches(self.corpus, self.config)
        likelihoods = token_likelihoods(self.engine, self.weights, batches)
        if self.expert:
            known = list(likelihoods)
            self.beside, likelihoods = beside(self.expert, known), iter(known)
        return loss_of(likelihoods, self.corpus.warmup)

    def save(self) -> None:
        if not self.has_folder:
            return
        learner, ranks = self.learner, self.ranks
        check_weights(ranks, learner)
        state = gather_state(ranks, learner)
        if self.folder:
            present = Checkpoint(
                self.config, learner.step, learner.weights, learner.memory, state,
                fingerprint(self.corpus),
            )  # fmt: skip
            checkpoint.save(self.path(CHECKPOINT), present)

    @property
    def by_steps(self) -> bool:
        return self.learner.rule.by_steps

    def details(self) -> Sequence[str]:
        options, population = self.config, self.learner.population
        changed = ", ".join(f"{name} {value}" for name, value in options.changed().items())
        lines = [
            f"recipe: {options.recipe}{' but for ' * bool(changed)}{changed}",
            f"population: {options.pop:,} members, {population.chunk:,} at a time, "
            f"rank {options.rank}",
        ]
        if unread := options.unread():
            words = ", ".join(f"--{name.replace('_', '-')}" for name in unread)
            users = f"--rule {options.rule} and --estimator {options.estimator}"
            lines.append(f"without effect: {words} (not read by {users})")
        if self.ranks.size > 1:
            here = f"{population.members:,} of the members on this one"
            lines.append(f"ranks: {self.ranks.size}, {here}")
        return lines

    def facts(self) -> dict[str, Any]:
        return {"chunk": self.learner.population.chunk}


def open_run(
    options: Config,
    stack: ExitStack,
    *,
    corpus: Corpus | None = None,
    write: bool = True,
    show: bool = True,
    ranks: Ranks = ALONE,
) -> TrainingRun:
    """Checks everything that can be checked, then creates or reopens the run's folder.

    corpus: None reads the one that the options name; write: whether a new run has a folder; show:
    whether the first lines are printed.
    """
    options = options.at_home()
    computing = replace(options, threads=options.threads or ranks.threads(options.cores()))
    parts = ranks.together(lambda: prepare(computing, stack, corpus, ranks))
    engine, reason, folder, before, corpus, streams = parts
    ranks.alike(lambda: shared_facts(options, corpus))
    if write and not options.resume:
        folder = ranks.together(lambda: create_folder(options, stack, ranks))
    learner = new_learner(computing, engine, ranks)
    if before:
        learner.step, learner.weights = before.step, before.weights
        learner.memory, learner.state = before.memory, before.state
    if options.resume:
        broadcast_learner(ranks, learner)
    population = learner.population
    ends = (population.before + n for n in (0, population.members))
    own_streams = streams.only(*(n * streams.streams // options.pop for n in ends))
    has_folder = write or bool(options.resume)
    run = TrainingRun(options, folder, corpus, own_streams, learner, has_folder)
    if ranks.rank == 0:
        run.expert = counted_expert(corpus, options)
    if show:
        print_header(run, reason, before.config.steps if before else options.steps)
    write_tokenizer(run)
    run.save()
    write_config(run)
    return run


class RunParts(NamedTuple):
    """The parts of a run that a process prepares before ranks come together."""

    engine: Engine
    reason: str
    folder: Folder | None
    before: Checkpoint | None
    corpus: Corpus
    streams: Streams


def prepare(options: Config, stack: ExitStack, corpus: Corpus | None, ranks: Ranks) -> RunParts:
    """Prepares all that a process can by itself; what is on the disk is only read, by rank 0."""
    options.check()
    groups = options.pop // options.group_size
    if ranks.size > groups:
        raise InputError(
            f"{ranks.size} ranks are too many for {groups} groups of --group-size "
            f"{options.group_size}, as each needs one: use at most {groups}, or a larger --pop."
        )
    engine, reason = engine_for(options, options.program(), ranks)
    before: Checkpoint | None = None
    folder: Folder | None = None
    if ranks.rank == 0:
        trackers.check_installed(options.track)
    if ranks.rank == 0 and options.resume:
        folder = stack.enter_context(Folder(Path(options.resume)))
        before = checkpoint.load(folder.path / CHECKPOINT)
        check_options(before.config, before.step, options)
        read_lines(folder.path / METRICS, before.step)  # damaged, it is left as it is
    elif ranks.rank == 0 and options.out:
        check_free(Path(options.out))
    corpus = corpus or load_run_corpus(options)
    if before:
        check_data(before.corpus, fingerprint(corpus), options)
    streams = corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    return RunParts(engine, reason, folder, before, corpus, streams)


# Options in which the ranks of a run may differ.
MAY_DIFFER_BETWEEN_RANKS = ("data", "engine", "guard", "threads", "chunk", "block_tokens")


def create_folder(options: Config, stack: ExitStack, ranks: Ranks) -> Folder | None:
    """The folder of a new run, on rank 0."""
    if ranks.rank:
        return None
    name = "" if options.recipe == "paper" else f"-{options.recipe}"
    path = new_folder(options.out, f"{Path(options.data).stem}{name}")
    folder = stack.enter_context(Folder(path))
    check_free(folder.path)  # another run may have come first
    return folder


def shared_facts(options: Config, corpus: Corpus) -> dict[str, Any]:
    """The facts that must be the same on all ranks, by the words for them."""
    shared = {
        flag(name): value
        for name, value in options.to_dict().items()
        if name not in MAY_DIFFER_BETWEEN_RANKS
    }
    return {
        **shared,
        "the version of MLX": version("mlx"),
        "the code": source_digest(),
        "the network": options.program().digest(),
        **{f"the corpus ({name})": value for name, value in fingerprint(corpus).items()},
    }


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


def source_digest() -> str:
    """Sha256, hex, of the package's Python source, and its version."""
    digest, root = hashlib.sha256(VERSION.encode()), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


# The exchange between ranks after an update, and before a checkpoint. Letters: R ranks.

MOST_NAMED = 4  # ranks


class Wishes(NamedTuple):
    """The wishes of one rank after an update; of all ranks, whether one has them."""

    stop: bool
    save: bool


class Exchange(NamedTuple):
    """The results that all ranks have in common after an update."""

    total_score: int  # the sum of all members' scores
    wishes: Wishes
    facts: dict[str, Any]  # of the ranks, for metrics.jsonl; none of a process alone


def exchange_results(
    ranks: Ranks, step: Step, waited: float, wishes: Wishes, weights_digest: int = 0
) -> Exchange:
    """Ends an update on all ranks.

    waited: seconds of it in communication; weights_digest: of the weights after it, where they are
    compared.

    Raises:
        SharedError: the weights are not the same everywhere.
    """
    if ranks.size == 1:
        return Exchange(step.total_score, wishes, {})
    busy_here, idle_here = (round(s * 1e6) for s in (step.seconds - waited, waited))
    mine = step.total_score, step.scores.size, busy_here, idle_here, *wishes, weights_digest
    all_scores, tokens, busy, idle, stops, saves, digests = ranks.table(mine).T.tolist()
    _check(ranks, digests)
    facts = {
        "rank_tokens_per_second": [
            round(n * 1e6 / max(t, 1), 1) for n, t in zip(tokens, busy, strict=True)
        ],
        "rank_communication_seconds": [t / 1e6 for t in idle],
    }
    return Exchange(sum(all_scores), Wishes(any(stops), any(saves)), facts)


def digest_of(learner: Learner) -> int:
    """64 bits that tell the weights and the memory of one rank from another's."""
    digest = hashlib.blake2b(digest_size=8)
    for leaves in (learner.weights, learner.memory):
        for name in sorted(leaves):
            digest.update(np.asarray(leaves[name]).tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


def check_weights(ranks: Ranks, learner: Learner) -> None:
    """Raises SharedError if the weights are not the same everywhere."""
    if ranks.size > 1:
        _check(ranks, ranks.table([digest_of(learner)])[:, 0].tolist())


def _check(ranks: Ranks, digests: Sequence[int]) -> None:
    counts = Counter(digests)
    if len(counts) == 1:
        return
    usual, most = counts.most_common(1)[0]
    odd = [ranks.name_of(rank) for rank, digest in enumerate(digests) if digest != usual]
    what = f"the weights of {' and '.join(odd[:MOST_NAMED])} differ from the others'"
    if 2 * most <= len(digests):
        what = f"the weights of {ranks.name_of(0)} and {' and '.join(odd[:MOST_NAMED])} differ"
    raise SharedError(
        f"{what}: a bit flipped there, or its machine computes wrongly; the last checkpoint, made "
        "while all were the same, stays."
    )


def gather_state(ranks: Ranks, learner: Learner) -> mx.array:
    """The state of all members, int8 [P, state_size]; of none on ranks other than 0."""
    if ranks.size == 1:
        return learner.state
    population = learner.population
    state = np.array(learner.state)
    return mx.array(ranks.rows(state, population.everyone, population.group))


def broadcast_learner(ranks: Ranks, learner: Learner) -> None:
    """Gives every rank the learner that rank 0 has read, whose state is of all members there."""
    if ranks.size == 1:
        return
    learner.step = ranks.from_first(lambda: learner.step)
    groups = {"weights": learner.weights, "memory": learner.memory}
    for leaves in groups.values():
        given = ranks.arrays_from_first({name: np.array(leaf) for name, leaf in leaves.items()})
        leaves.update({name: mx.array(leaf) for name, leaf in given.items()})
    state = ranks.arrays_from_first({"state": np.array(learner.state)})["state"]
    first = learner.population.before
    learner.state = mx.array(state[first : first + learner.population.members])


# The data of a run.

VALID_STREAMS, VALID_TOKENS = 256, 64  # of validation: most streams, most tokens of a batch


def load_run_corpus(options: Common) -> Corpus:
    """The corpus of a run; one that goes on reads it by the tokenizer that it has.

    Raises:
        InputError: there is none, or none of it.
    """
    tokenizer = options.tokenizer
    if options.resume and options.pairs:
        tokenizer = str(Path(options.resume) / TOKENIZER_FILE)
    return load_corpus(
        options.data, vocabulary=options.vocabulary, steps=options.count_steps,
        tokenizer=tokenizer, val_share=options.val_share,
    )  # fmt: skip


def rulers(corpus: Corpus) -> dict[str, float]:
    """Models that a network is compared with, by name: bits per token of the validation split."""
    return corpus.baselines() | {model.name: model.bits for model in corpus.frozen_counts()}


def fingerprint(corpus: Corpus) -> Any:
    """The identity of the data: the digest of each split, or the options of corpus count."""
    splits = corpus.about.get("splits")
    facts = {k: v["sha256"] for k, v in splits.items()} if splits else corpus.about
    if tokenizer := corpus.about.get("tokenizer"):
        facts["tokenizer"] = tokenizer
    return json.loads(json.dumps(facts))


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


def counted_expert(corpus: Corpus, options: Common) -> CountedExpert | None:
    """The counted expert of a run's text and validation, if the options ask for one."""
    if options.expert == "none":
        return None
    assert isinstance(corpus, ArrayCorpus)  # as the options were checked
    batches = validation_batches(corpus, options)
    return CountedExpert(corpus.counted, rows_of((b.tokens, b.targets) for b in batches))


def beside(expert: CountedExpert, likelihoods: Sequence[Likelihoods]) -> Beside:
    """The validation with the expert, from that of the network."""
    totals, hits = (np.concatenate(part, axis=1) for part in zip(*likelihoods, strict=True))
    return expert.beside(network_probabilities(totals, hits))


def mixture_of(options: Common, corpus: Corpus, engine: Engine, weights: Leaves) -> Mixture:
    """The network of these weights with its counted expert, which the options ask for."""
    expert = counted_expert(corpus, options)
    assert expert
    batches = validation_batches(corpus, options)
    found = beside(expert, list(token_likelihoods(engine, weights, batches)))
    return Mixture(expert.model, found.weights)


def expert_words(model: CountedModel) -> str:
    """The name of a counted expert, its seconds and its size."""
    counts = FrozenCounts(model.order, 0.0, model.seconds, model.entries, model.size)
    return f"{counts.name}, {counts.cost}"


def bytes_per_token(corpus: Corpus, options: Common) -> float:
    """Bytes of a token of the validation, a mark counted as one; of numbers, 1."""
    coding, size, count = corpus.coding, 0, 0
    if not isinstance(coding, BytePairs):
        return 1.0
    for i, batch in enumerate(validation_batches(corpus, options)):
        scored = batch.targets[:, corpus.warmup if i == 0 else 0 :]
        size, count = size + int(coding.sizes[scored].sum()), count + scored.size
    return size / count


def loss_unit(options: Common) -> str:
    return "bits per token" if options.numbers or options.pairs else "bits per byte"


# Its first lines, and config.json.


def print_header(run: Run, reason: str, steps_before: int) -> None:
    """Prints the first lines of a run: what runs where, and why there."""
    options, engine, streams = run.config, run.engine, run.streams
    expert = run.expert
    print(f"engine: {engine.description}{', ' * bool(reason)}{reason}")
    parts = (
        f"network: {options.network_words}, {parameters(engine.program):,} parameters",
        *run.details(),
        *([f"expert beside the network: {expert_words(expert.model)}"] if expert else []),
        f"data: {streams.streams:,} streams x {options.seq_len} tokens of {options.data}, "
        f"{streams.tokens_per_epoch:,} in all",
        *validation_words(run.corpus, options),
        *(["warning: " + "; ".join(run.corpus.warnings) + "."] if run.corpus.warnings else []),
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


def validation_words(corpus: Corpus, options: Common) -> Sequence[str]:
    """A line on where the validation split comes from; none of streams without end."""
    if "val_share" not in corpus.about:  # or a cache of an older version
        return ()
    splits, share = corpus.about["splits"], corpus.about["val_share"]
    counted = "documents" if "documents" in splits["valid"] else "tokens"
    held = splits["valid"][counted]
    if share is not None:
        whole = held + splits["train"][counted]
        return (f"validation: {held:,} of {whole:,} {counted}, by --val-share {share}",)
    unused = f"; --val-share {options.val_share} is not used" * (options.val_share != VAL_SHARE)
    return (f"validation: a split of its own, {held:,} {counted}{unused}",)


def parameters(program: Program) -> int:
    return sum(math.prod(leaf.shape) for leaf in program.leaves)


def write_config(run: Run) -> None:
    """Writes config.json; nothing without a folder."""
    if run.folder:
        write_whole(run.path(CONFIG), run_config_file(run))


def write_tokenizer(run: Run) -> None:
    """Writes the tokenizer where there is one, before a checkpoint that needs it.

    Raises:
        InputError: another lies in the folder.
    """
    if not run.folder or not isinstance(run.corpus.coding, BytePairs):
        return
    path, data = run.path(TOKENIZER_FILE), run.corpus.coding.data
    if path.exists() and path.read_bytes() != data:
        raise InputError(
            f"{str(path)!r} is another tokenizer than that of this run, and would be written over: "
            "move it, or give another --out."
        )
    write_whole(path, data)


def run_config_file(run: Run) -> bytes:
    """The options, and under `about` what else explains the results."""
    corpus = run.corpus
    # In bits per byte of text, as pictures are.
    baselines = {name: bits / run.bytes_per_token for name, bits in rulers(corpus).items()}
    data = {"corpus": corpus.about, "baselines": baselines}
    if counts := corpus.frozen_counts():
        data["counts"] = {model.name: model._asdict() for model in counts}
    return config_file(run.config.to_dict(), run.engine, run.facts() | data)


def config_file(options: Mapping[str, Any], engine: Any, facts: Mapping[str, Any]) -> bytes:
    """A config.json of these options; facts: what `about` says beside versions and engine."""
    about = {
        "eggroll": VERSION,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "engine": engine.description,
        "parameters": parameters(engine.program),
        **facts,
    }
    return json.dumps({**options, "about": about}, indent=1).encode() + b"\n"
