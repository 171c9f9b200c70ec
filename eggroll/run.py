"""A run: from options to network, data, engine and learner, new or from a checkpoint.

Letters: P members, N = P/2 pairs, S streams, T tokens of a stream per update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from eggroll import __version__, checkpoint, runlog, trackers
from eggroll.anyrun import (
    Run,
    corpus_of,
    fingerprint,
    print_header,
    validation_batches,
    write_facts,
)
from eggroll.checkpoint import Checkpoint
from eggroll.cli import flag
from eggroll.config import Common, Config
from eggroll.data.corpus import Corpus, Streams
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.estimator import Given
from eggroll.learners import engine_for, new_learner
from eggroll.likelihood import model_loss
from eggroll.options import check_resumed
from eggroll.program import Leaves
from eggroll.ranks import ALONE, Ranks, meeting
from eggroll.statistics.update import Observed, observe
from eggroll.step import Learner

OWN = ("data", "engine", "threads", "chunk", "block_tokens")  # options in which ranks may differ


@dataclass
class TrainingRun(Run):
    """A run of eggroll.train.

    kept: whether it has a folder, which only rank 0 knows; observed: the last update, if there are
    to be statistics of it.
    """

    config: Config
    learner: Learner
    kept: bool
    observed: Observed | None = field(default=None, init=False)

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

    @property
    def ranks(self) -> Ranks:
        return self.learner.population.ranks

    def update(self) -> runlog.Row:
        before, self.observed, learner = self.ranks.seconds, None, self.learner
        batch = self.streams.batch(self.step)
        given = Given(learner.weights, learner.step, batch, learner.state, {})
        made, self.val_loss = learner.update(batch), None
        every = self.config.rank_check
        looks = self.ranks.size > 1 and every > 0 and self.step % every == 0
        digest = meeting.digest_of(self.learner) if looks else 0
        met = meeting.meet(self.ranks, made, self.ranks.seconds - before, self.asked(), digest)
        self.stops, tokens = met.stops, self.config.pop * made.scores.shape[1]
        if self.kept and self.config.statistics_every and self.due(self.config.statistics_every):
            self.observed = observe(learner, given, made)
        return {
            "step": self.step,
            "loss": (0 - met.scored) * self.engine.program.score_unit / tokens,
            "update_rate": made.rate,
            "tokens_per_second": round(runlog.per_second(tokens, made.seconds), 1),
            "seconds": round(made.seconds, 6),
            **met.facts,
        }

    def validation(self) -> runlog.Row:
        return {} if self.ranks.rank else super().validation()

    def validate(self) -> float:
        batches = validation_batches(self.corpus, self.config)
        return model_loss(self.engine, self.weights, batches, self.corpus.warmup)

    def save(self) -> None:
        if not self.kept:
            return
        made, ranks = self.learner, self.ranks
        meeting.check_weights(ranks, made)
        state = meeting.whole_state(ranks, made)
        if self.folder:
            kept = Checkpoint(
                self.config, made.step, made.weights, made.memory, state, fingerprint(self.corpus)
            )
            checkpoint.save(self.path(runlog.CHECKPOINT), kept)

    @property
    def by_steps(self) -> bool:
        return self.learner.rule.by_steps

    def details(self) -> Sequence[str]:
        options, people = self.config, self.learner.population
        changed = ", ".join(f"{name} {value}" for name, value in options.changed().items())
        lines = [
            f"recipe: {options.recipe}{' but for ' * bool(changed)}{changed}",
            f"population: {options.pop:,} members, {people.chunk:,} at a time, rank {options.rank}",
        ]
        if self.ranks.size > 1:
            here = f"{people.members:,} of the members on this one"
            lines.append(f"ranks: {self.ranks.size}, {here}")
        return lines

    def facts(self) -> dict[str, Any]:
        return {"chunk": self.learner.population.chunk}


class Opened(NamedTuple):
    """What this process has of a run before ranks come together."""

    engine: Engine
    reason: str
    folder: runlog.Folder | None
    before: Checkpoint | None
    corpus: Corpus
    streams: Streams


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
    found = ranks.together(lambda: looked_up(computing, stack, corpus, ranks))
    engine, reason, folder, before, corpus, streams = found
    ranks.alike(lambda: facts_of(options, corpus))
    if write and not options.resume:
        folder = ranks.together(lambda: created(options, stack, ranks))
    learner = new_learner(computing, engine, ranks)
    if before:
        learner.step, learner.weights = before.step, before.weights
        learner.memory, learner.state = before.memory, before.state
    if options.resume:
        meeting.hand_out(ranks, learner)
    people = learner.population
    ends = (people.before + n for n in (0, people.members))
    mine = streams.only(*(n * streams.streams // options.pop for n in ends))
    run = TrainingRun(options, folder, corpus, mine, learner, write or bool(options.resume))
    if show:
        print_header(run, reason, before.config.steps if before else options.steps)
    run.save()
    write_facts(run)
    return run


def looked_up(options: Config, stack: ExitStack, corpus: Corpus | None, ranks: Ranks) -> Opened:
    """All that a process can find out by itself; what is on the disk is only read, by rank 0."""
    options.check()
    groups = options.pop // options.group_size
    if ranks.size > groups:
        raise InputError(
            f"{ranks.size} ranks are too many for {groups} groups of --group-size "
            f"{options.group_size}, as each needs one: use at most {groups}, or a larger --pop."
        )
    engine, reason = engine_for(options, ranks)
    before: Checkpoint | None = None
    folder: runlog.Folder | None = None
    if ranks.rank == 0:
        trackers.check_installed(options.track)
    if ranks.rank == 0 and options.resume:
        folder = stack.enter_context(runlog.Folder(Path(options.resume)))
        before = checkpoint.load(folder.path / runlog.CHECKPOINT)
        check_options(before.config, before.step, options)
    elif ranks.rank == 0 and options.out:
        runlog.check_free(Path(options.out))
    corpus = corpus or corpus_of(options)
    if before:
        check_data(before.corpus, fingerprint(corpus), options)
    streams = corpus.streams("train", options.streams, options.seq_len, options.seed)
    next(validation_batches(corpus, options))  # complains now if the split is too small
    return Opened(engine, reason, folder, before, corpus, streams)


def created(options: Config, stack: ExitStack, ranks: Ranks) -> runlog.Folder | None:
    """The folder of a new run, on rank 0."""
    if ranks.rank:
        return None
    name = "" if options.recipe == "paper" else f"-{options.recipe}"
    path = runlog.new_folder(options.out, f"{Path(options.data).stem}{name}")
    folder = stack.enter_context(runlog.Folder(path))
    runlog.check_free(folder.path)  # another run may have come first
    return folder


def facts_of(options: Config, corpus: Corpus) -> dict[str, Any]:
    """What must be the same on all ranks, by the words for it."""
    shared = {flag(name): value for name, value in options.to_dict().items() if name not in OWN}
    return {
        **shared,
        "the version of MLX": version("mlx"),
        "the code": source_digest(),
        "the network": options.program().digest(),
        "the corpus": fingerprint(corpus),
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
    digest, root = hashlib.sha256(__version__.encode()), Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
