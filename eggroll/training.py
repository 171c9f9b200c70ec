"""The training loop and the command `python -m eggroll.train`. What stands before it is in run.py.

Letters: P members, T tokens of a stream per update.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eggroll import checkpoint, cli, closing, logs, options, runlog, trackers
from eggroll.anyrun import Run, unit
from eggroll.checkpoint import signature
from eggroll.config import Config
from eggroll.errors import EngineError
from eggroll.generate import Decoder, usual_temperature
from eggroll.ranks import launched
from eggroll.ranks.options import SeveralRanks
from eggroll.ranks.start import Rank, join
from eggroll.run import open_run
from eggroll.sampling import Sampling, sample

SAMPLES = 4
EXAMPLES = (
    ("--recipe language", "learn Python's source text by token credit, in a minute or two"),
    ("--recipe feedback --data book.txt", "learn a text of your own: the best model per second"),
)


# Is told every line of metrics; if it returns True, the run stops after this update.
Callback = Callable[[runlog.Row], object]


class Result(NamedTuple):
    """The end of a run; val_loss in bits per token, None where the last step has none."""

    folder: Path | None  # None if nothing was written
    step: int
    signature: str
    val_loss: float | None
    resume_hint: str  # empty unless the run was interrupted


def train(config: Config) -> Result:
    """Trains from the start, or from the checkpoint in `config.resume`, up to `config.steps`.

    Raises:
        InputError: bad input or environment; what was on the disk before is intact.
    """
    with ExitStack() as stack:
        return complete(open_run(config, stack), stack)


def complete(
    run: Run, stack: ExitStack, callbacks: Sequence[Callback] = (), *, show: bool = True
) -> Result:
    """Makes the updates that a run has left: the training loop, of eggroll.adamw as well.

    callbacks: told every line of metrics, after the file and the screen; show: whether there is a
    screen.
    """
    told: list[Callback] = []
    saves, hint = [run.save], run.resume_hint()
    if run.folder:
        kept = logs.opened(run, stack, on_screen if show else in_program)
        told += [log.append for log in kept]
        saves = [*(log.sync for log in kept), *saves]
        hint = f"the last checkpoint stays: {hint}"
        for note in logs.notes(kept) * show:
            print(note, file=sys.stderr, flush=True)
    if show:
        display = runlog.Display(run.step, run.config.steps, unit(run.config), run.legend)
        told.append(stack.enter_context(display).update)
    tracked = trackers.tracking(run.config.track, run.folder.path if run.folder else None, run.step)
    told += [stack.enter_context(tracked).log, *callbacks]
    stop = stack.enter_context(cli.Stop(hint, says=run.ranks.rank == 0))
    run.asked = lambda: stop.asked
    asked = ended = False
    while run.step < run.config.steps and not (asked or ended):
        row, failed = updated(run)
        answers = [tell(row) for tell in told if row]  # all of them, whichever wants to stop
        ended = any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
        # Once, as a signal may come between two looks; ranks stop after the same update.
        asked = stop.asked if run.ranks.size == 1 else run.stops
        if failed:
            raise left_by(failed, run, saves)
        if asked or ended or run.due(run.config.checkpoint_every):
            for save in saves:
                save()
    left = ""
    if run.step == run.config.steps:
        if show:
            display.close()
        try:
            if run.ranks.rank == 0:
                finish(run, show, tracked)
        except EngineError as error:
            raise left_by(error, run, saves) from None
    elif asked:
        left = f"Interrupted after update {run.step} of {run.config.steps}; {run.resume_hint()}"
    folder = run.folder.path if run.folder else None
    return Result(folder, run.step, signature(run.weights), run.val_loss, left)


def on_screen(sentence: str) -> None:
    """Prints a warning; a screen that is gone does not stop the run."""
    with suppress(OSError):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


def in_program(sentence: str) -> None:
    """Gives a warning to the program that trains."""
    warnings.warn(sentence, stacklevel=2)


def updated(run: Run) -> tuple[runlog.Row, EngineError | None]:
    """Makes an update: its line, empty if there is none, and the error of an engine that failed."""
    row: runlog.Row = {}
    try:
        row |= run.update()
        if run.due(run.config.validate_every):
            row |= run.validation()
    except EngineError as error:
        return row, error
    return row, None


def left_by(error: EngineError, run: Run, saves: Sequence[Callable[[], None]]) -> EngineError:
    """The error that ends a run whose engine failed, with what there is of the run."""
    hint = run.resume_hint(error.spare)
    if run.ranks.size > 1:  # the others wait elsewhere
        return EngineError(f"{error} The last checkpoint stays: {hint}", error.spare)
    try:
        for save in saves:
            save()
    except RuntimeError:  # what a GPU holds may be lost with it
        return EngineError(f"{error} The last checkpoint stays: {hint}", error.spare)
    return EngineError(f"{error} All of update {run.step} is saved: {hint}", error.spare)


def finish(run: Run, show: bool, tracked: trackers.Tracking) -> None:
    """Samples, curves and the last words of a run that has made all its updates."""
    loss = run.validation()["val_loss"] if run.val_loss is None else run.val_loss
    folder = run.folder.path if run.folder else None
    if folder and run.config.sample_tokens:
        texts = samples(run)
        runlog.write_whole(run.path(runlog.SAMPLES), texts.encode())
        tracked.samples(texts)
    tracked.end()  # before matplotlib comes, which some would take half imported for whole
    if folder and runlog.read_lines(run.path(runlog.METRICS)):
        from eggroll import plot  # here, as matplotlib is slow to import

        plot.curves(folder)
    if show:
        print(closing.last_words(folder, run.config, loss, run.corpus, run.command))


def samples(run: Run) -> str:
    """Continuations of the document mark, side by side from one seed."""
    config = run.config
    temperature = usual_temperature(config.data)
    drawn = sample(
        run.engine, run.weights, samples=SAMPLES, seed=config.seed, sampling=Sampling(temperature)
    )
    tokens = list(itertools.islice(drawn, config.sample_tokens))
    parts = []
    for i in range(SAMPLES):
        decode = Decoder(run.corpus.coding)
        text = "".join(decode(int(token[i])) for token in tokens) + decode.end()
        heading = f"temperature {temperature}, seed {config.seed}, sample {i + 1}"
        parts.append(f"=== update {run.step}, {heading} ===\n{text}")
    return "\n".join(parts)


def resumed_options(folder: str) -> Config:
    """The options of the run in a folder."""
    return checkpoint.load_options(Path(folder) / runlog.CHECKPOINT)


def options_from(argv: Sequence[str], known: Config | None = None) -> Config:
    """The options of the command line; see options.from_command_line.

    known: those of the run that goes on, where its folder may lie on another machine.
    """
    about = (
        "Trains an int8 recurrent language model in integers alone: by evolution strategies, "
        "without gradients, or by errors carried back (--recipe feedback)."
    )
    return options.from_command_line(
        Config, argv, command="train", about=about, examples=EXAMPLES,
        resumed=(lambda folder: known) if known else resumed_options,
    )  # fmt: skip


def command(words: Sequence[str], trained: Callable[[Sequence[str]], Result]) -> int:
    """Runs `trained` on the words of a command line; returns the exit code."""

    def work() -> int:
        result = trained(words)
        if result.resume_hint:
            raise KeyboardInterrupt(result.resume_hint)
        print(f"signature: {result.signature}")
        return cli.DONE

    return cli.run(work)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.train; returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if launched():
        return cli.run(lambda: as_rank(words))
    return command(words, lambda words: train(options_from(words)))


def as_rank(words: Sequence[str]) -> int:
    """The command in one of several processes that mlx.launch started; returns the exit code."""
    if cli.asks_for_help(words) and os.environ[launched()] != "0":
        return cli.DONE
    rank = join(SeveralRanks.rank_timeout)
    if rank is None:
        return command(words, lambda words: train(options_from(words)))
    return rank.run(lambda: trained_by(rank, words))


def trained_by(rank: Rank, words: Sequence[str]) -> Result:
    """Trains on this rank; the words of the command line are those of all ranks."""
    folder = cli.word_of(words, "--resume")
    kept = rank.from_first(lambda: resumed_options(folder).to_dict() if folder else None)
    known = options.from_dict(kept, "the checkpoint") if kept else None
    config = rank.together(lambda: options_from(words, known))
    rank.watch.limit = config.rank_timeout
    first = rank.rank == 0
    with ExitStack() as stack:
        run = open_run(config, stack, show=first, ranks=rank)
        rank.watch.resume = f"; {rank.from_first(run.resume_hint)}"
        result = complete(run, stack, show=first)
    if first and not result.resume_hint:
        print(f"signature: {result.signature}")
    return result


if __name__ == "__main__":
    sys.exit(main())
