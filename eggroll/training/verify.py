"""Proof of a run: `eggroll verify DIR` makes its updates again and compares them with its chain.

Every update from the initial weights, or from an anchor, is made from the data as training makes
it: all members run, vote and move the weights. chain.py says what must be equal.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.training.verify"))

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import mlx.core as mx
import tyro

from eggroll.cli import command as cli
from eggroll.data.corpus import Corpus
from eggroll.data.hub import TOKENS, absolute
from eggroll.errors import InputError
from eggroll.evolution.step import Learner
from eggroll.files import CHAIN, CHECKPOINT, REPLAY, open_regular
from eggroll.ranks import refuse
from eggroll.training import checkpoint
from eggroll.training.chain import (
    NONE,
    ChainError,
    ChainHeader,
    Link,
    anchors_in,
    digest_signs,
    digest_state,
    read_header,
    read_links,
)
from eggroll.training.checkpoint import Checkpoint
from eggroll.training.config import Config, from_dict
from eggroll.training.learner import engine_for, new_learner
from eggroll.training.replay_log import header_of, records
from eggroll.training.run import fingerprint, load_run_corpus

PROGRESS_SECONDS: Final = 10.0  # between lines of progress
EXAMPLES: Final = (
    ("runs/stdlib-000", "make all updates of a run again and compare them with its chain"),
    ("runs/stdlib-000 --updates 1400:1500", "the last hundred, from the nearest anchor before"),
)


@dataclass(frozen=True)
class VerifyOptions:
    """Options of eggroll.verify."""

    folder: Annotated[str, tyro.conf.arg(metavar="DIR"), tyro.conf.Positional] = ""
    """Folder of a run of eggroll.train."""
    updates: Annotated[str, tyro.conf.arg(metavar="A:B")] = ""
    """From the weights of update A to those of update B; either may be left out."""
    data: Annotated[str, tyro.conf.arg(metavar="NAME|FILE|DIR")] = ""
    """Where the run's data lie now, if elsewhere than when it was trained."""
    engine: Annotated[str, tyro.conf.arg(metavar="auto|portable|cpu|metal|cuda")] = "auto"
    """The engine that computes; all give the same bits."""
    threads: Annotated[int, cli.Range(0, 1024)] = 0
    """Threads on a CPU; 0 is all cores."""


class StoredChain(NamedTuple):
    """The chain of a run: its header, its updates in order, and the last link."""

    header: ChainHeader
    links: list[Link]
    head: bytes


class Start(NamedTuple):
    """The update that a stretch is made again from, in words and as a checkpoint (None: from 0)."""

    step: int
    words: str
    checkpoint: Checkpoint | None


def verify(options: VerifyOptions) -> str:
    """Verifies a stretch of a run, prints what was done, and returns the chain's last link, hex.

    Raises:
        InputError: bad options, or no run with a chain.
        ChainError: an update differs; the sentence names the first.
    """
    cli.check_ranges(options)
    refuse("eggroll.verify")
    if not options.folder:
        raise InputError("no folder is given: name that of a run, as in runs/stdlib-000.")
    folder = Path(options.folder)
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is no folder: give that of a run of eggroll.train.")
    chain = read_chain(folder)
    first, last = stretch(options.updates, len(chain.links))
    config = config_of(chain.header, options, folder)
    engine, reason = engine_for(config, config.program())
    count = len(chain.links)
    print(
        f"chain: {folder / CHAIN}, updates 1 to {count}, every record follows from the one before"
    )
    print(compare_signs(folder, chain.links))
    saved, why_not = compare_checkpoint(folder, chain)
    start = start_of(folder, chain.links, first)
    print(f"engine: {engine.description}{', ' * bool(reason)}{reason}")
    corpus, changed = corpus_of(config, folder, chain.header)
    learner = new_learner(config, engine)
    print(f"made again: updates {start.step + 1} to {last}, from {start.words}", flush=True)
    printed = time.monotonic()
    for made in updates_made(config, learner, corpus, chain.links[start.step : last], start):
        compare(made, chain.links[made.step - 1])
        compare_saved(learner, saved)
        if time.monotonic() - printed >= PROGRESS_SECONDS:
            printed = time.monotonic()
            print(f"update {made.step}/{last}", file=sys.stderr, flush=True)
    if changed:
        raise ChainError(f"{changed}, though no update from {start.step + 1} to {last} shows it.")
    print(why_not or compared_words(saved, start.step, last))
    print(f"yes: updates {start.step + 1} to {last} are what training makes of these data")
    return chain.head.hex()


def read_chain(folder: Path) -> StoredChain:
    """The chain of a run, every record of which follows from the one before.

    Raises:
        InputError: there is none, or it cannot be read.
        ChainError: a record does not follow.
    """
    path = folder / CHAIN
    try:
        with open_regular(path) as file:
            header = read_header(file, path)
            read = list(read_links(file, header))
    except FileNotFoundError:
        raise InputError(
            f"{str(folder)!r} has no {CHAIN}, like sweep trials, runs of eggroll.adamw and runs "
            "that began before there were chains: only a run of eggroll.train that keeps one from "
            "its first update on can be verified."
        ) from None
    except OSError as error:
        raise InputError(
            f"chain {str(path)!r} cannot be read ({error.strerror}): make it readable."
        ) from error
    head = read[-1][1] if read else header.first_link()
    return StoredChain(header, [link for link, _ in read], head)


def stretch(text: str, count: int) -> tuple[int, int]:
    """The updates A and B of --updates, by default 0 and all that there are.

    Raises:
        InputError: they are none of the run's.
    """
    form = re.fullmatch("([0-9]{0,10}):([0-9]{0,10})", text or ":")
    first, last = (int(form[1] or 0), int(form[2] or count)) if form else (0, -1)
    if not 0 <= first < last <= count:
        raise InputError(
            f"--updates is {text!r}, and the run has made {count} updates: A:B with 0 <= A < B <= "
            f"{count} is needed, as in --updates 0:{count}."
            if count
            else "the run has made no update yet: there is nothing to verify."
        )
    return first, last


# What can be compared without making an update again.


def compare_signs(folder: Path, links: list[Link]) -> str:
    """Compares the replay log's signs with the digests that the chain has of them.

    Raises:
        ChainError: they differ, or the log ends early.
    """
    path, count = folder / REPLAY, 0
    if not links or links[0].signs == NONE:
        return "replay log: none, as this estimator's votes do not follow from signs of pairs"
    try:
        with open_regular(path) as file:
            header = header_of(file, path)
            end = header.size
            for record, link in zip(records(file, header), links, strict=False):
                count, end = record.step, end + len(header.recorded(*record))
                if digest_signs(mx.array(record.signs)) != link.signs:
                    raise ChainError(f"update {count} differs: {path.name} has other signs.")
            more = path.stat().st_size - end  # as of an update that a kill came upon
    except FileNotFoundError:
        return f"replay log: not compared, as there is no {str(path)!r}"
    except InputError as error:
        if isinstance(error, ChainError):
            raise
        raise ChainError(f"update {count + 1} differs: {error}") from error
    if count < len(links):
        raise ChainError(
            f"update {count + 1} differs: its record in {path.name} is missing or damaged; restore "
            "it from a copy."
        )
    said = f"replay log: the signs of all {count} updates are those of the chain"
    return f"{said}; {more:,} bytes behind them are not of it" if more else said


def compare_checkpoint(folder: Path, chain: StoredChain) -> tuple[Checkpoint | None, str]:
    """The run's checkpoint, or the reason why there is none to compare with.

    Raises:
        ChainError: it is damaged, of another run, or not what the chain says of its update.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None, f"checkpoint: not compared, as there is no {str(path)!r}"
    return read_saved(path, chain), ""


def read_saved(path: Path, chain: StoredChain) -> Checkpoint:
    """A checkpoint or an anchor of the run, compared with the chain.

    Raises:
        ChainError: as of `compare_checkpoint`.
    """
    try:
        saved = checkpoint.load(path)
    except InputError as error:
        raise ChainError(f"update {step_in(path)} differs: {error}") from error
    links, step = chain.links, saved.step
    if step > len(links):
        raise ChainError(
            f"update {len(links) + 1} differs: the chain ends before it, and {str(path)!r} is of "
            f"update {step}; restore both from one copy."
        )
    told = links[step - 1].state if step else NONE
    if told != NONE and told != digest_state(saved.weights, saved.memory, saved.state):
        raise ChainError(
            f"update {step} differs: {str(path)!r} is not what the chain says of it; restore it "
            "from a copy."
        )
    bound, options = chain.header.facts.get("bound", {}), saved.config.to_dict()
    for name in sorted(bound.keys() & options.keys()):
        if bound[name] != options[name]:
            raise ChainError(
                f"update {step} differs: {str(path)!r} has {cli.flag(name)} {options[name]} and "
                f"the chain {bound[name]}; restore them from one copy."
            )
    return saved


def step_in(path: Path) -> str:
    """The update that a checkpoint names, even where it is damaged; a word if it names none."""
    step = checkpoint.fact_of(path, "step")
    return step if re.fullmatch("[0-9]{1,10}", step) else "of the checkpoint"


def start_of(folder: Path, links: list[Link], first: int) -> Start:
    """The nearest start at or before an update: an anchor, else the initial weights.

    Raises:
        ChainError: an anchor is not what the chain says.
    """
    known = anchors_in(folder)
    steps = [step for step in known if 0 < step <= first and links[step - 1].state != NONE]
    if not steps:
        return Start(0, "the initial weights", None)
    step = max(steps)
    saved = read_saved(known[step], StoredChain(ChainHeader({}, 0), links, NONE))
    if saved.step != step:
        raise ChainError(
            f"update {step} differs: {str(known[step])!r} is of update {saved.step}; remove it, "
            "and an earlier one is taken."
        )
    return Start(step, f"the anchor of update {step}, whose digest is in the chain", saved)


# Making updates again.


def config_of(header: ChainHeader, options: VerifyOptions, folder: Path) -> Config:
    """The options of a run, by its chain, with this machine's engine and threads."""
    name = f"chain {str(folder / CHAIN)!r}"
    stored = header.facts.get("config")
    if header.facts.get("kind") != checkpoint.FORMAT or not isinstance(stored, dict):
        raise InputError(f"{name} is not of a run of eggroll.train: give the folder of one.")
    bound = header.facts.get("bound")
    if not isinstance(bound, dict) or any(stored.get(k) != v for k, v in bound.items()):
        raise ChainError(f"{name} differs before update 1: its options are not those it binds.")
    config = from_dict(Config().to_dict() | stored, name)
    if config.data == TOKENS and not options.data:
        raise InputError(
            f"{name} is of a run whose tokens a program gave: write them to a text or a table, and "
            "train by --data to have a run that can be verified."
        )
    config = replace(config, engine=options.engine, threads=options.threads, chunk=0)
    checkpoint.check_network(header.facts, config, folder / CHAIN)
    if not options.data:
        config.check()
        return config
    there = replace(config, data=absolute(options.data))
    there.check()
    if there.program().digest() != config.program().digest():
        raise InputError(
            f"--data {options.data!r} has other tokens than {config.data!r}, of which the run in "
            f"{str(folder)!r} is: give the place of those, or leave --data out."
        )
    return there


def corpus_of(config: Config, folder: Path, header: ChainHeader) -> tuple[Corpus, str]:
    """The run's data, and how they have changed since, if they have."""
    corpus = load_run_corpus(replace(config, resume=str(folder)))
    now, then = fingerprint(corpus), header.facts.get("corpus")
    if now == then:
        return corpus, ""
    print(f"data: {config.data} has changed since the run began", file=sys.stderr, flush=True)
    return corpus, f"--data {config.data!r} has changed since the run began"


def updates_made(
    config: Config, learner: Learner, corpus: Corpus, links: list[Link], start: Start
) -> Iterator[Link]:
    """Makes the updates of these records again by the learner; gives each as the chain has it."""
    if saved := start.checkpoint:
        learner.step, learner.weights = saved.step, saved.weights
        learner.memory, learner.state = saved.memory, saved.state
    streams = corpus.streams("train", config.streams, config.seq_len, config.seed)
    total = config.steps
    for link in links:
        if link.steps != total:  # the run was resumed with another total
            total = link.steps
            fresh = new_learner(replace(config, steps=total), learner.population.engine)
            learner.rule, learner.estimator = fresh.rule, fresh.estimator
        made = learner.update(streams.batch(learner.step))
        score = made.total_score
        state = NONE
        if link.state != NONE:
            state = digest_state(learner.weights, learner.memory, learner.state)
        yield Link(learner.step, link.steps, score, digest_signs(learner.fitness), state)


def compare(made: Link, told: Link) -> None:
    """Raises ChainError if an update is not what the chain says of it."""
    names = {"signs": "the signs of pairs", "state": "weights, memory or members' states"}
    names["total_score"] = "the members' scores"
    wrong = [words for name, words in names.items() if getattr(made, name) != getattr(told, name)]
    if wrong:
        raise ChainError(
            f"update {made.step} differs: {' and '.join(wrong)} are others in the chain than "
            "when it is made again; the data or the chain were changed: restore them from a copy."
        )


def compare_saved(learner: Learner, saved: Checkpoint | None) -> None:
    """Raises ChainError if the learner stands where the checkpoint does, with other bits."""
    if saved is None or saved.step != learner.step:
        return
    mine = digest_state(learner.weights, learner.memory, learner.state)
    if mine != digest_state(saved.weights, saved.memory, saved.state):
        raise ChainError(
            f"update {learner.step} differs: made again it leaves other weights, memory or states "
            "than the checkpoint has; restore the checkpoint from a copy."
        )


def compared_words(saved: Checkpoint | None, first: int, last: int) -> str:
    """A line on the checkpoint."""
    step = saved.step if saved else 0
    if first < step <= last:
        return f"checkpoint: equal to what update {step} leaves"
    return f"checkpoint: of update {step}, which was not made again"


@cli.command(
    VerifyOptions,
    name="verify",
    about="Verifies a run: makes its updates again from its data and compares them with its chain "
    "of digests; names the first update that differs.",
    examples=EXAMPLES,
)
def main(options: VerifyOptions) -> None:
    """Command line of eggroll.verify."""
    print(f"head: {verify(options)}")
