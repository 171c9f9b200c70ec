"""Past weights of a run, rebuilt from its replay log: `python -m eggroll.replay DIR --step N`.

A vote is noise times the fitness of a pair, and noise follows from the seed, so the signs of pairs
are all that an update needs; no text is read and no network runs. Member states are not rebuilt:
they come from what members read, so a run cannot go on exactly from here.

Letters: N pairs.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.replay"))

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple

import mlx.core as mx
import tyro

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.evolution.estimators import Estimate, decided
from eggroll.evolution.step import Learner
from eggroll.files import CHECKPOINT, REPLAY, open_regular
from eggroll.lm import adapter, record
from eggroll.training import checkpoint
from eggroll.training.config import Config, from_dict
from eggroll.training.learner import engine_for, new_learner
from eggroll.training.replay_log import Header, header_of, records

PROGRESS_SECONDS: Final = 10.0  # between lines of progress
EXAMPLES: Final = (
    ("runs/stdlib-000", "rebuild the last weights and compare them with the checkpoint"),
    ("runs/stdlib-000 --step 500 --out then.safetensors", "write the weights of update 500"),
)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of eggroll.replay."""

    folder: Annotated[str, tyro.conf.arg(metavar="DIR"), tyro.conf.Positional] = ""
    """Folder of a run of eggroll.train, or its replay.bin alone."""
    step: Annotated[int | None, cli.Range(0, 10**9)] = None
    """The update whose weights are rebuilt, 0 for those before the first; the last if not given."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """New safetensors file for the weights, which eggroll.load and generate read."""
    adapter: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """New folder for the adapter of a run of eggroll finetune, as mlx-lm reads it."""
    engine: Annotated[str, tyro.conf.arg(metavar="auto|portable|cpu|metal|cuda")] = "auto"
    """The engine that counts votes; all give the same bits."""
    threads: Annotated[int, cli.Range(0, 1024)] = 0
    """Threads on a CPU; 0 is all cores."""


KnownCheckpoint = tuple[int, str]  # update and signature; update -1 where there is none


def replay(options: ReplayOptions) -> str:
    """Rebuilds the weights of an update, prints what was done and returns their signature.

    Raises:
        InputError: bad options, no replay log, a damaged one, or weights other than those of the
            run's checkpoint.
    """
    cli.check_ranges(options)
    if not options.folder:
        raise InputError("no folder is given: name that of a run, as in runs/stdlib-000.")
    check_free(options.out)
    if record.is_fine_tune(Path(options.folder)):
        return replay_fine_tune(options)
    if options.adapter:
        raise InputError(
            f"--adapter {options.adapter!r} is for runs of eggroll finetune, and "
            f"{options.folder!r} is none: use --out for its weights."
        )
    source = open_log(options.folder)
    with source.file:
        step, total = count_updates(source, options.step)
        config = replace(source.config, engine=options.engine, threads=options.threads, chunk=0)
        engine, reason = engine_for(config, config.program())
        saved, why_not = checkpoint_of(source.path.parent, step)
        learner = new_learner(config, engine)
        print(f"engine: {engine.description}{', ' * bool(reason)}{reason}")
        print(f"replay: {source.path}, updates 0 to {step} of {learner.population.members // 2:,} "
              "pairs", flush=True)  # fmt: skip
        compare(learner, saved)
        printed = time.monotonic()
        for current in replay_updates(source, learner, step):
            compare(current, saved)
            if time.monotonic() - printed >= PROGRESS_SECONDS:
                printed = time.monotonic()
                print(f"update {current.step}/{step}", file=sys.stderr, flush=True)
    print(why_not or f"equal to the weights in the checkpoint of update {saved[0]}")
    if options.out:
        config = replace(source.config, steps=total)
        checkpoint.save_weights(Path(options.out), step, config, learner.weights, learner.memory)
        print(f"written to {options.out}: the weights of update {step}")
    return checkpoint.signature(learner.weights)


def replay_fine_tune(options: ReplayOptions) -> str:
    """The same for a fine-tune, whose model is not run, and not read either for an adapter of low
    rank.
    """
    if options.out:
        raise InputError(
            f"--out {options.out!r} is for weights of networks, and {options.folder!r} is a run of "
            "eggroll finetune: use --adapter DIR."
        )
    place = Path(options.folder)
    if options.adapter:
        adapter.check_free(Path(options.adapter))
    facts, learner = record.replayed(place, options.step)
    print(f"replay: {place}, updates 0 to {learner.step} of {facts.options.pop // 2:,} pairs")
    print(record.compare(place if place.is_dir() else place.parent, learner))
    if options.adapter:
        record.write_adapter(Path(options.adapter), facts, learner)
        print(f"written to {options.adapter}: the adapter of update {learner.step}")
    return record.signature(learner)


def open_log(place: str) -> ReplaySource:
    """The replay log of a run.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    path = Path(place)
    path = path / REPLAY if path.is_dir() else path
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise no_log_error(path) from None
    except OSError as error:
        raise InputError(
            f"replay log {str(path)!r} cannot be read ({error.strerror}): make it readable or give "
            "the folder of another run."
        ) from error
    header = header_of(file, path)
    name = f"replay log {str(path)!r}"
    options = header.facts.get("config")
    if header.facts.get("kind") != checkpoint.FORMAT or not isinstance(options, dict):
        raise InputError(f"{name} is not of a run of eggroll.train: give the folder of one.")
    config = from_dict(options, name)
    config.check()
    checkpoint.check_network(header.facts, config, path)
    fits = header.pairs == config.pop // 2 and not header.is_small
    if not (fits and config.estimator_class.replays):
        raise InputError(
            f"{name} has signs of {header.pairs} pairs, which do not fit its options (--pop "
            f"{config.pop}, --estimator {config.estimator}): restore it from a copy."
        )
    return ReplaySource(path, file, header, config)


class ReplaySource(NamedTuple):
    """A replay log, open at its first record, and the options of its run."""

    path: Path
    file: BinaryIO
    header: Header
    config: Config


def no_log_error(path: Path) -> InputError:
    """The error for a run that has no replay log."""
    if path.name != REPLAY:
        return InputError(f"{str(path)!r} is no file or folder: give the folder of a run.")
    folder = path.parent
    try:
        options = checkpoint.load_options(folder / CHECKPOINT)
    except InputError as error:
        return InputError(f"there is no {str(path)!r}, and {error}")
    if not options.estimator_class.replays:
        return InputError(
            f"the run in {str(folder)!r} has --estimator {options.estimator}, which credits every "
            "token by what members read there, so a replay would need the text and all forward "
            "passes, or 4 bytes per weight and update: it is offered for --estimator eggroll only."
        )
    return InputError(
        f"the run in {str(folder)!r} has no {path.name}, like sweep trials and runs that began "
        "before there were replay logs: only a run that records signs from its first update on can "
        "be replayed."
    )


def count_updates(source: ReplaySource, step: int | None) -> tuple[int, int]:
    """Updates to replay, `step` or all that are recorded, and the run's total at the last of them.

    Raises:
        InputError: fewer are recorded.
    """
    totals = [record.steps for record in islice(records(source.file, source.header), step)]
    count = len(totals)
    source.file.seek(source.header.size)
    if step is None or count == step:
        return count, [source.config.steps, *totals][-1]
    size = source.path.stat().st_size - source.header.size
    torn = size - count * source.header.record >= source.header.record
    end, more = ("is damaged after", ", or restore it from a copy") if torn else ("ends with", "")
    raise InputError(
        f"{str(source.path)!r} {end} update {count}: give --step {count} or less{more}."
    )


def replay_updates(source: ReplaySource, learner: Learner, step: int) -> Iterator[Learner]:
    """The learner after each update up to `step`; the states of its members stay zero."""
    total, engine = source.config.steps, learner.population.engine
    for recorded in islice(records(source.file, source.header), step):
        if recorded.steps != total:  # the run was resumed with another total
            total = recorded.steps
            options = replace(source.config, steps=total)
            learner.rule = options.rule_class.make(options, engine.program, learner.estimator)
            learner.rule.use(engine)
        votes = learner.population.votes(mx.array(recorded.signs), learner.step)
        signs = mx.array(recorded.signs)
        learner.adopt(Estimate(mx.zeros(0), learner.state, votes, decided(signs)))
        yield learner


def checkpoint_of(folder: Path, step: int) -> tuple[KnownCheckpoint, str]:
    """The checkpoint that a replay up to `step` passes; else the reason why none is compared."""
    try:
        saved = checkpoint.load(folder / CHECKPOINT)
    except InputError as error:
        return (-1, ""), f"not compared with a checkpoint: {error}"
    if saved.step > step:
        return (-1, ""), f"not compared: the checkpoint is of update {saved.step}"
    return (saved.step, checkpoint.signature(saved.weights)), ""


def compare(learner: Learner, saved: KnownCheckpoint) -> None:
    """Raises InputError if the learner stands where the checkpoint does, with other weights."""
    if learner.step == saved[0] and (made := checkpoint.signature(learner.weights)) != saved[1]:
        raise InputError(
            f"the weights of update {learner.step} are rebuilt as {made[:12]} and the checkpoint "
            f"has {saved[1][:12]}: replay log and checkpoint are not of one run, or one of them "
            "has been changed; restore them from a copy."
        )


def check_free(out: str) -> None:
    """Raises InputError unless a new file can be written there."""
    path = Path(out)
    if out and (os.path.lexists(path) or not path.parent.is_dir()):
        raise InputError(
            f"--out {out!r} is no place for a new file: give a name that is free, in a folder that "
            "is there."
        )


@cli.command(
    ReplayOptions,
    name="replay",
    about="Rebuilds past weights of a run from the signs of its pairs, without its text.",
    examples=EXAMPLES,
)
def main(options: ReplayOptions) -> None:
    """Command line of eggroll.replay."""
    print(f"signature: {replay(options)}")
